"""Kinds: the legal values of each key in words, and what reads one, or a whole section.

YAML and the command line give texts as they were written, `true`, `false` and null.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from runner.control.record.launch_record import LATEST
from runner.core.errors import ConfigError, Problem, join_or, suggest
from runner.core.shell import this_program
from runner.core.spec import Mount, PortRange, Spec, keys_of, section_of
from runner.core.wire.facts import MAX_PORT
from runner.core.wire.files import glob_problem
from runner.core.wire.paths import RUN_ID_PATTERN

LOGIN_RULE = "hosts are logged in to with a key or an agent, without passwords: cluster.ssh.key"
RESERVED_ENV = {
    "MASTER_ADDR": "the plan chooses it; cluster.nodes.NODE.addr says how others reach a node",
    "MASTER_PORT": "cluster.master_port chooses it",
    "WORLD_SIZE": "cluster.nproc_per_node and the nodes decide it",
}
"""Environment variables that a key decides, and the key."""

LAUNCHER_ENV = re.compile(
    r"PET_.*|RUNNER_(RUN_ID|NODE|METRICS|PREPARED)|(NODE_|LOCAL_|GROUP_|ROLE_)?RANK|NNODES"
    r"|(LOCAL|GROUP|ROLE)_WORLD_SIZE|PYTHON_EXEC"
)
LINE = r"[^\n\r\0]+"
PATH = r"(?!~[^/])[^\n\r\0]+"
TORCHRUN_OPTION = r"--(?!n[nop]|rdzv|ma|mod|sta(?!r)|run|lo|red|tee|h)[a-z][\w-]*(=[^\0]*)?"
SHELL_VALUE = re.compile(r"\$\w+|(?<![^:])~(?=/|$)")


class Problems(list[Problem]):
    def report(self, where: str, message: str, hint: str = "") -> None:
        self.append(Problem(where, message, hint))

    def raise_any(self) -> None:
        if self:
            raise ConfigError(self)


@dataclass(eq=False)
class Illegal(Exception):
    """A value that a key cannot have."""

    message: str = ""  # where the legal values do not say why
    hint: str = ""


@dataclass(frozen=True)
class Kind:
    """The legal values of a key."""

    legal: str  # in words
    read: str | Callable[..., Any]  # the form of a text, or what returns the value or is `Illegal`
    words: Mapping[Any, Any] = field(default_factory=dict)  # what texts, bools and null stand for
    each: str = ""  # of a mapping: the legal values of an item; `read` takes its name, too


def scalar_text(value: object) -> str | None:
    """Return a scalar of YAML as text (`true`, `0.1`), or None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None


def _same(value: object) -> object:
    return value  # `resolve` judges it, which knows what else it depends on


def _text(value: object, form: str) -> str:
    text = scalar_text(value)
    if text is None or not re.fullmatch(form, text):
        raise Illegal
    return text


def _texts(value: object, form: str = r"[^\0]+", separator: str | None = None) -> tuple[str, ...]:
    """Read a list of texts; a text alone is a list of one, or of its parts."""
    if value is None:
        return ()
    if separator and isinstance(value, str):
        value = [part.strip() for part in value.split(separator)]
    return tuple(_text(item, form) for item in _items(value))


def _words(value: object) -> tuple[str, ...]:
    """Read a list of texts, which may be empty; a text alone is a list of one."""
    if isinstance(value, str) and re.search(r"\s", value):
        raise Illegal(hint=f"such as [{', '.join(value.split())}]")
    return _texts(value, r"[^\0]*")


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _whole_number(value: object, least: int = 0, most: int = 10**9) -> int:
    number = int(_text(value, r" *\d{1,10} *"))
    if not least <= number <= most:
        raise Illegal
    return number


def _range(value: object, separator: str, most: int = 10**9) -> tuple[int, int | None]:
    first, found, last = _text(value, LINE).partition(separator)
    low = _whole_number(first, 1, most)
    return low, _whole_number(last, low, most) if found else None


