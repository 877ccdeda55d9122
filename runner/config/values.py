"""Values: each kind of value that a key may have, read from what was written.

YAML and the command line give texts as they were written, `true`, `false` and null.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from runner.control.record.file_names import LATEST
from runner.core.model.facts import MAX_PORT
from runner.core.protocol.paths import is_run_id
from runner.core.protocol.remote_files import glob_problem
from runner.core.spec import USUAL_PRELOAD, Mount, PortRange

MAX_SECONDS = 1e9
LOGIN_RULE = "hosts are logged in to with a key or an agent, without passwords: cluster.ssh.key"
RUN_MARKS = ("RUNNER_RUN_ID", "RUNNER_NODE")
RESERVED_ENV = {
    "MASTER_ADDR": "the plan chooses it; cluster.nodes.NODE.addr says how others reach a node",
    "MASTER_PORT": "cluster.master_port chooses it",
    "WORLD_SIZE": "cluster.nproc_per_node and the nodes decide it",
    "LOCAL_WORLD_SIZE": "cluster.nproc_per_node decides it",
    "LOCAL_RANK": "torchrun sets it: a program that reads it wants task.entry=torchrun",
    "PYTHON_EXEC": "cluster.python chooses the interpreter",
}
"""Environment variables that a key decides, and the key."""

LAUNCHER_ENV = re.compile(
    r"PET_.*|RUNNER_(RUN_ID|NODE|METRICS)|(NODE_|GROUP_|ROLE_)?RANK|NNODES|(GROUP|ROLE)_WORLD_SIZE"
)
SHELL_VALUE = re.compile(r"\$\w+|(?<![^:])~(?=/|$)")


class Illegal(Exception):
    """A value that a key cannot have; `message` where the legal values do not say why."""

    def __init__(self, message: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


@dataclass(frozen=True)
class Kind:
    """The legal values of a key in words, and what reads one or raises `Illegal`."""

    legal: str
    read: Callable[..., Any]
    is_mapping: bool = False  # `read` takes a name and a value, for each


def scalar_text(value: object) -> str | None:
    """Return a scalar of YAML as text (`true`, `0.1`), or None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


def _bool(value: object) -> bool:
    if not isinstance(value, bool):
        raise Illegal
    return value


def whole_number(value: object, least: int = 0, most: int = 10**9) -> int:
    """Read a whole number."""
    text = "" if isinstance(value, bool) else scalar_text(value) or ""
    if not re.fullmatch(r"[0-9]{1,10}", text) or not least <= int(text) <= most:
        raise Illegal
    return int(text)


def _count(least: int, word: str = "") -> Kind:
    """Return the kind of whole numbers; `word` is for None."""

    def read(value: object) -> int | None:
        if word and value in (None, word):
            return None
        return whole_number(value, least)

    return Kind(f"a whole number from {least}{word and f', or {word}'}", read)


def _seconds(word: str = "", least: float = 0, most: float = MAX_SECONDS) -> Kind:
    """Return the kind of time spans; null is None, another word 0."""

    def read(value: object) -> float | None:
        if word == "null" and value is None:
            return None
        if word in ("off", "never") and value in (word, False):
            return 0.0
        try:
            seconds = float("" if isinstance(value, bool) else scalar_text(value) or "")
        except ValueError:
            raise Illegal from None
        if not (seconds > 0 and least <= seconds <= most):
            raise Illegal
        return seconds

    span = f"{least:g} to {most:g}" if least else "more than 0"
    return Kind(f"seconds, {span}{word and f', or {word}'}", read)


def _port(value: object) -> int | None:
    return None if value is None else whole_number(value, 1, MAX_PORT)


def _ports(value: object) -> PortRange:
    if value in (None, "auto"):
        return PortRange()
    first, dash, last = str(value).partition("-")
    low = whole_number(first.strip(), 1, MAX_PORT)
    high = whole_number(last.strip(), low, MAX_PORT) if dash else low
    return PortRange(low, high)


def _nnodes(value: object) -> tuple[int | None, int] | None:
    """Read the fewest and the most nodes; the fewest is None for no range."""
    if value in (None, "auto"):
        return None
    lowest, colon, highest = str(value).partition(":")
    low = whole_number(lowest.strip(), 1)
    return (low, whole_number(highest.strip(), low)) if colon else (None, low)


def _text(value: object) -> str | None:
    if value is None:
        return None
    line = scalar_text(value)
    if not line or re.search(r"[\n\r\0]", line):
        raise Illegal
    return line


def _path(value: object) -> str:
    path = _text(value)
    if path is None:
        raise Illegal
    if re.match("~[^/]", path):
        raise Illegal(f"{path}: only ~/ is replaced", "write the whole path")
    return path


def _file_here(value: object) -> str | None:
    return None if value is None else _path(value)


def _rdzv_setting(name: str, value: object) -> str:
    setting = scalar_text(value)
    if name == "is_host":
        raise Illegal("the plan decides that: cluster.master is the host")
    if setting is None or re.search(r"[,=\s]", f"{name}{setting}"):
        raise Illegal(f"must be a text without ',', '=' or space, not {value!r}")
    return setting


