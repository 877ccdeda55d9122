"""Text that somebody else wrote, as it can be printed."""

from __future__ import annotations


def readable(text: str) -> str:
    """Return it on one line and without a terminal's commands, whatever bytes it has."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
