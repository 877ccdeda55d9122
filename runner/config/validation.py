"""Validation of composed values: each is read by itself, and all problems are collected."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import math
import re
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.config.gone import KEYS
from runner.control.record.run_index import LATEST
from runner.core.errors import Problem
from runner.core.model.facts import MAX_PORT
from runner.core.model.spec import USUAL_PRELOAD, PortRange
from runner.core.protocol.paths import is_run_id
from runner.core.protocol.remote_files import glob_problem

MAX_LISTED_KEYS = 5
LOGIN_RULE = "hosts are logged in to with a key or an agent"
RANK_VARIABLES = (
    *("RANK", "NODE_RANK", "NNODES", "GROUP_RANK", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE"),
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


@dataclass(frozen=True)
class SpecInputs:
    """Composed values and their context."""

    values: Mapping[str, Any]  # resolved; every key of the schema is there
    cluster: str  # the name of its YAML file, as that of the task
    task: str
    cwd: str
    environ: Mapping[str, str]
    node_overrides: Sequence[tuple[str, ...]] = ()  # paths below `cluster.nodes`
    known_entries: Sequence[str] | None = None  # of `cluster.nodes`; None for any


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
    listed = f"; legal here: {', '.join(legal)}" if len(legal) <= MAX_LISTED_KEYS else listed
    return Problem(full_key, f"there is no such key{listed}", hint)


def scalar_text(value: object) -> str | None:
    """Return a YAML scalar as text (`true`, `0.1`), or None for anything else."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (str, int, float)):
        return str(value)
    return None


