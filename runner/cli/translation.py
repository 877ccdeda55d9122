"""Translation: a command line of torchrun, or of another launcher, rewritten in our words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from runner.config.overrides import hydra_value, is_override, names_file
from runner.core.errors import Problem
from runner.core.shell import line, this_program

KEYS = {
    "nnodes": "task.nnodes",
    "num_machines": "task.nnodes",
    "num_nodes": "task.nnodes",
    "nproc_per_node": "cluster.nproc_per_node",
    "num_gpus": "cluster.gpus_per_node",
    "master_port": "cluster.master_port",
    "main_process_port": "cluster.master_port",
    "rdzv_backend": "rendezvous",
    "rdzv_endpoint": "rendezvous.endpoint",
    "max_restarts": "torchrun.max_restarts",
    "monitor_interval": "torchrun.monitor_interval",
    "role": "torchrun.role",
    "start_method": "torchrun.start_method",
    "numa_binding": "torchrun.numa_binding",
    "shutdown_timeout": "torchrun.shutdown_timeout",
    "rdzv_conf": "torchrun.rdzv_conf",
    "signals_to_handle": "torchrun.signals_to_handle",
    "mixed_precision": "task.env.ACCELERATE_MIXED_PRECISION",
    "cluster": "cluster",
}
"""Flags of launchers, and the keys that say the same."""

FOUND = ("node_rank", "machine_rank", "master_addr", "main_process_ip", "local_addr", "rdzv_id")
"""Flags for what the plan decides."""

ELSEWHERE = "this is how another launcher is told what to start"
NO_COUNTERPART = (
    "leave it out, and the line to type is shown; what sets it here, if anything does, is one of\n"
    "`runner config`; a program's own arguments follow the program"
)

_LOCAL, _LAUNCH = "cluster=local", "task.entry=launch"
_ALONE = {"standalone": _LOCAL, "multi_gpu": "", "use_env": f"~{_LAUNCH}", "u": ""}
_KINDS = {"m": "task.module", "module": "task.module", "no_python": "task.command"}
_DEFAULTS = {"cluster.nproc_per_node=gpu", "cluster.nproc_per_node=auto", "rendezvous=static"}
_LAUNCHERS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("torchrun",): (_LOCAL,),
    ("torch.distributed.run",): (_LOCAL,),
    ("torchelastic.distributed.launch",): (),
    ("torch.distributed.launch",): (_LOCAL, _LAUNCH),
    ("accelerate", "launch"): (_LOCAL,),
    ("deepspeed",): ("task.local_rank_arg=--local_rank",),
    ("python",): (),
    ("python3",): (),
}
"""How a line begins, after `python -m` where that is there, and what it takes here.