def _ports(value: object) -> PortRange:
    if value in (None, "auto"):
        return PortRange()
    first, last = _range(value, "-", MAX_PORT)
    return PortRange(first, last or first)


def _nnodes(value: object) -> tuple[int | None, int]:
    """Read the fewest and the most nodes; the fewest is None for no range."""
    first, last = _range(value, ":")
    return (None, first) if last is None else (first, last)


def _seconds(value: object, least: float = 0, most: float = 1e9) -> float:
    try:
        seconds = float(_text(value, LINE))
    except ValueError:
        raise Illegal from None
    if not (seconds > 0 and least <= seconds <= most):
        raise Illegal
    return seconds


def _gpus(value: object) -> int | tuple[int, ...]:
    if not isinstance(value, list):
        return _whole_number(value)
    devices = tuple(map(_whole_number, value))
    if len(set(devices)) < len(devices):
        raise Illegal
    return devices


def _address(value: object) -> str:
    address = _text(value, LINE)
    if "@" in address or re.fullmatch(r"[^:]+:\d+", address):  # a password may be in it
        hint = f"a node has the keys host, user and port; {LOGIN_RULE}"
        raise Illegal("must be a name or an address alone", hint)
    return _text(address, r"(?!.*://)[^\s-]\S*")


def _mounts(value: object) -> tuple[Mount, ...]:
    parts = [each.split(":") for each in _texts(value, r"/[^:]*:/[^:]*(:r[ow])?")]
    return tuple(Mount(part[0], part[1], read_only=part[2:] == ["ro"]) for part in parts)


def _globs(value: object) -> tuple[str, ...]:
    patterns = _texts(value)
    for pattern in patterns:
        if problem := glob_problem(pattern):
            raise Illegal(f"{pattern!r} {problem}", "such as results/*.pt, where the ranks run")
    return patterns


def _pattern(value: object) -> str:
    pattern = _text(value, LINE)
    try:
        compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Illegal(f"{pattern} is no regular expression: {error}") from None
    if not compiled.groupindex and compiled.groups not in (1, 2):
        needed = "needs a group for the step, may have one for all steps, or named groups"
        raise Illegal(f"{pattern} {needed}", r"such as (?P<step>\d+) loss (?P<loss>\S+)")
    return pattern


def _variable_name(name: str, *, is_removed: bool = False) -> str:
    reason = RESERVED_ENV.get(name, "the runner or torchrun sets it for each rank")
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise Illegal(f"{name!r} is no name for an environment variable")
    if is_removed and name in ("RUNNER_RUN_ID", "RUNNER_NODE"):
        raise Illegal(f"{name} cannot be taken out: the runner finds a run by it")
    if not is_removed and not is_settable(name):
        raise Illegal(f"{name} cannot be set: {reason}")
    return name


def is_settable(name: str) -> bool:
    return name not in RESERVED_ENV and not LAUNCHER_ENV.fullmatch(name)


def _names_of_variables(value: object, wildcard: str = "_") -> tuple[str, ...]:
    texts = _texts(value)
    for text in texts:
        _variable_name(text.replace(wildcard, "_"))
    return texts


def _variable(value: object, name: str) -> str | None:
    _variable_name(name, is_removed=value is None)
    if value is None:
        return None
    text = _text(value, r"[^\0]*")
    if match := SHELL_VALUE.search(text):
        line = f'export {name}="{text}"'
        in_ranks = f"command: [bash, -c, '{line}; exec PROGRAM']"
        hint = f"bash reads cluster.setup: ['{line}'] once on each host, {in_ranks} in each rank"
        raise Illegal(f"{match[0]} reaches the program as it is: no shell reads this value", hint)
    return text


Words = Mapping[Any, Any]
NULL: Words = {None: None}
AUTO: Words = {None: None, "auto": None}
OFF: Words = {"off": 0.0, False: 0.0}
WORDS: Mapping[str, Words] = {"null": NULL, "auto": AUTO, "never": {"never": 0.0}, "off": OFF}
"""What stands for what, where a kind is called `... or WORD`."""

