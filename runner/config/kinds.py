"""Kinds: the legal values of keys in words, and how each is read.

YAML and the command line give texts as they were written, `true`, `false` and null.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.gone import KEYS
from runner.control.record.run_index import LATEST
from runner.core.errors import ConfigError, Problem
from runner.core.model.facts import MAX_PORT
from runner.core.protocol.paths import is_run_id
from runner.core.protocol.remote_files import glob_problem
from runner.core.spec import USUAL_PRELOAD, Mount, PortRange, keys_of, section_of

MAX_LISTED_KEYS = 5
LOGIN_RULE = "hosts are logged in to with a key or an agent"
RANK_VARIABLES = (
    "RANK",
    "NODE_RANK",
    "NNODES",
    "GROUP_RANK",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "GROUP_WORLD_SIZE",
)
RUN_MARKS = ("RUNNER_RUN_ID", "RUNNER_NODE")
RESERVED_ENV = {
    "MASTER_ADDR": "the plan chooses it; cluster.nodes.NODE.addr says how others reach a node",
    "MASTER_PORT": "cluster.master_port chooses it",
    "WORLD_SIZE": "cluster.nproc_per_node and the nodes decide it",
    "LOCAL_RANK": "torchrun sets it: a program that reads it wants task.entry=torchrun",
    "LOCAL_WORLD_SIZE": "cluster.nproc_per_node decides it",
    "PYTHON_EXEC": "cluster.python chooses the interpreter",
    **dict.fromkeys(RUN_MARKS, "the runner finds a run by it"),
    "RUNNER_METRICS": "the runner names a file for each rank",
    **dict.fromkeys(RANK_VARIABLES, "the launcher of the ranks sets it"),
}
"""Environment variables that users cannot set, and the reason."""

SHELL_VALUE = re.compile(r"\$\w+|(?<![^:])~(?=/|$)")
ULIMITS = (
    "core",
    "cpu",
    "data",
    "fsize",
    "locks",
    "memlock",
    "msgqueue",
    "nice",
    "nofile",
    "nproc",
    "rss",
    "rtprio",
    "rttime",
    "sigpending",
    "stack",
)
"""The names of limits that engines know."""


class Problems(list[Problem]):
    """Problems that were found so far."""

    def report(self, where: str, message: str, hint: str = "") -> None:
        """Add a problem."""
        self.append(Problem(where, message, hint))

    def raise_any(self) -> None:
        """Raise a ConfigError with all of them, if there are any."""
        if self:
            raise ConfigError(self)


def suggest(word: str, legal: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean …?", or "" when nothing is near."""
    matches = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.6)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""


