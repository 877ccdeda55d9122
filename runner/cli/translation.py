"""Translation: a command line of torchrun, or of another launcher, rewritten in our words."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.cli.launch_flags import (
    NoCounterpartError,
    check_values,
    choose_rendezvous,
    chosen_gpus,
    count_ranks,
    is_for_one_machine,
)
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

ELSEWHERE = "this line is for another launcher; nothing was started"
SUBMITS = "a launch submits the job itself where the cluster's YAML says `scheduler: slurm`"
NO_COUNTERPART = (
    "without it, the line to type here is shown; arguments of the program itself come after it"
)

_LOCAL, _LAUNCH, _PLAIN = "cluster=local", "task.entry=launch", "task.entry=plain"
_ONE, _PER_GPU = "cluster.nproc_per_node=1", "cluster.nproc_per_node=auto"
_LOCAL_RANK = "task.local_rank_arg=--local_rank"
_LAUNCHERS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("torchrun",): (_ONE,),
    ("torch.distributed.run",): (_ONE,),
    ("torchelastic.distributed.launch",): (_ONE,),
    ("torch.distributed.launch",): (_ONE, _LAUNCH),
    ("accelerate", "launch"): (_PER_GPU,),
    ("accelerate.commands.launch",): (_PER_GPU,),
    ("deepspeed",): (_PER_GPU, _LOCAL_RANK),
    ("deepspeed.launcher.runner",): (_PER_GPU, _LOCAL_RANK),
}
"""How a line begins, after `python -m` where that is there, and what it means by itself.

Unless a flag sets the same key, or takes it back by the same word after a `~`.
"""

_OTHERS = {
    **dict.fromkeys(("mpirun", "mpiexec", "horovodrun", "pdsh"), "mpirun, horovodrun"),
    **dict.fromkeys(("srun", "sbatch", "salloc"), "Slurm"),
    "torchx": "torchx",
    "colossalai": "Colossal-AI",
    **dict.fromkeys(("fabric", "lightning"), "Lightning's fabric run"),
    **dict.fromkeys(("docker", "podman", "apptainer", "singularity", "enroot"), "docker run"),
    "bash": "Shell scripts with DISTRIBUTED_ARGS",
}
"""Launchers whose lines are not rewritten, by the part of the page that has them."""

_ALONE = {"standalone": "", "multi_gpu": "", "same_network": "", "use_env": f"~{_LAUNCH}"}
_ALONE |= {"no_local_rank": f"~{_LOCAL_RANK}"}
_KINDS = {"m": "task.module", "module": "task.module", "no_python": "task.command"}
_VALUED = {*KEYS, *FOUND, "hostfile", "num_processes", "gpu_ids"}
_VARIABLES = {"CUDA_VISIBLE_DEVICES": "gpu_ids", "MASTER_PORT": "master_port"}
_OF_RANKS = {"MASTER_ADDR": "master_addr", "NODE_RANK": "node_rank", "RANK": "node_rank"}
_OF_RANKS |= {"WORLD_SIZE": "nnodes", "LOCAL_RANK": "rdzv_id"}
"""Variables by the flags that say the same: any launcher sets those of ranks itself."""

_GRAMMAR = ("rdzv_conf", "signals_to_handle")
_BARE = re.compile(r"[\w./~@%+-]+")
_PYTHON_OPTION = re.compile(r"-([WX])(.*)|-[bBdEiIOPqsSuvx]+")


def translated(words: Sequence[str]) -> Problem | None:
    """Return the problem of a launch in the words of another launcher, with the line to type.

    Or with the flag that has no counterpart; None if it names no launcher and no file here.
    """
    left, assigned = list(words), list[str]()
    while left and is_override(left[0]):
        assigned.append(left.pop(0))
    typed = left[:1]
    if typed and (part := _OTHERS.get(Path(typed[0]).name)):
        on_hosts = f"\n`{this_program()} exec -- COMMAND` runs a command on every host"
        hint = on_the_page(part) + on_hosts * (typed == ["pdsh"])
        hint += f"\n{SUBMITS}: {_place('slurm.md')}" * (part == "Slurm")
        return Problem("command line", ELSEWHERE, hint)
    launcher: tuple[str, ...] | None = ()
    try:
        launcher = _take_launcher(left)
        ours, flags = _split_assigned(assigned, launcher)
        kind = _take_flags(left, flags, ours, {} if launcher is None else _KINDS)
        if not left or (launcher is None and not names_file(left[0])):
            return None
        program, *args = left
        if kind != "task.script" and Path(program).name in {names[0] for names in _LAUNCHERS}:
            raise NoCounterpartError(f"{program} is a launcher itself")
        args = _take_ours(args, ours) if launcher is None else args
        chosen = _settings(flags, ours, launcher)
    except NoCounterpartError as error:
        if launcher is None:
            return None
        hint = f"{NO_COUNTERPART}\n{on_the_page()}"
        return Problem("command line", f"{ELSEWHERE}; {error}", hint)
    is_bare = _BARE.fullmatch(program) is not None
    quoted = f"[{_quoted(program)}]" if kind == "task.command" else _quoted(program)
    chosen.append(f"{kind}={program if is_bare else quoted}")  # a command that is text is split
    hint = f"here that is: {this_program()} {line([*chosen, *(['--', *args] if args else [])])}"
    if _PLAIN in chosen:
        hint += f"\nwhich is one process; {_PER_GPU} in place of {_PLAIN} is one per GPU"
    if _LOCAL in chosen and not any(word.startswith("cluster.nodes.") for word in chosen):
        hint += "\ncluster=NAME in its place takes other machines"
    elif not any(word.startswith("cluster=") for word in chosen):
        hint += "\nand cluster=NAME chooses the machines"
    is_program_alone = typed == [program]
    message = f"{program!r} is neither KEY=VALUE nor a flag" if is_program_alone else ELSEWHERE
    return Problem("command line", message, hint)


def on_the_page(part: str = "") -> str:
    """Return where lines of many launchers are; an installed copy of the runner has no pages."""
    under = f", under {part!r}" if part else ""
    return f"lines of many launchers, with ours beside them: {_place('command-lines.md')}{under}"


def _place(name: str) -> str:
    """Return where a page is."""
    page = Path(__file__).parents[2] / "docs" / name
    return str(page) if page.exists() else f"docs/{name} of the runner"


def _take_launcher(left: list[str]) -> tuple[str, ...] | None:
    """Take the name of a launcher off the words; return what it means, None without one."""
    is_python = re.fullmatch(r"python[\d.]*", Path(*left[:1]).name) is not None
    python, options = left.pop(0) if is_python else "", list[str]()
    while python and left and (option := _PYTHON_OPTION.fullmatch(left[0])):
        options.append(left.pop(0))
        if option[1] and not option[2]:
            options += [left.pop(0)] if left else []
    path = [f"cluster.python={python}"] if "/" in python else []
    start = left[:1].count("-m")
    for names, means in _LAUNCHERS.items():
        if tuple(Path(word).name for word in left[start : start + len(names)]) == names:
            del left[: start + len(names)]
            return (*path, *means)  # it hands no option of Python on to the ranks
    if lost := [option for option in options if option != "-u"]:
        raise NoCounterpartError(f"{lost[0]} has no counterpart here")
    return (*path, _PLAIN) if python else None


def _split_assigned(
    assigned: Sequence[str], launcher: tuple[str, ...] | None
) -> tuple[list[str], dict[str, str]]:
    """Return settings from what is assigned before a launcher, and what a flag says as well."""
    ours, flags = list[str](), dict[str, str]()
    of_flags = _VARIABLES | (_OF_RANKS if _PLAIN in (launcher or ()) else {})
    of_shell = "[A-Z_][A-Z0-9_]*" if launcher is None else r"[A-Za-z_]\w*"
    for word in assigned:
        name, _, value = word.partition("=")
        if not re.fullmatch(of_shell, name) or _is_setting(word):
            ours.append(word)
        elif name in of_flags:
            flags[of_flags[name]] = value
        elif name not in _OF_RANKS:
            is_number = re.fullmatch(r"0|[1-9]\d*", value) is not None
            ours.append(f"task.env.{name}={value if is_number else _quoted(value)}")
    return ours, flags


def _take_flags(
    left: list[str], flags: dict[str, str], ours: list[str], kinds: Mapping[str, str]
) -> str:
    """Take the flags and settings before the program; return the key of the program."""
    kind = "task.script"
    while left and (left[0].startswith("-") or is_override(left[0])):
        word = left.pop(0)
        name, equals, value = word.lstrip("-").partition("=")
        name = name.replace("-", "_")
        if word == "--" and kinds:
            break
        if is_override(word):
            ours.append(word)
        elif name in kinds:
            kind = kinds[name]
        elif name in _ALONE:
            flags[name] = ""
        elif name in _VALUED and (equals or left):
            flags[name] = value if equals else left.pop(0)
        else:
            raise NoCounterpartError(f"{word} has no counterpart here")
    return kind


def _take_ours(args: list[str], ours: list[str]) -> list[str]:
    """Take settings of ours off words after a program; what follows `--` is the program's."""
    end = args.index("--") if "--" in args else len(args)
    ours += filter(_is_setting, args[:end])
    return [word for word in args[:end] if not _is_setting(word)] + args[end + 1 :]