def _signals(value: object) -> tuple[str, ...]:
    names = _texts(value.split(",") if isinstance(value, str) else value)
    if not signal.Signals.__members__.keys() >= {*names}:
        raise Illegal
    if names and "SIGTERM" not in names:
        raise Illegal("SIGTERM must be among them: a run is stopped by it")
    return names


def _signal(value: object) -> str:
    name = "SIGUSR1" if value is None else str(value)
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        raise Illegal(f"{name} is no signal that a program can handle", "such as SIGUSR2")
    return name


def _address(value: object) -> str | None:
    address = _text(value)
    user, _, host = (address or "").rpartition("@")
    if ":" in user:  # no message may repeat it
        raise Illegal(f"a password has no place here; {LOGIN_RULE}")
    if user or re.fullmatch(r"[^:]+:\d+", host):
        hint = "a node has the keys host, user and port"
        raise Illegal(f"must be an address alone, not {address!r}", hint)
    if address and ("://" in address or not re.fullmatch(r"[^\s-]\S*", address)):
        raise Illegal(f"{address!r} is no host name or address")
    return address


def _texts(value: object) -> tuple[str, ...]:
    """Read a list of texts; a text alone is a list of one."""
    if value is None:
        return ()
    found = [scalar_text(item) for item in (value if isinstance(value, list) else [value])]
    if not all(found) or any("\0" in str(each) for each in found):
        raise Illegal("names an empty text" if "" in found else "")
    return tuple(map(str, found))


def _jump(value: object) -> tuple[str, ...]:
    return tuple(hop.strip() for word in _texts(value) for hop in word.split(","))


def _patterns_of_files(value: object) -> tuple[str, ...]:
    patterns = _texts(value)
    for pattern in patterns:
        if problem := glob_problem(pattern):
            hint = "it is relative to where the ranks run, such as results/*.pt"
            raise Illegal(f"{pattern!r} {problem}", hint)
    return patterns