Unless a flag takes that back, by the same word after a `~`.
"""

_OF_MACHINES = {"nnodes", "num_machines", "rdzv_endpoint", "cluster", "hostfile", *FOUND[:4]}
"""Flags of a line that is typed on several machines, or that chooses them."""

_BARE = re.compile(r"[\w./~@%+-]+")


class _NoCounterpartError(ValueError):
    """A flag of another launcher that nothing here says."""


def translated(words: Sequence[str]) -> Problem | None:
    """Return the problem of a launch in the words of another launcher, with the line to type.

    Or with the flag that has no counterpart; None if it names no launcher and no file here.
    """
    left, ours = list(words), list[str]()
    while left and is_override(left[0]):
        ours.append(left.pop(0))
    typed, launcher = left[:1], _take_launcher(left)
    try:
        settings, kind = _take_flags(left, {} if launcher is None else _KINDS)
    except _NoCounterpartError as error:
        if launcher is None:
            return None
        return Problem("command line", f"{ELSEWHERE}; {error}", NO_COUNTERPART)
    if not left or (launcher is None and not names_file(left[0])):
        return None
    program, *rest = left
    is_ours = _is_setting if launcher is None else lambda _: False
    args = [word for word in rest if not is_ours(word)]
    args = args[1:] if launcher is None and args[:1] == ["--"] else args
    taken_back = [f"~{word}" for word in (_LOCAL, _LAUNCH) if f"~{word}" in settings]
    if any(word.startswith("cluster=") for word in [*ours, *settings]):
        taken_back.append(f"~{_LOCAL}")
    takes = [word for word in launcher or () if f"~{word}" not in taken_back]
    settings = [word for word in settings if word not in taken_back]
    value = program if _BARE.fullmatch(program) else hydra_value(program)
    found = [*ours, *takes, *settings, *filter(is_ours, rest), f"{kind}={value}"]
    chosen = [*dict.fromkeys(filter(None, found))]
    hint = f"here that is: {this_program()} {line([*chosen, *(['--', *args] if args else [])])}"
    if _LOCAL in chosen:
        hint += "\ncluster=NAME in its place takes other machines"
    elif not any(word.startswith("cluster=") for word in chosen):
        hint += "\nand cluster=NAME chooses the machines"
    is_program_alone = typed == [program]
    message = f"{program!r} is neither KEY=VALUE nor a flag" if is_program_alone else ELSEWHERE
    return Problem("command line", message, hint)


def _take_launcher(left: list[str]) -> tuple[str, ...] | None:
    """Take the name of a launcher off the words; return what it takes here, None without one."""
    module = 2 if left[1:2] == ["-m"] and left[0].startswith("python") else left[:1].count("-m")
    for start in (module, 0):
        for names, takes in _LAUNCHERS.items():
            end = start + len(names)
            if tuple(left[start:end]) == names:
                del left[:end]
                return takes
    return None


def _take_flags(left: list[str], kinds: dict[str, str]) -> tuple[list[str], str]:
    """Take the flags before the program; return them as settings, and the program's key.

    Raises:
        _NoCounterpartError: One has no counterpart here.
    """
    settings, kind, flags = list[str](), "task.script", dict[str, str]()
    while left and (left[0].startswith("-") or is_override(left[0])):
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if is_override(word):
            settings.append(word)
        elif name in kinds:
            kind = kinds[name]
        elif name in _ALONE:
            settings.append(_ALONE[name])
        elif name in {*KEYS, *FOUND, "hostfile", "num_processes"} and (equals or left):
            flags[name] = value if equals else left.pop(0)
        else:
            raise _NoCounterpartError(f"{word} has no counterpart here")
    if flags.keys() & _OF_MACHINES:
        settings.append(f"~{_LOCAL}")
    return [*settings, *_settings(flags)], kind


def _settings(flags: dict[str, str]) -> list[str]:
    """Return flags of a launcher as settings."""
    if not flags.get("rdzv_backend", "").startswith("etcd"):
        endpoint = re.fullmatch(r"(?:\[.*\]|[^:]*):(\d+)", flags.pop("rdzv_endpoint", ""))
        flags |= {"master_port": endpoint[1]} if endpoint else {}
    if (count := flags.pop("num_processes", "")).isdecimal():
        machines = flags.get("num_machines", "1")
        each, rest = divmod(int(count), max(1, int(machines)) if machines.isdecimal() else 1)
        if rest or not each:
            why = f"{count} ranks cannot be the same number on each of {machines} nodes"
            raise _NoCounterpartError(why)
        flags["nproc_per_node"] = str(each)
    if conf := flags.get("rdzv_conf"):
        pairs = (pair.partition("=") for pair in conf.split(","))
        flags["rdzv_conf"] = hydra_value({name: value for name, _, value in pairs})
    if signals := flags.get("signals_to_handle"):
        flags["signals_to_handle"] = f"[{signals}]"
    settings = [f"{KEYS[name]}={value}" for name, value in flags.items() if name in KEYS]
    return [setting for setting in settings if setting not in _DEFAULTS]


def _is_setting(word: str) -> bool:
    """Return whether a word after the program is a setting of ours all the same."""
    from runner.config.schema import RunnerConfig  # noqa: PLC0415 (brings Hydra)

    section = word.lstrip("+~").partition("=")[0].partition(".")[0]
    sections = {option.name for option in dataclasses.fields(RunnerConfig)}
    return is_override(word) and section in sections
