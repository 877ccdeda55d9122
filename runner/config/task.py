"""The task of a run: its program, its arguments, and the settings that each entry allows."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import secrets
import shlex
import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from runner.config.overrides import hydra_value, override_key, with_arguments
from runner.config.schema import DebugConfig, TaskConfig, TorchrunConfig
from runner.config.validation import SpecInputs, Validator, join_or, scalar_text
from runner.core.errors import ConfigError, Problem
from runner.core.model.plan import DebugRank
from runner.core.model.slurm import SlurmSpec
from runner.core.model.spec import Node, Rendezvous, Task
from runner.core.planning.launch_command import LOCAL_RANK_MACRO

SAYS_NOTHING = (
    "main",
    "train",
    "run",
    "start",
    "__main__",
    "src",
    "scripts",
    "code",
    "project",
    "",
)
"""Names of programs and of folders that do not tell one project from another."""

PROGRAM_KEYS = ("module", "script", "command")
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\"""", re.DOTALL)
VARIABLE = re.compile(r"\$\{?[A-Za-z_]\w*\}?")
IN_DOUBLE_QUOTES = re.compile(r"`|\$\(|" + VARIABLE.pattern)
NEEDS_SHELL = re.compile(r"\n|&&|\|\||[|&;<>]|(?<!\S)~(?=/|\s|\Z)|" + IN_DOUBLE_QUOTES.pattern)
SHELL_WORD = re.compile(
    r"[A-Za-z_]\w*=\S*|(?:\.|cd|eval|exec|export|set|source|ulimit|umask|unset)(?!\S)"
)
"""What comes before a program, or in place of one, in a shell alone."""
REFUSED_ELSEWHERE = "max_restarts"
"""The option of torchrun that any static rendezvous refuses."""


def read_task(validator: Validator, inputs: SpecInputs) -> Task:
    """Return the task, if it has one program."""
    task = validator.section("task", inputs.values["task"], TaskConfig)
    program_keys = [key for key in PROGRAM_KEYS if task[key] not in (None, "", [])]
    if not program_keys:
        keys = join_or([f"task.{key}" for key in PROGRAM_KEYS])
        validator.add("task", f"there is no program; set {keys}", "such as task.script=train.py")
    if len(program_keys) > 1:
        message = f"there is more than one program: {' and '.join(program_keys)}"
        validator.add("task", message, f"task.{program_keys[0]}=null removes one")
    kind = program_keys[0] if program_keys else "script"
    for key in ("command", "args", "extra_args"):
        if isinstance(task[key], str):
            _refuse_shell_syntax(validator, key, task[key], expands=bool(task["args_expand"]))
    target, *words = _read_program(validator, kind, task[kind])
    local_rank = _local_rank_words(validator, task["local_rank_arg"], task["entry"])
    return Task(
        name=inputs.task,
        kind=kind,
        target=target,
        args=(
            *words,
            *local_rank,
            *render_arguments(validator, task["args"], task["args_style"]),
            *_raw_words(validator, "task.extra_args", task["extra_args"]),
        ),
        env=task["env"],
        outputs=task["outputs"],
        entry=task["entry"],
        decides=task["decides"],
        expands_args=_expands_args(validator, task),
        preload=task["preload"],
    )


def append_arguments(config: DictConfig, words: Sequence[str]) -> list[str]:
    """Give the program words as they are, after its own; return overrides that do the same."""
    if not words:
        return []
    own = OmegaConf.select(config, "task.extra_args")
    if isinstance(own, str):  # maybe of an interpolation, which stays as it is
        own = cast("Any", OmegaConf.to_container(config.task, resolve=False))["extra_args"]
    elif own is not None:
        own = OmegaConf.to_container(own, resolve=False)
    config.task.extra_args = both = with_arguments(own, words)
    return [f"task.extra_args={hydra_value(both)}"]


