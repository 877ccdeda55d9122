"""Known failures: what the end of a log means, and what to do about it, by `known_failures.txt`."""

from __future__ import annotations

import configparser
import functools
import re
import signal
from pathlib import Path
from typing import Mapping, NamedTuple, Optional, Sequence, Tuple

from runner.core.shell import this_program
from runner.core.text import signal_name

MAX_LINE_CHARS = 2000
"""The patterns take quadratic time on some lines; of longer ones the middle is left out."""

ANYWHERE: Mapping[str, str] = {"bare": "", "image": ""}
"""Facts of which a remedy names those inside and outside of containers."""

_PLACEHOLDER = re.compile(r"\{(\w+)(?:([:|])([^}]*))?\}")


class Explanation(NamedTuple):
    """The meaning and remedy of a known failure."""

    name: str
    meaning: str  # as a sentence without a full stop
    remedy: str


class KnownFailure(NamedTuple):
    """An entry of the table; its texts have placeholders."""

    name: str
    pattern: "re.Pattern[str]"
    meaning: str
    remedy: str


@functools.lru_cache(maxsize=None)
def known_failures() -> Tuple[KnownFailure, ...]:
    """Return the table, in its order."""
    parser = configparser.ConfigParser(
        delimiters=(":",),
        comment_prefixes=("#",),
        empty_lines_in_values=False,
        interpolation=None,
    )
    parser.read(Path(__file__).with_name("known_failures.txt"), encoding="utf-8")
    return tuple(
        KnownFailure(
            name=name,
            pattern=re.compile(parser[name]["log"].replace("\n", ""), re.MULTILINE),
            meaning=parser[name]["why"].replace("\n", " "),
            remedy=parser[name]["cure"].replace("\n", " "),
        )
        for name in parser.sections()
    )


def explain(lines: Sequence[str], facts: Mapping[str, str] = ANYWHERE) -> Optional[Explanation]:
    """Return the known failure that the last lines match.

    The first line may be how the program exited: a shell tells a signal by its exit code.
    """
    text = "\n".join(map(_shorten, lines))
    for known in known_failures():
        match = known.pattern.search(text)
        if match:
            found = match.groupdict().items()
            groups = {name.rstrip("0123456789"): value for name, value in found if value}
            values = {**facts, **groups, "program": this_program()}
            meaning = _substitute(known.meaning, values)
            return Explanation(known.name, meaning, _substitute(known.remedy, values))
    exited = re.match(r".*\bexited with (\d+)$", text, re.MULTILINE)
    signum = int(exited[1]) - 128 if exited else 0
    if not 0 < signum <= signal.SIGRTMAX:
        return None
    name = signal_name(signum)
    ended = explain([f"was killed by {name}"])
    if ended is None:
        ended = Explanation(
            name=name.lower(),
            meaning="another process, or the program itself, sent it",
            remedy="the lines before may say who; `timeout`, a scheduler and a user's kill send "
            "TERM",
        )
    shell_text = f"a shell exits with 128 + {signum} if {name} ended its command"
    return ended._replace(meaning=f"{shell_text}: {ended.meaning}")


def _shorten(line: str) -> str:
    """Return the beginning and the end of a line that is too long to search for every pattern."""
    if len(line) <= MAX_LINE_CHARS:
        return line
    return f"{line[: MAX_LINE_CHARS // 2]} … {line[-MAX_LINE_CHARS // 2 :]}"


def _substitute(text: str, values: Mapping[str, str]) -> str:
    """Fill in what a text of the table names."""

    def put(field: "re.Match[str]") -> str:
        name, kind, more = field.groups()
        if name not in values:
            return more if kind == "|" else ""
        return more.replace("?", values[name]) if kind == ":" else values[name]

    return _PLACEHOLDER.sub(put, text)