def _settings(flags: dict[str, str], ours: list[str], launcher: Sequence[str] | None) -> list[str]:
    """Return ours, what a launcher means by itself, and its flags, as settings."""
    check_values(flags)
    typed = {key: value for key, _, value in (word.partition("=") for word in ours)}
    is_one = is_for_one_machine(flags) and "cluster" not in {*flags, *typed}
    is_local = is_one and (launcher is not None or "standalone" in flags)
    taken_back = {f"{_ALONE.get(name)}" for name in flags}
    count_ranks(flags)
    said = choose_rendezvous(flags, typed, is_local=is_local)
    said += chosen_gpus(flags, is_local=is_local)
    for name in filter(KEYS.get, flags):
        is_bare = name in _GRAMMAR or re.fullmatch(r"[\w.:/-]+", flags[name])
        said.append(f"{KEYS[name]}={flags[name] if is_bare else _quoted(flags[name])}")
    keys = {word.partition("=")[0] for word in [*ours, *said]}
    means = [*[_LOCAL] * is_local, *(launcher or ())]
    means = [w for w in means if w.partition("=")[0] not in keys and f"~{w}" not in taken_back]
    return [*dict.fromkeys([*ours, *means, *said])]


def _quoted(text: str) -> str:
    """Return text as Hydra and OmegaConf are to read it."""
    return hydra_value(text.replace("${", r"\${"))


def _is_setting(word: str) -> bool:
    """Return whether a word is a setting of ours, wherever it stands."""
    from runner.config.schema import RunnerConfig  # noqa: PLC0415 (brings Hydra)

    section = word.lstrip("+~").partition("=")[0].partition(".")[0]
    sections = {option.name for option in dataclasses.fields(RunnerConfig)}
    return is_override(word) and section in sections