def refuse_overruled_arguments(task: DictConfig, overrides: Sequence[str]) -> None:
    """Raise ConfigError for arguments that are set now, and again by words that come after them.

    Such words are in `task.extra_args` of a task's YAML, or of the record of a run.
    """
    keys = {override_key(word): word for word in overrides}
    own: Any = cast("Any", OmegaConf.to_container(task, resolve=False))["extra_args"]
    if "task.extra_args" in keys or not own:
        return
    text = own if isinstance(own, str) else shlex.join(map(str, own))
    flags = {word.partition("=")[0] for word in text.split()}
    problems = []
    for key, word in keys.items():
        name = key.removeprefix("task.args.")
        found = sorted(flags & {name, f"--{name}"}) if name != key else []
        if found:
            message = f"{found[0]} is in task.extra_args, too (words after `--` are), and would win"
            hint = f"-- {found[0]} VALUE comes last and wins\n~task.extra_args leaves out: {text}"
            problems.append(Problem(word, message, hint))
    if problems:
        raise ConfigError(problems)


def _read_program(validator: Validator, kind: str, value: object) -> list[str]:
    where = f"task.{kind}"
    if kind == "command":
        words = value if isinstance(value, list) else _split_words(validator, where, value)
        return list(validator.text_list(where, words)) or [""]
    text = validator.optional_line(where, value) or ""
    is_module_name = re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", text) and not text.endswith(".py")
    if kind == "module" and not is_module_name:
        message = f"{text!r} is no module name such as package.train"
        validator.add(where, message, f"a file is task.script={text}")
    if kind == "script" and text.endswith(".ipynb"):
        converted = shlex.quote(f"{text.removesuffix('.ipynb')}.py")
        hint = f"jupyter nbconvert --to script {shlex.quote(text)}\ntask.script={converted}"
        validator.add(where, f"{text} is a notebook, which Python cannot run", hint)
    if kind == "script" and text.endswith((".sh", ".bash")):
        hint = f"task.command={shlex.quote(f'[bash, {hydra_value(text)}]')}"
        validator.add(where, f"{text} is a shell script, which Python cannot run", hint)
    return [text]


def _refuse_shell_syntax(validator: Validator, key: str, text: str, *, expands: bool) -> None:
    """Report what only a shell understands in a text, which none reads.

    `expands`: variables are replaced without one.
    """

    def seen_by_shell(quoted: re.Match[str]) -> str:
        in_double = re.sub(r"\\.", "", quoted[0]) if quoted[0].startswith('"') else ""
        return "_" + "".join(IN_DOUBLE_QUOTES.findall(in_double))

    text = text.strip()
    bare = text.replace(LOCAL_RANK_MACRO, "_").replace("\\\n", "")
    bare = QUOTED.sub(seen_by_shell, bare)
    if expands:
        bare = VARIABLE.sub("_", bare)
    if key == "command":
        found = SHELL_WORD.match(bare) or NEEDS_SHELL.search(bare)
        literal = with_arguments([], [text])[0]
        hint = f"in YAML: command: [bash, -c, {json.dumps(literal, ensure_ascii=False)}]"
        if "\n" not in text:
            typed = shlex.quote(f"[bash, -c, {hydra_value(literal)}]")
            hint = f"task.command={typed}\n{hint}"
    else:
        found = NEEDS_SHELL.search(bare.replace("\n", " "))
        hint = f"a list passes words as they are, such as task.{key}=[a, b]"
    if found is not None:
        what = "a second line" if found[0] == "\n" else f"'{found[0]}'"
        validator.add(f"task.{key}", f"{what} needs a shell, and programs start without one", hint)


def program_name(task: Mapping[str, Any]) -> str:
    """Return a short name for the program of a task without a YAML file.

    That of its folder or package, where its own is one that any program may have.
    """
    if task.get("module"):
        parts = str(task["module"]).split(".")
    elif task.get("script"):
        script = PurePath(os.path.normpath(Path.cwd() / str(task["script"])))
        parts = [*script.parent.parts, script.stem]
    else:
        command = task.get("command") or ""
        words = command if isinstance(command, list) else str(command).split()
        parts = [PurePath(str(words[0] if words else "")).stem]
    telling = (part for part in reversed(parts) if part.strip("/").lower() not in SAYS_NOTHING)
    return next(telling, parts[-1]) or "task"