def join_or(words: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def unknown_key(where: str, key: str, legal: Sequence[str]) -> Problem:
    """Return the problem of an unknown key."""
    full_key = f"{where}.{key}" if where else key
    if full_key in KEYS:
        return Problem(full_key, f"is gone; {KEYS[full_key]}")
    hint = suggest(key, legal, f"{where}." if where else "")
    if "passw" in key and where.startswith("cluster"):
        hint = f"{LOGIN_RULE}, without passwords: cluster.ssh.key"
    near = difflib.get_close_matches(key, legal, n=3, cutoff=0.4)
    listed = f"; near it: {', '.join(near)}" if near else ""
    if len(legal) <= MAX_LISTED_KEYS:
        listed = f"; legal here: {', '.join(legal)}"
    return Problem(full_key, f"there is no such key{listed}", hint)


def scalar_text(value: object) -> str | None:
    """Return a scalar of YAML as text (`true`, `0.1`), or None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


def whole_number(value: object) -> int | None:
    """Return a whole number from 0, or None."""
    text = "" if isinstance(value, bool) else scalar_text(value) or ""
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None


def _bool(problems: Problems, where: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    problems.report(where, f"must be true or false, not {value!r}")
    return False


def choose(problems: Problems, where: str, value: object, legal: Sequence[str]) -> str:
    """Read one of a few words."""
    text = scalar_text(value)
    if text in legal:
        return str(text)
    hint = suggest(text or "", legal)
    problems.report(where, f"{text or value!r} is not legal; choose {join_or(legal)}", hint)
    return legal[0]


def _seconds(word: str = "", least: float = 0.0, most: float = math.inf) -> Callable[..., Any]:
    """Return a reader of a time span, or of a word for none, which is 0; null is None."""

    def read(problems: Problems, where: str, value: object) -> float | None:
        if value is None and word == "null":
            return None
        if word and value in (word, False):
            return 0.0
        try:
            seconds = float("nan" if isinstance(value, bool) else scalar_text(value) or "nan")
        except ValueError:
            seconds = math.nan
        if seconds > 0 and least <= seconds <= most and math.isfinite(seconds):
            return seconds
        legal = "a positive number of seconds"
        if least:
            legal = f"{least:g} to {most:g} seconds"
        other = f", or {word}" if word else ""
        problems.report(where, f"must be {legal}{other}, not {value!r}")
        return 1.0

    return read


def _count(minimum: int, word: str = "") -> Callable[..., Any]:
    """Return a reader of a whole number, or of a word for None."""

    def read(problems: Problems, where: str, value: object) -> int | None:
        if word and (value is None or value == word):
            return None
        number = whole_number(value)
        if number is not None and number >= minimum:
            return number
        other = f", or {word}" if word else ""
        problems.report(where, f"must be a whole number from {minimum}{other}, not {value!r}")
        return minimum

    return read


def _port(problems: Problems, where: str, value: object) -> int | None:
    number = whole_number(value)
    if value is not None and not (number and 1 <= number <= MAX_PORT):
        problems.report(where, f"must be a port from 1 to 65535, not {value!r}")
    return number


def _ports(problems: Problems, where: str, value: object) -> PortRange:
    if value in (None, "auto"):
        return PortRange()
    first, dash, last = str(value).partition("-")
    low = whole_number(first.strip())
    high = whole_number(last.strip()) if dash else low
    if not (low and high and 1 <= low <= high <= MAX_PORT):
        legal = "must be auto, a port such as 29500 or a range such as 29500-29600"
        hint = "ports go from 1 to 65535, the first before the last"
        problems.report(where, f"{legal}, not {value!r}", hint)
        return PortRange()
    return PortRange(low, high)


def nnodes(problems: Problems, where: str, value: object) -> tuple[int | None, int | None]:
    """Read how many nodes, or from how many to how many; the first is None for no range."""
    if value is None or ":" not in str(value):
        return None, _count(1, "auto")(problems, where, value)
    lowest, _, highest = str(value).partition(":")
    low = whole_number(lowest.strip())
    high = whole_number(highest.strip())
    if not low or not high or low > high:
        message = f"must be a number of nodes, or a range such as 2:4, not {value!r}"
        problems.report(where, message, "the fewest come first, from 1")
        return None, None
    return low, high


def _nnodes(problems: Problems, where: str, value: object) -> tuple[int | None, int | None] | None:
    return None if value is None else nnodes(problems, where, value)


def text(problems: Problems, where: str, value: object) -> str | None:
    """Read a text of one line, or null."""
    if value is None:
        return None
    line = scalar_text(value)
    if not line or re.search(r"[\n\r\0]", line):
        problems.report(where, f"must be a text of one line, not {value!r}")
    return line


def _path(problems: Problems, where: str, value: object) -> str:
    path = text(problems, where, value) or ""
    if re.match("~[^/]", path):
        problems.report(where, f"{path}: only ~/ is replaced", "write the whole path")
    return path


def _file_here(problems: Problems, where: str, value: object) -> str | None:
    return None if value is None else _path(problems, where, value)


def _endpoint(problems: Problems, where: str, value: object) -> str:
    endpoint = text(problems, where, value) or ""
    host_port = r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):([0-9]{1,5})"
    match = re.fullmatch(host_port, endpoint)
    if endpoint and not (match and 1 <= int(match[2]) <= MAX_PORT):
        problems.report(where, f"must be HOST:PORT such as etcd1:2379, not {endpoint!r}")
    return endpoint


def _rdzv_conf(problems: Problems, where: str, value: object) -> dict[str, str]:
    conf = {}
    for name, item in _mapping(problems, where, value, "{join_timeout: 600}").items():
        setting = scalar_text(item)
        if name == "is_host":
            message = "the plan decides that: cluster.master is the host"
            problems.report(f"{where}.{name}", message)
        elif setting is None or re.search(r"[,=\s]", f"{name}{setting}"):
            message = f"must be a text without ',', '=' or space, not {item!r}"
            problems.report(f"{where}.{name}", message)
        else:
            conf[name] = setting
    return conf


def _mapping(problems: Problems, where: str, value: object, example: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        problems.report(where, f"must be a mapping such as {example}, not {value!r}")
        return {}
    return {str(name): item for name, item in value.items()}


def _signals(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    names = texts(problems, where, value.split(",") if isinstance(value, str) else value)
    for name in names:
        if name not in signal.Signals.__members__:
            problems.report(where, f"there is no signal {name!r}", "such as [SIGTERM, SIGUSR1]")
    if names and "SIGTERM" not in names:
        problems.report(where, "SIGTERM must be among them: a run is stopped by it")
    return names


def _signal(problems: Problems, where: str, value: object) -> str:
    name = "SIGUSR1" if value is None else str(value)
    if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
        message = f"{name} is no signal that a program can handle"
        problems.report(where, message, "such as SIGUSR2")
    return name


def _address(problems: Problems, where: str, value: object) -> str | None:
    address = text(problems, where, value)
    if not address:
        return address
    user, _, host = address.rpartition("@")
    port = re.fullmatch(r"([^:]+):(\d+)", host)
    if "://" in address or not re.fullmatch(r"[^\s-]\S*", address):
        shown = host if "@" in address else address
        problems.report(where, f"{shown!r} is no host name or address")
    elif user or port:
        parent, _, key = where.rpartition(".")
        name, number = port.groups() if port else (host, "")
        named = {"user": user, "host": name, "port": number}
        parts = {part: found for part, found in named.items() if found}
        message = f"must be an address alone, not {' and '.join(f'a {part}' for part in parts)}"
        hint = ""
        if key == "host":
            hint = ", ".join(f"{parent}.{part}: {found}" for part, found in parts.items())
        if ":" in user:
            message = f"a password has no place here; {LOGIN_RULE}"
            hint = f"{key}: {name}, and cluster.ssh.key names the key"
        problems.report(where, message, hint)
    return host  # without a password, which no message may repeat


def texts(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    """Read a list of texts; a text alone is a list of one."""
    items = value if isinstance(value, list) else [value]
    if value is None:
        items = []
    found = [scalar_text(item) for item in items]
    if not all(found) or any("\0" in str(each) for each in found):
        empty = "names an empty text" if "" in items else ""
        problems.report(where, empty or f"must be a list of texts, not {value!r}")
    return tuple(filter(None, found))


def _jump(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    words = texts(problems, where, value)
    return tuple(hop.strip() for word in words for hop in word.split(","))


def _patterns_of_files(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    if value == "" or (isinstance(value, list) and "" in value):
        problems.report(where, "a path is empty", "such as results/*.pt; [] for none")
        return ()
    patterns = texts(problems, where, value)
    for pattern in patterns:
        if problem := glob_problem(pattern):
            hint = "it is relative to where the ranks run, such as results/*.pt"
            problems.report(where, f"{pattern!r} {problem}", hint)
    return patterns


def _pattern_of_lines(problems: Problems, where: str, value: object) -> str:
    pattern = text(problems, where, value) or ""
    problem = ""
    try:
        compiled = re.compile(pattern, re.ASCII)
        if pattern and not compiled.groupindex and compiled.groups not in (1, 2):
            problem = "needs a group for the step, may have one for all steps, or named groups"
    except (re.error, OverflowError, RecursionError) as error:
        problem = f"is no regular expression: {error}"
    if problem:
        hint = r"such as (?P<step>\d+) loss (?P<loss>\S+)"
        problems.report(where, f"{pattern} {problem}", hint)
    return pattern


def _gpus(problems: Problems, where: str, value: object) -> int | tuple[int, ...] | None:
    if not isinstance(value, list):
        if value in (None, "auto"):
            return None
        count = whole_number(value)
        if count is None:
            message = f"must be a whole number from 0, or auto, not {value!r}"
            problems.report(where, message, "or a list of devices such as [0, 2]")
        return count
    numbers = [whole_number(item) for item in value]
    devices = tuple(number for number in numbers if number is not None)
    if len(set(devices)) < len(value):
        problems.report(where, f"must name distinct devices such as [0, 2], not {value!r}")
    return devices


def _modules(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    if isinstance(value, bool) or value is None:
        return USUAL_PRELOAD if value else ()
    if not isinstance(value, list):
        message = f"must be true, false or a list of modules, not {value!r}"
        problems.report(where, message, f"such as [{', '.join(USUAL_PRELOAD)}]")
        return ()
    names = texts(problems, where, value)
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            hint = "such as [torch, transformers], or true"
            problems.report(where, f"{name!r} is no module", hint)
    return names


def _ranks(problems: Problems, where: str, value: object) -> tuple[int, ...] | None:
    if value == "all":
        return None
    items = value if isinstance(value, list) else [value]
    numbers = [whole_number(item) for item in items]
    if None in numbers:
        problems.report(where, f"must be all, or a list of ranks such as [0, 3], not {value!r}")
    return tuple(sorted({number for number in numbers if number is not None}))


def _dry_run(problems: Problems, where: str, value: object) -> tuple[str, ...]:
    words = {scalar_text(word) or "" for word in (value if isinstance(value, list) else [value])}
    modes = words - {"json"}
    legal = ("false", "true", "offline", "json")
    if len(modes) > 1 or (modes == {"false"} and len(words) > 1) or not words:
        problems.report(where, f"must be one mode, or [offline, json], not {value!r}")
    for mode in modes:
        choose(problems, where, mode, legal)
    return tuple(sorted(words - {"false"}))


def _run_id(problems: Problems, where: str, value: object) -> str:
    run_id = scalar_text(value) or ""
    if not is_run_id(run_id):
        message = f"{run_id!r} is not legal; use up to 63 of a-z, 0-9 and '-', no '-' in front"
        problems.report(where, message, "leave it out for a generated one")
    elif run_id == LATEST:
        message = f"{LATEST} is the name of the last run, whichever that is"
        problems.report(where, message)
    return run_id


def check_env_name(problems: Problems, where: str, name: str, *, removed: bool = False) -> None:
    """Check the name of an environment variable that is set, or taken out."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        problems.report(where, f"{name!r} is no name for an environment variable")
    elif removed:
        if name in RUN_MARKS:
            problems.report(where, f"{name} cannot be taken out: the runner finds a run by it")
    elif name in RESERVED_ENV or name.startswith("PET_"):
        reason = RESERVED_ENV.get(name, "PET_ variables steer torchrun, and the plan does that")
        problems.report(where, f"{name} cannot be set: {reason}")


def _environment(problems: Problems, where: str, value: object) -> dict[str, str | None]:
    env: dict[str, str | None] = {}
    for name, item in _mapping(problems, where, value, "{NAME: value}").items():
        check_env_name(problems, f"{where}.{name}", name, removed=item is None)
        found = scalar_text(item)
        if item is not None and (found is None or "\0" in found):
            problems.report(f"{where}.{name}", f"must be a text, not {item!r}")
        elif found and (match := SHELL_VALUE.search(found)):
            message = f"{match[0]} reaches the program as it is: no shell reads this value"
            line = f'export {name}="{found}"'
            hint = f"bash on the hosts reads cluster.setup: ['{line}']"
            if match[0][1:] in RESERVED_ENV:
                hint = f"only ranks have it: command: [bash, -c, '{line}; exec PROGRAM']"
            problems.report(f"{where}.{name}", message, hint)
        env[name] = found
    return env


def _mounts(problems: Problems, where: str, value: object) -> tuple[Mount, ...]:
    mounts: list[Mount] = []
    for each in texts(problems, where, value):
        source, _, rest = each.partition(":")
        target, _, mode = rest.partition(":")
        is_absolute = source.startswith("/") and target.startswith("/")
        if not is_absolute or mode not in ("", "ro", "rw"):
            message = f"{each!r} is not SOURCE:TARGET or SOURCE:TARGET:ro with absolute paths"
            problems.report(where, message, "such as /data:/data:ro")
        mounts.append(Mount(source, target, read_only=mode == "ro"))
    return tuple(mounts)


def _limits(problems: Problems, where: str, value: object) -> dict[str, str]:
    limits = {}
    for name, item in _mapping(problems, where, value, "{nofile: 65536}").items():
        limit = str(item)
        soft, _, hard = limit.partition(":")
        if name not in ULIMITS:
            hint = suggest(name, ULIMITS)
            problems.report(f"{where}.{name}", "there is no such limit", hint)
        elif not re.fullmatch(r"-1|\d{1,18}(:\d{1,18})?", limit) or int(soft) > int(hard or soft):
            message = f"must be a number, SOFT:HARD, or -1 for none, not {limit!r}"
            problems.report(f"{where}.{name}", message)
        limits[name] = limit
    return limits


def _matching(pattern: str, legal: str, example: str) -> Callable[..., Any]:
    """Return a reader of a text with a form of its own; null is ""."""

    def read(problems: Problems, where: str, value: object) -> str:
        found = "" if value is None else scalar_text(value) or ""
        if value is not None and not re.fullmatch(pattern, found):
            problems.report(where, f"must be {legal}, not {value!r}", example)
        return found

    return read


def _as_it_is(_problems: Problems, _where: str, value: object) -> object:
    """Leave a value to `resolve`, which knows what else it depends on."""
    return value


@dataclass(frozen=True)
class Kind:
    """The legal values of a key in words, and what reads one."""

    legal: str
    read: Callable[[Problems, str, Any], Any]


KINDS: Mapping[str, Kind] = {
    "address": Kind("name, address or null", _address),
    "arguments": Kind("mapping; text or list of texts where args_style is raw; or null", _as_it_is),
    "bool": Kind("true or false", _bool),
    "checks": Kind("list of names of checks", texts),
    "command": Kind("text, list of texts or null", _as_it_is),
    "commands of a shell": Kind(
        "list of shell commands such as curl -d @- https://ntfy.sh/$TOPIC", texts
    ),
    "count": Kind("whole number from 0", _count(0)),
    "count from 1": Kind("whole number from 1", _count(1)),
    "count from 1 or null": Kind("whole number from 1, or null", _count(1, "null")),
    "count or auto": Kind("number from 0, or auto", _count(0, "auto")),
    "count or null": Kind("number from 0, or null", _count(0, "null")),
    "dry run": Kind("false, true, offline, json or [offline, json]", _dry_run),
    "endpoint": Kind("HOST:PORT, or null", _endpoint),
    "environment": Kind("mapping of names to texts or null", _environment),
    "file here": Kind("path of a file here, or null", _file_here),
    "gpus": Kind("number from 0, list of devices such as [0, 2], or auto", _gpus),
    "interval or off": Kind("seconds, 1 to 3600, or off", _seconds("off", 1, 3600)),
    "jump hosts": Kind("text, list of texts or null", _jump),
    "limits": Kind("mapping of names to a number", _limits),
    "memory": Kind(
        "number with K, M, G or T such as 8G, or null",
        _matching(r"[1-9]\d*[KMGT]", "a number with K, M, G or T", "such as 8G"),
    ),
    "modules": Kind("true, false, or list of modules such as [torch, transformers]", _modules),
    "mounts": Kind("list of texts such as /data:/data:ro", _mounts),
    "names of nodes": Kind("list of names and ranges", texts),
    "names of variables": Kind("list of names of variables", texts),
    "nnodes": Kind("number from 1, range such as 2:4, or null", _nnodes),
    "node or master": Kind(
        "name of a node, master (the first), or null: each has to succeed", text
    ),
    "nodes": Kind("mapping of names or ranges to nodes, or number", _as_it_is),
    "path": Kind("path", _path),
    "pattern of lines": Kind(
        r"regular expression such as `epoch (\d+)/(\d+)`, or null", _pattern_of_lines
    ),
    "patterns of files": Kind("list of paths or patterns such as results/*.pt", _patterns_of_files),
    "port": Kind("1 to 65535 or null", _port),
    "ports": Kind("port, range such as 29500-29600, or auto", _ports),
    "ranks": Kind("all, a rank, or a list such as [0, 3]", _ranks),
    "ranks per node": Kind("number from 1, or auto", _count(1, "auto")),
    "run id": Kind("up to 63 of a-z, 0-9 and '-', or null", _run_id),
    "seconds": Kind("seconds, more than 0", _seconds()),
    "seconds or never": Kind("seconds, more than 0, or never", _seconds("never")),
    "seconds or null": Kind("seconds, more than 0, or null", _seconds("null")),
    "seconds or off": Kind("seconds, more than 0, or off", _seconds("off")),
    "settings of a rendezvous": Kind("mapping such as {join_timeout: 600}", _rdzv_conf),
    "signal": Kind("name of a signal such as SIGUSR1", _signal),
    "signals": Kind("list such as [SIGTERM, SIGUSR1], or null", _signals),
    "size": Kind(
        "number with b, k, m or g, or null",
        _matching(r"[1-9]\d*[bkmg]?", "a number with b, k, m or g", "such as 16g"),
    ),
    "text": Kind("text or null", text),
    "texts": Kind("list of texts", texts),
    "time limit": Kind(
        "minutes, 2:30:00 or 1-12:00:00, or null",
        _matching(
            r"\d+|\d+:\d\d(:\d\d)?|\d+-\d\d?(:\d\d){0,2}",
            "minutes, or a text such as 2:30:00 or 1-12:00:00",
            "days, hours, minutes and seconds are D-HH:MM:SS",
        ),
    ),
    "words": Kind("list of texts, or text that is split as a shell does", _as_it_is),
}
"""By the name that `core.spec` gives them."""


def legal_values(option: dataclasses.Field[Any]) -> str:
    """Return the legal values of a key in words."""
    kind = option.metadata["kind"]
    if section_of(option):
        return "see below"
    if isinstance(kind, tuple):
        words = [*kind, "null"] if option.default == "" else kind
        return join_or(words)
    return KINDS[kind].legal


def read_value(
    problems: Problems, where: str, option: dataclasses.Field[Any], value: object
) -> object:
    """Return the value of a key; report one that is not legal."""
    kind = option.metadata["kind"]
    if value is None and option.default == "":
        return ""
    if value is None and kind == "path":
        problems.report(where, "must not be null")
    if isinstance(kind, tuple):
        return choose(problems, where, value, kind)
    return KINDS[kind].read(problems, where, value)


def read_section(
    problems: Problems, where: str, section: type, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the values of a section, those below it as objects of their classes.

    A key that is not among the values is left out.
    """
    read: dict[str, Any] = {}
    for name, option in keys_of(section).items():
        if name not in values:
            continue
        key = f"{where}.{name}" if where else name
        nested = section_of(option)
        if nested is None:
            read[name] = read_value(problems, key, option, values[name])
        elif isinstance(values[name], Mapping):
            read[name] = nested(**read_section(problems, key, nested, values[name]))
        else:
            problems.report(key, f"takes a mapping of keys to values, not {values[name]!r}")
    return read
