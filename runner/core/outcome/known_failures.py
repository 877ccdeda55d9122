"""Known failures: what the end of a log means, and what to do about it.

By `known_failures.txt`, and for an import that failed by the files of the project.
"""

from __future__ import annotations

import configparser
import functools
import posixpath
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import (
    NamedTuple,
)

from runner.core.errors import suggest
from runner.core.shell import quote, this_program
from runner.core.wire.plan import Plan
from runner.core.wire.text import signal_name

MAX_LINE_CHARS = 2000
"""The patterns take quadratic time on some lines; of longer ones the middle is left out."""

ANYWHERE: Mapping[str, str] = {"bare": "", "image": ""}
"""Facts of which a remedy names those inside and outside of containers."""

AS_IT_IS = ("program", "cluster", "left")
"""What remedies have as it is. All else may come from a host, and is a word of a command there."""

_PLACEHOLDER = re.compile(r"\{(\w+)(?:([:|])([^}]*))?\}")


class Explanation(NamedTuple):
    name: str
    meaning: str  # as a sentence without a full stop
    remedy: str


class KnownFailure(NamedTuple):
    """An entry of the table; its texts have placeholders."""

    name: str
    fact: str  # that has to be known, as one of `values`, which may be any if there are none
    values: tuple[str, ...]
    pattern: re.Pattern[str]
    meaning: str
    remedy: str


@functools.cache
def known_failures() -> tuple[KnownFailure, ...]:
    parser = configparser.ConfigParser(
        delimiters=(":",),
        comment_prefixes=("#",),
        empty_lines_in_values=False,
        interpolation=None,
    )
    parser.read(Path(__file__).with_name("known_failures.txt"), encoding="utf-8")
    table = []
    for section in parser.sections():
        name = section.partition(".")[0]
        fact, *values = parser[section].get("when", "").split() or [""]
        known = KnownFailure(
            name=name,
            fact=fact,
            values=tuple(values),
            pattern=re.compile(parser[section].get("log", "").replace("\n", ""), re.MULTILINE),
            meaning=parser[name]["why"].replace("\n", " "),
            remedy=parser[name]["cure"].replace("\n", " "),
        )
        table.append(known)
    return tuple(table)


def explain(lines: Sequence[str], facts: Mapping[str, str] = ANYWHERE) -> Explanation | None:
    """Return the known failure that the last lines and the facts match.

    The fact `exit` is an exit code, by which a shell tells a signal, or the name of a signal.
    """
    text = "\n".join(map(_shorten, lines))
    exit_text = facts.get("exit", "")
    for known in known_failures():
        is_so = not known.fact or known.fact in facts
        if known.values:
            is_so = facts.get(known.fact) in known.values
        match = known.pattern.search(text) if is_so else None
        if match:
            found = match.groupdict().items()
            groups = {name.rstrip("0123456789"): value for name, value in found if value}
            values = {**facts, **groups, "program": this_program()}
            words = {
                name: value if name in AS_IT_IS else quote(value) for name, value in values.items()
            }
            meaning = _substitute(known.meaning, values)
            return Explanation(known.name, meaning, _substitute(known.remedy, words))
    signum = int(exit_text) - 128 if re.fullmatch("[0-9]{1,3}", exit_text) else 0
    if not 0 < signum <= signal.SIGRTMAX:
        return None
    name = signal_name(signum)
    ended = explain((), {**ANYWHERE, "exit": name})
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
    def put(field: re.Match[str]) -> str:
        name, kind, more = field.groups()
        if name not in values:
            return more if kind == "|" else ""
        return more.replace("?", values[name]) if kind == ":" else values[name]

    return _PLACEHOLDER.sub(put, text)


_MISSING = re.compile(r"No module named '?(\w[\w.-]*)")


class ProjectFiles(NamedTuple):
    """The Python files of a run's project, by paths relative to the working folder of its ranks."""

    paths: AbstractSet[str]
    why_absent: Callable[[str], str]  # takes a path that ranks had not; "" if it is not here either


def explain_import(error: str, plan: Plan, files: ProjectFiles) -> tuple[str, str] | None:
    """Return what a failed import means and what to do about it, None if no file tells."""
    node = plan.nodes[0]
    words = node.command[: len(node.command) - node.arg_count] or ("",)  # as a host has them
    target = words[-1]
    is_module = "-m" in words[-3:-1]
    python_path = [path for path in node.env.get("PYTHONPATH", "").split(":") if path]
    ours = {posixpath.normpath(posixpath.join(node.cwd, path)) for path in plan.python_path}
    python_path = [path for path in python_path if path not in ours]
    path_key = "task.env.PYTHONPATH=" + "".join(f"{path}:" for path in python_path)
    missing = _MISSING.findall(error)[-1]
    is_own = is_module and f"{target}.".startswith(f"{missing}.")
    name = target if is_own else missing
    folder = "." if is_module else posixpath.dirname(target) or "."
    searched = {folder, *map(posixpath.normpath, python_path), *plan.python_path}
    modules = _importable(files.paths)
    homes = modules.get(name, set())
    if homes and searched.isdisjoint(homes):
        home = min(homes, key=len)
        return f"{name} is in {home}/, where Python does not look", quote(f"{path_key}{home}")
    for home in sorted({*searched, "src"}):
        path = posixpath.normpath(posixpath.join(home, name.replace(".", "/")))
        for absent in (f"{path}.py", f"{path}/__init__.py"):
            reason = files.why_absent(absent)
            if reason:
                remedy = f"correct that rule, or, if it is git's, `git add -f {absent}`"
                return f"{absent} was not pushed: {reason}", remedy
    tops = modules.get(name.partition(".")[0], set())
    if homes or not (is_own or tops):  # it is a library's, or fails for another reason
        return None
    near = suggest(name, modules)
    return f"the project has no module {name}", near or "add it, or correct the name"


def _importable(paths: AbstractSet[str]) -> dict[str, set[str]]:
    """Return the modules and packages in files, each with the folders from which it is imported."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        parts = re.sub(r"(/__init__)?\.py$", "", path).split("/")
        for start in range(len(parts)):
            folder = "/".join(parts[:start]) or "."
            if f"{folder}/__init__.py" in paths:
                break
            for end in range(start + 1, len(parts) + 1):
                folders.setdefault(".".join(parts[start:end]), set()).add(folder)
    return folders
