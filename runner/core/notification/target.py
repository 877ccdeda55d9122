"""Notification target: a shell command, which reads the message on its standard input."""

from __future__ import annotations

import re
from typing import Iterable

from runner.core.text import printable

MAX_TARGETS = 8
MAX_CHARS = 4096
MAX_SHOWN_CHARS = 60
MIN_HIDDEN_CHARS = 4
"""Shorter values of secrets are not looked for: `1` would be found everywhere."""

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def target_problem(target: str) -> str:
    """Return why a text cannot be a target, "" if it can."""
    if not target.strip():
        return "a target is empty"
    if len(target) > MAX_CHARS:
        return f"a target has more than {MAX_CHARS} characters"
    if any(char in target for char in "\n\r\0"):
        return "a target has more than one line"
    if _URL.match(target):
        return "a URL is no command: write curl -fsS -d @- in front of it"
    return ""


def shown(target: str) -> str:
    """Return a target as messages name it."""
    text = printable(target)
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return text in which `***` stands for secrets, and for each line of one that has several."""
    parts = {part for value in secrets for part in (value, *value.splitlines())}
    for part in sorted(parts, key=len, reverse=True):
        if len(part) >= MIN_HIDDEN_CHARS:
            text = text.replace(part, "***")
    return text
