"""Shell quoting: the only place where text becomes shell text."""

from __future__ import annotations

import shlex
from typing import Iterable, Mapping, Sequence


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


def line(argv: Sequence[str], paths: int = 0) -> str:
    """Join `argv` into one line that a POSIX shell splits back into exactly `argv`.

    The first `paths` words are quoted as paths: see `path`.
    """
    return " ".join([*map(path, argv[:paths]), *map(quote, argv[paths:])])


def assignments(env: Mapping[str, str], references: Iterable[str] = ()) -> str:
    """Return `A=1 B=2`, for use before a command; `references` become `NAME="$NAME"`."""
    words = [f"{name}={quote(value)}" for name, value in env.items()]
    words += [f'{name}="${{{name}}}"' for name in references]
    return " ".join(words)