def _pattern_of_lines(value: object) -> str:
    pattern = _text(value) or ""
    hint = r"such as (?P<step>\d+) loss (?P<loss>\S+)"
    try:
        compiled = re.compile(pattern, re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise Illegal(f"{pattern} is no regular expression: {error}", hint) from None
    if pattern and not compiled.groupindex and compiled.groups not in (1, 2):
        needed = "needs a group for the step, may have one for all steps, or named groups"
        raise Illegal(f"{pattern} {needed}", hint)
    return pattern


def _gpus(value: object) -> int | tuple[int, ...] | None:
    if value in (None, "auto"):
        return None
    if not isinstance(value, list):
        return whole_number(value)
    devices = tuple(whole_number(item) for item in value)
    if len(set(devices)) < len(devices):
        raise Illegal(f"must name distinct devices such as [0, 2], not {value!r}")
    return devices


def _modules(value: object) -> tuple[str, ...]:
    if isinstance(value, bool) or value is None:
        return USUAL_PRELOAD if value else ()
    if not isinstance(value, list):
        raise Illegal
    names = _texts(value)
    if not all(part.isidentifier() for name in names for part in name.split(".")):
        raise Illegal
    return names


def _ranks(value: object) -> tuple[int, ...] | None:
    if value == "all":
        return None
    items = value if isinstance(value, list) else [value]
    return tuple(sorted({whole_number(item) for item in items}))


def _dry_run(value: object) -> tuple[str, ...]:
    words = {scalar_text(word) for word in (value if isinstance(value, list) else [value])}
    if len(words - {"json"}) > 1 or not words or not words <= {"false", "true", "offline", "json"}:
        raise Illegal
    if "false" in words and len(words) > 1:
        raise Illegal
    return tuple(sorted(map(str, words - {"false"})))


def _run_id(value: object) -> str:
    run_id = scalar_text(value) or ""
    if not is_run_id(run_id):
        raise Illegal(hint="leave it out for a generated one")
    if run_id == LATEST:
        raise Illegal(f"{LATEST} is the name of the last run, whichever that is")
    return run_id


def check_env_name(name: str, *, removed: bool = False) -> None:
    """Refuse the name of a variable that cannot be set, or not be taken out."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise Illegal(f"{name!r} is no name for an environment variable")
    if removed and name in RUN_MARKS:
        raise Illegal(f"{name} cannot be taken out: the runner finds a run by it")
    if not removed and (name in RESERVED_ENV or LAUNCHER_ENV.fullmatch(name)):
        reason = RESERVED_ENV.get(name, "the runner or torchrun sets it for each rank")
        raise Illegal(f"{name} cannot be set: {reason}")


def _variable(name: str, value: object) -> str | None:
    check_env_name(name, removed=value is None)
    text = scalar_text(value)
    if value is not None and (text is None or "\0" in text):
        raise Illegal(f"must be a text, not {value!r}")
    if text and (match := SHELL_VALUE.search(text)):
        line = f'export {name}="{text}"'
        hint = f"bash on the hosts reads cluster.setup: ['{line}']"
        variable = match[0][1:]
        if variable in RESERVED_ENV or LAUNCHER_ENV.fullmatch(variable):
            hint = f"only ranks have it: command: [bash, -c, '{line}; exec PROGRAM']"
        raise Illegal(f"{match[0]} reaches the program as it is: no shell reads this value", hint)
    return text


def _names_of_variables(value: object) -> tuple[str, ...]:
    names = _texts(value)
    for name in names:
        check_env_name(name)
    return names


def _mounts(value: object) -> tuple[Mount, ...]:
    mounts: list[Mount] = []
    for each in _texts(value):
        match = re.fullmatch(r"(/[^:]*):(/[^:]*)(:r[ow])?", each)
        if match is None:
            raise Illegal(f"{each!r} is not SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths")
        mounts.append(Mount(match[1], match[2], read_only=match[3] == ":ro"))
    return tuple(mounts)


def _limit(_name: str, value: object) -> str:
    if not re.fullmatch(r"-1|\d{1,18}(:\d{1,18})?", str(value)):
        raise Illegal(f"must be a number, SOFT:HARD, or -1 for none, not {value!r}")
    return str(value)


def _matching(pattern: str, legal: str) -> Kind:
    """Return the kind of texts with a form of their own."""

    def read(value: object) -> str:
        if not re.fullmatch(pattern, scalar_text(value) or ""):
            raise Illegal
        return str(value)

    return Kind(legal, read)


def _as_it_is(value: object) -> object:
    """Leave a value to `resolve`, which knows what else it depends on."""
    return value


TEXTS_OR_NULL = "a text, a list of texts or null"
KINDS: Mapping[str, Kind] = {
    "address": Kind("a name, an address or null", _address),
    "arguments": Kind("a mapping; texts where args_style is raw; or null", _as_it_is),
    "bool": Kind("true or false", _bool),
    "command": Kind(TEXTS_OR_NULL, _as_it_is),
    "commands of a shell": Kind("a list of shell commands", _texts),
    "count": _count(0),
    "count from 1": _count(1),
    "count from 1 or null": _count(1, "null"),
    "count or auto": _count(0, "auto"),
    "count or null": _count(0, "null"),
    "dry run": Kind("false, true, offline, json or [offline, json]", _dry_run),
    "endpoint": _matching(
        r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):[1-9]\d{0,4}", "HOST:PORT, or null"
    ),
    "environment": Kind("a mapping such as {NAME: value}", _variable, is_mapping=True),
    "file here": Kind("the path of a file here, or null", _file_here),
    "gpus": Kind("a whole number from 0, a list of devices such as [0, 2], or auto", _gpus),
    "interval or off": _seconds("off", 1, 3600),
    "jump hosts": Kind(TEXTS_OR_NULL, _jump),
    "limits": Kind("a mapping such as {nofile: 65536}", _limit, is_mapping=True),
    "memory": _matching(r"[1-9]\d*[KMGT]", "a number with K, M, G or T such as 8G, or null"),
    "modules": Kind("true, false, or a list of modules such as [torch, transformers]", _modules),
    "mounts": Kind("a list of texts such as /data:/data:ro", _mounts),
    "names": Kind("a list of names", _texts),
    "names of nodes": Kind("a list of names and ranges", _texts),
    "names of variables": Kind("a list of names of variables", _names_of_variables),
    "nnodes": Kind("a whole number from 1, a range such as 2:4, or null", _nnodes),
    "node or master": Kind("the name of a node, master (the first), or null for all", _text),
    "nodes": Kind("a mapping of names or ranges to nodes, or a number", _as_it_is),
    "path": Kind("a path", _path),
    "pattern of lines": Kind(
        r"a regular expression such as `epoch (\d+)/(\d+)`, or null", _pattern_of_lines
    ),
    "patterns of files": Kind(
        "a list of paths or patterns such as results/*.pt", _patterns_of_files
    ),
    "port": Kind("1 to 65535 or null", _port),
    "ports": Kind("a port, a range such as 29500-29600, or auto", _ports),
    "ranks": Kind("all, a rank, or a list such as [0, 3]", _ranks),
    "ranks per node": _count(1, "auto"),
    "run id": Kind("up to 63 of a-z, 0-9 and '-', no '-' in front, or null", _run_id),
    "seconds": _seconds(),
    "seconds or never": _seconds("never"),
    "seconds or null": _seconds("null"),
    "seconds or off": _seconds("off"),
    "settings of a rendezvous": Kind(
        "a mapping such as {join_timeout: 600}", _rdzv_setting, is_mapping=True
    ),
    "signal": Kind("the name of a signal such as SIGUSR1", _signal),
    "signals": Kind("a list of signals such as [SIGTERM, SIGUSR1], or null", _signals),
    "size": _matching(r"[1-9]\d*[bkmg]?", "a number with b, k, m or g such as 16g, or null"),
    "text": Kind("a text of one line, or null", _text),
    "texts": Kind("a list of texts", _texts),
    "time limit": _matching(
        r"\d+|\d+:\d\d(:\d\d)?|\d+-\d\d?(:\d\d){0,2}", "minutes, 2:30:00 or 1-12:00:00, or null"
    ),
    "words": Kind("a list of texts, or a text that is split as a shell does", _as_it_is),
}