SIGNALS = "|".join(signal.Signals.__members__.keys() - {"SIGKILL", "SIGSTOP"})
KINDS: Mapping[str, Kind] = {
    "address": Kind("a name, an address or null", _address, NULL),
    "arguments": Kind("a mapping or null", _same),
    "bool": Kind("true or false", "(?!)", {True: True, False: False}),
    "command": Kind("a text, a list of texts or null", _same),
    "count": Kind("a whole number from 0", _whole_number),
    "count from 1": Kind("a whole number from 1", partial(_whole_number, least=1)),
    "dry run": Kind(
        "false, true, offline, json or [offline, json]",
        lambda value: tuple(sorted({*_texts(value, "json|offline|true")})),
        {False: ()},
    ),
    "endpoint": Kind(
        "HOST:PORT, or null", r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):[1-9]\d{0,4}"
    ),
    "environment": Kind("a mapping such as {NAME: value}", _variable, each="a text or null"),
    "file here": Kind("the path of a file here, or null", PATH, NULL),
    "folders": Kind("a list of folders", partial(_texts, form=r"\w[\w.-]*(/\w[\w.-]*)*")),
    "gpus": Kind("a whole number from 0, a list of devices such as [0, 2], or auto", _gpus, AUTO),
    "interval": Kind("seconds, 1 to 3600", partial(_seconds, least=1, most=3600)),
    "jump hosts": Kind("a text, a list of texts or null", partial(_texts, separator=",")),
    "modules": Kind(
        "true, false, or a list of modules such as [torch, transformers]",
        partial(_texts, form=r"[^\W\d]\w*(\.[^\W\d]\w*)*"),
        {True: ("torch",), False: ()},
    ),
    "mounts": Kind("a list of absolute paths such as /data:/data:ro", _mounts),
    "names of nodes": Kind("a list of names and ranges", _texts),
    "names of variables": Kind("a list of names of variables", _names_of_variables),
    "patterns of variables": Kind(
        "a list of names or patterns such as WANDB_*", partial(_names_of_variables, wildcard="*")
    ),
    "nnodes": Kind("a whole number from 1, a range such as 2:4, or null", _nnodes, AUTO),
    "node or master": Kind("the name of a node, master (the first), or null for all", LINE),
    "nodes": Kind("a mapping of names or ranges to nodes, or a number", _same),
    "options of torchrun": Kind(
        "a list of long options that the runner does not choose, such as [--role=trainer]",
        partial(_texts, form=TORCHRUN_OPTION),
    ),
    "path": Kind("a path without ~NAME", PATH),
    "pattern of lines": Kind("a regular expression such as `epoch (\\d+)`, or null", _pattern),
    "patterns of files": Kind("a list of paths or patterns such as results/*.pt", _globs),
    "port": Kind("1 to 65535 or null", partial(_whole_number, least=1, most=MAX_PORT), NULL),
    "ports": Kind("a port, a range such as 29500-29600, or auto", _ports),
    "ranks": Kind(
        "all, a rank, or a list such as [0, 3]",
        lambda value: tuple(sorted({*map(_whole_number, _items(value))})),
        {"all": None},
    ),
    "ranks per node": Kind("a whole number from 1, or auto", partial(_whole_number, least=1), AUTO),
    "run id": Kind(
        "up to 63 of a-z, 0-9 and '-', no '-' in front, or null",
        f"(?!{LATEST}$){RUN_ID_PATTERN.pattern}",
    ),
    "seconds": Kind("seconds, more than 0", _seconds),
    "settings of a rendezvous": Kind(
        "a mapping such as {join_timeout: 600}", r"[^,=\s]+", each="a text without , = and spaces"
    ),
    "signal": Kind("a signal to handle, such as SIGUSR1", SIGNALS),
    "size": Kind("a number with b, k, m or g such as 16g, or null", r"[1-9]\d*[bkmg]?"),
    "text": Kind("a text of one line, or null", LINE, NULL),
    "texts": Kind("a list of texts", _texts),
    "time limit": Kind(
        "minutes, 2:30:00 or 1-12:00:00, or null", r"\d+|\d+:\d\d(:\d\d)?|\d+-\d\d?(:\d\d){0,2}"
    ),
    "words": Kind("a list of texts", _words),
}