def new_run_id(task: str) -> str:
    """Return a new run id, `MMDD-HHMM-TASK-xxxx`, with 1.7 million values of xxxx."""
    slug = re.sub(r"[^a-z0-9]+", "-", task.lower())[:40].strip("-") or "task"
    suffix = "".join(secrets.choice(string.ascii_lowercase + string.digits) for _ in range(4))
    return f"{datetime.now().astimezone():%m%d-%H%M}-{slug}-{suffix}"


def render_arguments(validator: Validator, args: object, style: str) -> list[str]:
    """Return `task.args` as words of a command line.

    argparse: `lr: 0.1` is `--lr 0.1`, true is the flag alone, false and null are nothing, a list is
    a flag with several values. equals: `--lr=0.1`, `--amp=True`, null is nothing. hydra: `lr=0.1`,
    `model.depth=3`. raw: a list of words, or a text that is split as a shell does.
    """
    if args in (None, "", [], {}):
        return []
    if (style == "raw") == isinstance(args, Mapping):
        hint = "raw takes a list of words, the others a mapping"
        validator.add("task.args", f"is {args!r}", hint)
        return []
    if isinstance(args, Mapping):
        render = RENDERERS[style]
        words = [word for key, value in args.items() for word in render(validator, key, value)]
    else:
        words = _raw_words(validator, "task.args", args)
    if any("\0" in word for word in words):
        validator.add("task.args", "no command line can hold a NUL character")
    return words


def _raw_words(validator: Validator, where: str, value: object) -> list[str]:
    """Return the words of a list as they are, or of a text that is split as a shell does."""
    items = value if isinstance(value, list) else _split_words(validator, where, value)
    return [_scalar_word(validator, f"{where}.{n}", item) for n, item in enumerate(items)]


def _split_words(validator: Validator, where: str, value: object) -> list[str]:
    """Split a text into words as a POSIX shell does."""
    try:
        return shlex.split((scalar_text(value) or "").replace("\\\n", ""))
    except ValueError as error:
        validator.add(where, f"{value!r} cannot be split into words: {str(error).lower()}")
        return []


def _scalar_word(validator: Validator, where: str, value: object) -> str:
    text = scalar_text(value)
    if text is None:
        hint = "task.args_style=hydra takes nested values"
        validator.add(where, f"{value!r} has no form as one word", hint)
    return text or ""


def _render_flag(validator: Validator, key: str, value: object) -> list[str]:
    """Return `--key value`, or `--key=-value`, which argparse does not take for a flag."""
    where, flag = f"task.args.{key}", _flag(validator, key)
    if value is None or value is False or value == []:
        return []
    if value is True:
        return [flag]
    if isinstance(value, list):
        return [flag, *(_list_item(validator, where, item) for item in value)]
    text = _scalar_word(validator, where, value)
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _flag(validator: Validator, key: str) -> str:
    if not re.fullmatch(r"[^\s=]+", key):
        validator.add(f"task.args.{key}", f"{key!r} is no name for a flag")
    return key if key.startswith("-") else f"--{key}"


def _list_item(validator: Validator, where: str, value: object) -> str:
    """Return one of several values of a flag: argparse knows -0.00001 as a number, not -1e-05."""
    text = _scalar_word(validator, where, value)
    if isinstance(value, float) and math.isfinite(value) and value < 0:
        text = format(Decimal(text), "f")
    if text.startswith("-") and not re.fullmatch(r"-\d+|-\d*\.\d+", text):
        message = f"a program would take {text!r} in a list for a flag"
        validator.add(where, message, "task.args_style=raw passes words as they are")
    return text


def _render_overrides(validator: Validator, key: str, value: object) -> Iterator[str]:
    """Yield `key=value` for every leaf, in the grammar of Hydra's overrides."""
    if isinstance(value, Mapping) and value:
        for inner, item in value.items():
            yield from _render_overrides(validator, f"{key}.{inner}", item)
        return
    if not re.fullmatch(r"[+~]{0,2}[\w$@/.:-]+", key):
        validator.add(f"task.args.{key}", f"{key!r} is no key that Hydra takes")
    yield f"{key}={hydra_value(value)}"


