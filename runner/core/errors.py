"""Errors and findings that are reported to the user; an error has its exit code.

RunnerError                1    the task failed
├── ConfigError            2    the YAML or the command line is wrong; nothing was contacted
├── NotReady               3    a host could not be reached or prepared; nothing was started
├── Interrupted            130  (143 by SIGTERM, 129 by SIGHUP)
├── StopUnverified         5    a stop could not be verified
├── InternalFault          70   a bug in the runner; what was started goes on
└── OutputLost             74   standard output takes no more, such as a file on a full disk

A run that was started ends with a `Verdict`, which has its own exit code.
"""

from __future__ import annotations

import difflib
import enum
import functools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

SIGNAL_EXIT_BASE = 128
"""Exit codes above this one are those of signals."""

STANDARD_OUTPUT = "standard output"
"""The name in errors of writes to it: such an error has none by itself, nor has that of a file."""


@dataclass(frozen=True)
class Shared:
    """What is said once where many hosts have a problem: its words without those of one host."""

    message: str
    hint: str = ""
    detail: str = ""  # what is still told of each host
    example: str = ""  # a further line of the hint, for one host: that of the first is shown


@dataclass(frozen=True)
class Problem:
    """One problem: where it is, and what to do about it."""

    subject: str  # the node or the config key concerned
    message: str  # one sentence: what was found, and what would be legal
    hint: str = ""  # the next command to type or key to set; may have several lines
    shared: Shared | None = None  # None where message and hint fit many hosts as they are

    def __str__(self) -> str:
        lines = [f"{self.subject}: {self.message}" if self.subject else self.message]
        lines += [f"    {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)


class Level(enum.Enum):
    ERROR = "error"  # a launch refuses, or would hang
    WARNING = "warning"  # a launch may succeed
    OK = "fine"


@dataclass(frozen=True)
class Finding:
    """One observation about a node, or about the whole cluster."""

    level: Level
    node: str  # "" for the whole cluster
    message: str  # what was found and, if not obvious, why it matters
    hint: str = ""  # the next command to type, or the key to set; "" for what is fine
    shared: Shared | None = None  # see `Problem`

    @property
    def as_problem(self) -> Problem:
        return Problem(self.node, self.message, self.hint, self.shared)

    @staticmethod
    def from_problem(problem: Problem) -> Finding:
        subject = problem.subject
        return Finding(Level.ERROR, subject, problem.message, problem.hint, problem.shared)


NO_FOLDER = Problem("", "the working directory is not there any more", "cd to one that is there")


def reason_of(error: Exception) -> str:
    """Return what went wrong, without the file that it happened to."""
    return getattr(error, "strerror", None) or str(error)


class RunnerError(Exception):
    """The root of all reported errors: prints as its problems, exits with `exit_code`."""

    exit_code = 1

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class ConfigError(RunnerError):
    """The configuration or the command line is wrong; nothing was contacted."""

    exit_code = 2


class NotReady(RunnerError):
    """At least one host could not be reached or prepared; nothing was started."""

    exit_code = 3


class Interrupted(RunnerError):
    """A signal interrupted a verb; the message says what had been started."""

    def __init__(self, exit_code: int, message: str = "interrupted; nothing was started") -> None:
        super().__init__([Problem("", message)])
        self.exit_code = exit_code


class StopUnverified(RunnerError):
    """A stop could not be verified, because hosts do not answer."""

    exit_code = 5


class InternalFault(RunnerError):
    """An exception that nothing expects: a bug in the runner. What was started goes on."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


class OutputLost(RunnerError):
    """Standard output cannot be written to."""

    exit_code = 74  # EX_IOERR of sysexits.h


def is_output_error(error: BaseException) -> bool:
    """Return whether a write to standard output failed: its disk is full, its terminal gone."""
    return isinstance(error, OSError) and error.filename == STANDARD_OUTPUT


def suggest(word: str, legal: Iterable[str], prefix: str = "") -> str:
    """Return "did you mean …?", or "" when nothing is near."""
    matches = difflib.get_close_matches(word, list(legal), n=1, cutoff=0.6)
    return f"did you mean {prefix}{matches[0]}?" if matches else ""


def join_or(words: Sequence[str]) -> str:
    """Return "a, b or c"."""
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def fold_names(names: Iterable[str]) -> str:
    """Return names in ClusterShell's notation, `gpu[1-7]`, which the YAML accepts, too.

    Text that is not a node's name, but has a meaning in that notation, is left as it is.
    """
    return _fold_unique_names(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=512)
def _fold_unique_names(names: tuple[str, ...]) -> str:
    if len(names) <= 1 or not all(re.fullmatch(r"[\w.-]{1,255}", name) for name in names):
        return ", ".join(names)
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 (most verbs need no names folded)

    return str(NodeSet.fromlist(names))