def kind_of(name: str | Sequence[str]) -> Kind:
    """Return a kind by its name, or that of a few words."""
    if not isinstance(name, str):
        return Kind(join_or(name), partial(_choice, legal=name))
    if name in KINDS:
        return KINDS[name]
    base, _, word = name.rpartition(" or ")
    kind = KINDS[base]
    return dataclasses.replace(kind, legal=f"{kind.legal}, or {word}", words=WORDS[word])


def _choice(value: object, legal: Sequence[str]) -> str:
    text = scalar_text(value) or ""
    if text not in legal:
        raise Illegal(hint=suggest(text, legal))
    return text


def unknown_key(where: str, key: str, legal: Sequence[str]) -> Problem:
    hint = suggest(key, legal, f"{where}." if where else "")
    elsewhere = [full for full in _all_keys(Spec) if full.rpartition(".")[2] == key]
    if "passw" in key and where.startswith("cluster"):
        hint = LOGIN_RULE
    elif elsewhere and not hint:
        hint = f"did you mean {join_or(elsewhere)}?"
    elif where in ("", "task") and not hint:
        hint = f"if it is for the program: task.args.{key}=…"
    near = difflib.get_close_matches(key, legal, n=3, cutoff=0.4)
    listed = f"near it: {', '.join(near)}" if near else f"`{this_program()} config` prints all keys"
    return Problem(f"{where}.{key}".lstrip("."), f"there is no such key; {listed}", hint)


def _all_keys(section: type, before: str = "") -> Iterator[str]:
    for name, option in keys_of(section).items():
        yield f"{before}{name}"
        if nested := section_of(option):
            yield from _all_keys(nested, f"{before}{name}.")


def legal_values(option: dataclasses.Field[Any]) -> str:
    kind = option.metadata["kind"]
    if section_of(option):
        return "see below"
    if isinstance(kind, tuple) and option.default == "":
        kind = (*kind, "null")
    return kind_of(kind).legal


def read_value(problems: Problems, where: str, kind_name: str | Sequence[str], value: Any) -> Any:
    """Return a value as its kind reads it, None if it is not legal, which is reported."""
    kind = kind_of(kind_name)
    if not kind.each:
        return _read(problems, where, kind, value)
    if not isinstance(value, Mapping) and value is not None:
        problems.report(where, f"must be {kind.legal}, not {value!r}")
        return None
    items = {str(name): item for name, item in (value or {}).items()}
    return {
        name: _read(problems, f"{where}.{name}", kind, item, name) for name, item in items.items()
    }


def _read(problems: Problems, where: str, kind: Kind, value: Any, *name: str) -> Any:
    is_word = value is None or isinstance(value, (bool, str))
    if is_word and value in kind.words:
        return kind.words[value]
    try:
        return _text(value, kind.read) if isinstance(kind.read, str) else kind.read(value, *name)
    except Illegal as illegal:
        message = illegal.message or f"must be {kind.each or kind.legal}, not {value!r}"
        problems.report(where, message, illegal.hint)
        return None


def read_section(
    problems: Problems, where: str, section: type, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a section, those below it as objects of their classes.

    A key that is not among the values, or has a value that is not legal, is left out.
    """
    read: dict[str, Any] = {}
    options = keys_of(section)
    problems += [unknown_key(where, key, list(options)) for key in values if key not in options]
    for name, option in options.items():
        if name not in values:
            continue
        key = f"{where}.{name}" if where else name
        value = values[name]
        known = len(problems)
        nested = section_of(option)
        found: Any = ""
        if nested and isinstance(value, Mapping):
            found = nested(**read_section(problems, key, nested, value))
            known = len(problems)
        elif nested:
            problems.report(key, f"takes a mapping of keys to values, not {value!r}")
        elif value is not None or option.default != "":
            found = read_value(problems, key, option.metadata["kind"], value)
        if len(problems) == known:
            read[name] = found
    return read