def _render_assignment(validator: Validator, key: str, value: object) -> Iterator[str]:
    """Yield `--key=value`, with bools as Python writes them."""
    where = f"task.args.{key}"
    if value is None:
        return
    if isinstance(value, list):
        hint = "task.args_style=raw passes words as they are"
        validator.add(where, f"{value!r} has no form as one value", hint)
        return
    text = str(value) if isinstance(value, bool) else _scalar_word(validator, where, value)
    yield f"{_flag(validator, key)}={text}"


RENDERERS: Mapping[str, Callable[[Validator, str, object], Iterable[str]]] = {
    "argparse": _render_flag,
    "equals": _render_assignment,
    "hydra": _render_overrides,
}
"""What makes words of one entry of `task.args`, by `task.args_style`."""


def _expands_args(validator: Validator, task: Mapping[str, Any]) -> bool:
    """Return whether `$RANK` and the like in arguments are replaced."""
    if task["args_expand"] and task["entry"] != "plain":
        message = f"{task['entry']} decides on the ranks after the plan is made"
        hint = (
            "set task.entry=plain, or leave it out: programs read RANK and the like from their "
            "environment, and task.local_rank_arg passes the local rank"
        )
        validator.add("task.args_expand", message, hint)
    return bool(task["args_expand"])


def _local_rank_words(validator: Validator, flag: str, entry: str) -> list[str]:
    """Return the argument that passes the local rank to an old script, if it needs one."""
    where = "task.local_rank_arg"
    if not flag:
        return []
    if not re.fullmatch(r"--?[A-Za-z][\w-]*", flag):
        validator.add(where, f"{flag!r} is no flag", "such as --local_rank, or --local-rank")
    if entry == "plain":
        message = "entry plain starts one process per node, so that there is no local rank"
        validator.add(where, message, "choose task.entry=torchrun, or leave it out")
    if entry == "srun":
        message = "entry srun replaces nothing in arguments: ranks read LOCAL_RANK"
        validator.add(where, message, "choose task.entry=torchrun, or leave it out")
    if entry == "launch":
        message = "torch.distributed.launch passes --local-rank by itself"
        hint = f"choose task.entry=torchrun, which passes {flag}, or leave it out"
        validator.add(where, message, hint)
    return [f"{flag}={LOCAL_RANK_MACRO}"]


def check_without_torchrun(
    validator: Validator,
    values: Mapping[str, Any],
    task: Task,
    nodes: Sequence[Node],
    rendezvous: Rendezvous,
) -> None:
    """Report the settings that a task without torchrun cannot have."""
    # A number of ranks above 1 counts where a node has it of its own.
    harmless = {"None", "1", str(values["cluster"]["nproc_per_node"])}
    entry = f"entry {task.entry}"
    for node in nodes if task.is_plain else ():
        if str(node.nproc) not in harmless:
            message = "entry plain starts one process per node, which may start its own workers"
            hint = "set it to 1 or auto, or task.entry=torchrun"
            validator.add(f"cluster.nodes.{node.name}.nproc_per_node", message, hint)
    if rendezvous.backend != "static":
        message = f"{rendezvous.backend} is torchrun's, and {entry} starts none"
        hint = "choose rendezvous=static, or task.entry=torchrun"
        validator.add("rendezvous.backend", message, hint)
    for name, default in dataclasses.asdict(TorchrunConfig()).items():
        if name != REFUSED_ELSEWHERE and values["torchrun"][name] not in (default, None):
            hint = "leave it out, or set task.entry=torchrun"
            validator.add(f"torchrun.{name}", f"{entry} starts no torchrun", hint)


def read_debug(
    validator: Validator, values: Mapping[str, Any], task: Task, slurm: SlurmSpec | None
) -> DebugRank | None:
    """Return the rank that is debugged; it has to be Python, on a node that we log in to."""
    debug = validator.section("debug", values, DebugConfig)
    if debug["rank"] is None:
        return None
    if task.kind == "command":
        message = "debugpy starts Python programs, and task.command may be any program"
        validator.add("debug.rank", message, "name it by task.script or task.module")
    if slurm:
        message = "a debugger's port on a node of a job would be open to everyone in its network"
        validator.add("debug.rank", message, "debug it without slurm: cluster.scheduler=direct")
    return DebugRank(debug["rank"], debug["port"] or DebugRank(0).port)
