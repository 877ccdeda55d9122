"""Shell quoting: the only place where text becomes shell text."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def quote(word: str) -> str:
    """Return `word` as one literal shell word; in zsh too, where `=ls` is /bin/ls."""
    quoted = shlex.quote(word)
    return f"'{word}'" if quoted.startswith("=") else quoted


def path(word: str) -> str:
    """Quote a path, but let the shell on the host expand a leading `~/`."""
    if word == "~":
        return '"$HOME"'
    if word.startswith("~/"):
        return '"$HOME"/' + quote(word[2:]) if word[2:] else '"$HOME"/'
    return quote(word)


def expand_home(path: str) -> str:
    """Replace a leading `~`, or `~user`, here; that of an unknown user stays, as in a shell."""
    return os.path.expanduser(path)  # noqa: PTH111 (the other raises for one)


def line(argv: Sequence[str], paths: int = 0) -> str:
    """Join `argv` into one line that a POSIX shell splits back into exactly `argv`.

    The first `paths` words are quoted as paths: see `path`.
    """
    return " ".join([*map(path, argv[:paths]), *map(quote, argv[paths:])])


def cluster_flag(name: str) -> str:
    """Return the words that choose a cluster by its name, `a+b` if several files make it."""
    return line(["--cluster", f"[{name.replace('+', ',')}]" if "+" in name else name])


def assignments(env: Mapping[str, str], references: Iterable[str] = ()) -> str:
    """Return `A=1 B=2`, for use before a command; `references` become `NAME="$NAME"`."""
    words = [f"{name}={quote(value)}" for name, value in env.items()]
    words += [f'{name}="${{{name}}}"' for name in references]
    return " ".join(words)


def this_program() -> str:
    """Return what starts this program, as it was typed: `runner`, or `python -m runner`.

    If it was not typed, such as in `fab`, it is the former: where a user has a `runner.py`,
    the latter starts that.
    """
    script = sys.argv[0] if sys.argv else ""
    typed = [script] if Path(script).name == "runner" else ["runner"]
    if script.endswith("/runner/__main__.py"):
        words: list[str] = getattr(sys, "orig_argv", ["python", "-m", "runner", *sys.argv[1:]])
        typed = words[: len(words) - len(sys.argv) + 1]
    name = Path(typed[0]).name
    return line([name if shutil.which(name) == typed[0] else typed[0], *typed[1:]])