class Validator:
    """Reads values, and collects their problems; for a wrong value it returns a placeholder."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems

    def add(self, where: str, message: str, hint: str = "") -> None:
        """Add a problem."""
        self.problems.append(Problem(where, message, hint))

    def section(self, where: str, values: Mapping[str, Any], schema: type) -> dict[str, Any]:
        """Read the values of a section, each as its kind says; leave out what the schema lacks."""
        known: dict[str, Any] = {}
        for option in dataclasses.fields(schema):
            if option.name in values:
                key = f"{where}.{option.name}" if where else option.name
                value, read = values[option.name], option.metadata["read"]
                known[option.name] = read(self, key, value) if read else value
        return known

    def choice(self, where: str, value: object, legal: Sequence[str]) -> str:
        """Read one of a few words."""
        if value is False and "off" in legal:  # so YAML reads it
            return "off"
        if isinstance(value, str) and value in legal:
            return value
        text = scalar_text(value) or value
        hint = suggest(str(text), legal)
        self.add(where, f"{text!r} is not legal; choose {join_or(legal)}", hint)
        return legal[0]

    def seconds(
        self, where: str, value: object, word: str = "", least: float = 0, most: float = math.inf
    ) -> float:
        """Read a time span, or the word for none, which is 0."""
        if word and (value == word or (word == "off" and value in (False, None))):
            return 0.0  # YAML reads off as false
        number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0
        if number > 0 and least <= number <= most and math.isfinite(number):
            return float(number)
        legal = f"{least} to {most} seconds" if least else "a positive number of seconds"
        self.add(where, f"must be {legal}{f', or {word}' if word else ''}, not {value!r}")
        return 1.0

    def integer(self, where: str, value: object, minimum: int) -> int:
        """Read a whole number."""
        number = _parse_int(value)
        if number is None or number < minimum:
            self.add(where, f"must be a whole number from {minimum}, not {value!r}")
            return minimum
        return number

    def int_or_auto(self, where: str, value: object, minimum: int) -> int | None:
        """Read a whole number; null and `auto` are None."""
        if value in (None, "auto"):
            return None
        number = _parse_int(value)
        if number is not None and number >= minimum:
            return number
        self.add(where, f"must be a whole number from {minimum}, or auto, not {value!r}")
        return None

    def nnodes(self, where: str, value: object) -> tuple[int | None, int | None]:
        """Read how many nodes, or from how many to how many; the first is None for no range."""
        if not isinstance(value, str) or ":" not in value:
            return None, self.int_or_auto(where, value, minimum=1)
        lowest, highest = (_parse_int(word.strip()) for word in value.split(":", 1))
        if not lowest or not highest or lowest > highest:
            message = f"must be a number of nodes, or a range such as 2:4, not {value!r}"
            self.add(where, message, "the fewest come first, from 1")
            return None, None
        return lowest, highest

    def port(self, where: str, value: object) -> int | None:
        """Read a TCP port, or null."""
        number = _parse_int(value)
        if value is not None and not (number and 1 <= number <= MAX_PORT):
            self.add(where, f"must be a port from 1 to 65535, not {value!r}")
        return number

    def ports(self, where: str, value: object) -> PortRange:
        """Read `auto`, 29500 or 29500-29600."""
        if value in (None, "auto"):
            return PortRange()
        first, dash, last = str(value).partition("-")
        low, high = _parse_int(first.strip()), _parse_int((last if dash else first).strip())
        if not (low and high and 1 <= low <= high <= MAX_PORT):
            legal = "must be auto, a port such as 29500 or a range such as 29500-29600"
            hint = "ports go from 1 to 65535, the first before the last"
            self.add(where, f"{legal}, not {value!r}", hint)
            return PortRange()
        return PortRange(low, high)

    def path(self, where: str, value: object) -> str:
        """Read a path, whose `~/` is the home folder."""
        path = self.text(where, "" if value is None else value)
        if re.match("~[^/]", path):
            self.add(where, f"{path}: only ~/ is replaced", "write the whole path")
        return path

    def text(self, where: str, value: object) -> str:
        """Read a text of one line; null is ""."""
        return self.optional_line(where, value) or ""

    def optional_line(self, where: str, value: object) -> str | None:
        """Read a text of one line, or null."""
        if value is None:
            return None
        text = scalar_text(value)
        if not text or re.search(r"[\n\r\0]", text):
            self.add(where, f"must be a text of one line, not {value!r}")
        return text

    def endpoint(self, where: str, value: object) -> str:
        """Read HOST:PORT; null is ""."""
        text = self.text(where, value)
        host_port = r"(\[[0-9A-Fa-f:]+\]|[^\s:\[\]-][^\s:\[\]]*):([0-9]{1,5})"
        match = re.fullmatch(host_port, text)
        if text and not (match and 1 <= int(match[2]) <= MAX_PORT):
            self.add(where, f"must be HOST:PORT such as etcd1:2379, not {text!r}")
        return text

    def rdzv_conf(self, where: str, value: object) -> dict[str, str]:
        """Read more settings of the rendezvous."""
        if not isinstance(value, Mapping):
            if value is not None:
                self.add(where, f"must be a mapping such as {{join_timeout: 600}}, not {value!r}")
            return {}
        conf = {}
        for name, item in value.items():
            key, text = f"{where}.{name}", scalar_text(item)
            if name == "is_host":
                self.add(key, "the plan decides that: cluster.master is the host")
            elif text is None or re.search(r"[,=\s]", f"{name}{text}"):
                self.add(key, f"must be a text without ',', '=' or space, not {item!r}")
            else:
                conf[str(name)] = text
        return conf

    def signals(self, where: str, value: object) -> tuple[str, ...]:
        """Read names of signals; null is none."""
        names = self.text_list(where, value.split(",") if isinstance(value, str) else value)
        for name in names:
            if name not in signal.Signals.__members__:
                self.add(where, f"there is no signal {name!r}", "such as [SIGTERM, SIGUSR1]")
        if names and "SIGTERM" not in names:
            self.add(where, "SIGTERM must be among them: a run is stopped by it")
        return names

    def address(self, where: str, value: object) -> str | None:
        """Read a host name or address, or null."""
        text = self.optional_line(where, value)
        if not text:
            return text
        user, _, host = text.rpartition("@")
        port = re.fullmatch(r"([^:]+):(\d+)", host)
        if "://" in text or not re.fullmatch(r"[^\s-]\S*", text):
            self.add(where, f"{text if '@' not in text else host!r} is no host name or address")
        elif user or port:
            parent, _, key = where.rpartition(".")
            name, number = port.groups() if port else (host, "")
            parts = {"user": user, "host": name, "port": number}
            parts = {part: value for part, value in parts.items() if value}
            message = f"must be an address alone, not {' and '.join(f'a {part}' for part in parts)}"
            hint = ", ".join(f"{parent}.{part}: {value}" for part, value in parts.items())
            if ":" in user:
                message = f"a password has no place here; {LOGIN_RULE}"
                hint = f"{key}: {name}, and cluster.ssh.key names the key"
            self.add(where, message, hint if key == "host" or ":" in user else "")
        return host  # without a password, which no message may repeat

    def text_list(self, where: str, value: object) -> tuple[str, ...]:
        """Read a list of texts; a text alone is a list of one."""
        items = value if isinstance(value, list) else [] if value is None else [value]
        texts = [scalar_text(item) for item in items]
        if not all(texts) or any("\0" in str(text) for text in texts):
            empty = "names an empty text" if "" in items else ""
            self.add(where, empty or f"must be a list of texts, not {value!r}")
        return tuple(filter(None, texts))

    def outputs(self, where: str, value: object) -> tuple[str, ...]:
        """Read paths, or patterns of them, below the working folder of the ranks."""
        if value == "" or (isinstance(value, list) and "" in value):
            self.add(where, "a path is empty", "such as results/*.pt; [] for none")
            return ()
        patterns = self.text_list(where, value)
        for pattern in patterns:
            if problem := glob_problem(pattern):
                hint = "it is relative to where the ranks run, such as results/*.pt"
                self.add(where, f"{pattern!r} {problem}", hint)
        return patterns

    def line_pattern(self, where: str, value: object) -> str:
        """Read a pattern of progress lines, "" for null."""
        pattern = self.optional_line(where, value) or ""
        problem = ""
        try:
            compiled = re.compile(pattern, re.ASCII)
            if pattern and not compiled.groupindex and compiled.groups not in (1, 2):
                problem = "needs a group for the step, may have one for all steps, or named groups"
        except (re.error, OverflowError, RecursionError) as error:
            problem = f"is no regular expression: {error}"
        if problem:
            self.add(where, f"{pattern} {problem}", r"such as (?P<step>\d+) loss (?P<loss>\S+)")
        return pattern

    def gpus(self, where: str, value: object) -> tuple[int | None, tuple[int, ...]]:
        """Read how many GPUs, or which ones."""
        if not isinstance(value, list):
            count = self.int_or_auto(where, value, minimum=0)
            if count is None and value not in (None, "auto"):
                last = self.problems.pop()
                self.add(where, last.message, "or a list of devices such as [0, 2]")
            return count, ()
        numbers = [_parse_int(item) for item in value]
        gpu_ids = tuple(number for number in numbers if number is not None and number >= 0)
        if len(set(gpu_ids)) < len(value):
            self.add(where, f"must name distinct devices such as [0, 2], not {value!r}")
        return len(gpu_ids), gpu_ids

    def preload(self, where: str, value: object) -> tuple[str, ...]:
        """Read whether modules are imported once for all ranks of a node, or which ones."""
        if isinstance(value, bool) or value is None:
            return USUAL_PRELOAD if value else ()
        if not isinstance(value, list):
            message = f"must be true, false or a list of modules, not {value!r}"
            self.add(where, message, f"such as [{', '.join(USUAL_PRELOAD)}]")
            return ()
        names = self.text_list(where, value)
        for name in names:
            if not all(part.isidentifier() for part in name.split(".")):
                self.add(where, f"{name!r} is no module", "such as [torch, transformers], or true")
        return names

    def ranks(self, where: str, value: object) -> frozenset[int] | None:
        """Read `all`, or the ranks to show."""
        if value == "all":
            return None
        numbers = [_parse_int(item) for item in (value if isinstance(value, list) else [value])]
        if any(number is None or number < 0 for number in numbers):
            self.add(where, f"must be all, or a list of ranks such as [0, 3], not {value!r}")
        return frozenset(number for number in numbers if number is not None)

    def run_id(self, where: str, value: object) -> str:
        """Read a run id: it becomes a folder, a label and a rendezvous id."""
        text = scalar_text(value) or ""
        if not is_run_id(text):
            message = f"{text!r} is not legal; use up to 63 of a-z, 0-9 and '-', no '-' in front"
            self.add(where, message, "leave it out for a generated one")
        elif text == LATEST:
            self.add(where, f"{LATEST} is the name of the last run, whichever that is")
        return text

    def check_env_name(self, where: str, name: str, *, removed: bool = False) -> None:
        """Check the name of an environment variable that is set, or taken out."""
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            self.add(where, f"{name!r} is no name for an environment variable")
        elif removed:
            if name in RUN_MARKS:
                self.add(where, f"{name} cannot be taken out: the runner finds a run by it")
        elif name in RESERVED_ENV or name.startswith("PET_"):
            reason = RESERVED_ENV.get(name, "PET_ variables steer torchrun, and the plan does that")
            self.add(where, f"{name} cannot be set: {reason}")

    def env(self, where: str, value: object) -> dict[str, str | None]:
        """Read an environment; YAML's true is "true", and null takes the name out."""
        if not isinstance(value, Mapping):
            if value is not None:
                self.add(where, f"must be a mapping of names to values, not {value!r}")
            return {}
        env: dict[str, str | None] = {}
        for name, item in value.items():
            self.check_env_name(f"{where}.{name}", name, removed=item is None)
            text = scalar_text(item)
            unclear = isinstance(item, float) and not math.isfinite(item)
            if text is not None and "\0" not in text and not unclear:
                env[name] = text
            elif item is None:
                env[name] = None
            else:
                self.add(f"{where}.{name}", f"must be a text, a number or a bool, not {item!r}")
        return env


@dataclass(frozen=True)
class Kind:
    """The legal values of a key in words, and what reads one."""

    legal: str
    read: Callable[[Validator, str, Any], Any] | None = None


def kind(legal: str, read: Callable[..., Any], /, **rule: object) -> Kind:
    """Return a kind that is read by a rule."""
    return Kind(legal, functools.partial(read, **rule))


def or_null(of: Kind, legal: str, null: object = None) -> Kind:
    """Return a kind that takes null as well."""

    def read(validator: Validator, where: str, value: object) -> Any:
        return null if value is None or not of.read else of.read(validator, where, value)

    return Kind(legal, read)


def _parse_int(value: object) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,9}", value) else None
