"""Explains a failure by what its log shows (`failure_patterns`) or by the signal that ended it."""

from __future__ import annotations

import re
import signal
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from runner.core.outcome.failure_patterns import FAILURE_PATTERNS
from runner.core.outcome.library_failures import LIBRARY_FAILURES
from runner.core.outcome.system_failures import SYSTEM_FAILURES
from runner.core.shell import this_program
from runner.core.text import signal_name

MAX_LINE_CHARS = 2000
"""The patterns take quadratic time on some lines; of longer ones the middle is left out."""

KNOWN_FAILURES = (*LIBRARY_FAILURES, *SYSTEM_FAILURES, *FAILURE_PATTERNS)

ANYWHERE: Mapping[str, str] = {"bare": "", "image": ""}
"""Facts of which a remedy names those inside and outside of containers."""


class Explanation(NamedTuple):
    """The meaning and remedy of a known failure."""

    name: str
    meaning: str
    remedy: str


SIGNAL_EXPLANATIONS: Mapping[int, Tuple[str, str]] = {
    signal.SIGKILL: (
        "a user or the kernel killed it; the kernel does so when memory runs out",
        "`dmesg -T` on that host shows it; max_rss in result.json is the memory the rank took",
    ),
    signal.SIGSEGV: (
        "compiled code crashed",
        "task.env.PYTHONFAULTHANDLER=1 shows where; often a library does not match torch",
    ),
    signal.SIGABRT: (
        "compiled code aborted: an assertion, or threads that still ran when the program ended",
        "the lines before it say why; after a Python exception, that is the cause",
    ),
    signal.SIGBUS: (
        "mapped memory is missing: usually a full /dev/shm, or a truncated file",
        "make /dev/shm larger there, or use fewer data loader workers",
    ),
    signal.SIGILL: (
        "the processor lacks an instruction that the code was built for",
        "use a build of torch or the extension for the oldest processor of the cluster",
    ),
    signal.SIGFPE: ("compiled code divided by zero", "task.env.PYTHONFAULTHANDLER=1 shows where"),
}
"""Meaning and remedy of a death by signal."""

UNKNOWN_SIGNAL = (
    "another process, or the program itself, sent it",
    "the lines before may say who; `timeout`, a scheduler and a user's kill send TERM",
)

_BY_TORCH = re.compile(
    r"\bgloo/|ProcessGroup|\bDist\w*Error\b|TCPStore|\bc10d\b|NCCL|"
    r"^RuntimeError: (?=Connection reset|Broken pipe)"  # torch 2.0; Python's own is an OSError
)
_PEER_GONE = re.compile(
    r"closed by (?:remote )?peer|reset by peer|Broken pipe|got 0 bytes", re.IGNORECASE
)
_SECONDARY_ERROR = re.compile(
    r"Connection was likely closed|ncclRemoteError|remote process exited|Watchdog caught collective"
)


def is_secondary_error(error: str) -> bool:
    """Return whether a rank with this error only noticed the end of another one.

    Words of the operating system alone do not say so: any server may close a connection.
    """
    says_gone = _PEER_GONE.search(error) and _BY_TORCH.search(error)
    return bool(says_gone or _SECONDARY_ERROR.search(error))


def explain(
    lines: Sequence[str], signum: Optional[int] = None, facts: Mapping[str, str] = ANYWHERE
) -> Optional[Explanation]:
    """Return the known failure that the last lines, or the signal, match.

    The first line may be how the program exited: a shell tells a signal by its exit code.
    """
    text = "\n".join(map(_shorten, lines))
    for entry in KNOWN_FAILURES:
        match = re.search(entry.pattern, text, re.MULTILINE)
        if match:
            found = match.groupdict().items()
            groups = {name.rstrip("0123456789"): value for name, value in found if value}
            known = {**facts, **groups, "program": this_program()}
            meaning = _substitute(entry.meaning, known)
            return Explanation(entry.name, meaning, _substitute(entry.remedy, known))
    shell_exit = re.match(r".*\bexited with (\d+)$", text, re.MULTILINE)
    shell_signum = int(shell_exit[1]) - 128 if shell_exit else 0
    if 0 < shell_signum <= signal.SIGRTMAX:
        name = signal_name(shell_signum)
        meaning, remedy = SIGNAL_EXPLANATIONS.get(shell_signum, UNKNOWN_SIGNAL)
        meaning = f"a shell exits with 128 + {shell_signum} if {name} ended its command: {meaning}"
        return Explanation(name.lower(), meaning, remedy)
    if signum is not None and signum in SIGNAL_EXPLANATIONS:
        meaning, remedy = SIGNAL_EXPLANATIONS[signum]
        return Explanation(signal.Signals(signum).name.lower(), meaning, remedy)
    return None


def _shorten(line: str) -> str:
    """Return the beginning and the end of a line that is too long to search for every pattern."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[: MAX_LINE_CHARS // 2]} … {line[-MAX_LINE_CHARS // 2 :]}"


_PLACEHOLDER = re.compile(r"\{(\w+)(?:([:|])([^}]*))?\}")


def _substitute(text: str, known: Mapping[str, str]) -> str:
    """Fill in what a text of a `FailurePattern` names."""

    def put(field: "re.Match[str]") -> str:
        name, kind, more = field.groups()
        if name not in known:
            return more if kind == "|" else ""
        return more.replace("?", known[name]) if kind == ":" else known[name]

    return _PLACEHOLDER.sub(put, text)
