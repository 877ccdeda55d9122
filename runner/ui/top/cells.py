"""Cells of a table: the words of hosts, in short, and such that no terminal acts upon them."""

from runner.core.text import printable

MAX_TEXT = 200  # characters of a host's word


def clean(text: str) -> str:
    """Return a host's word in short, and such that no terminal acts upon it."""
    return printable(text[:MAX_TEXT])


def user_text(user: str, command: str) -> str:
    """Return whose process it is: "ada:python"."""
    return clean(f"{user or '?'}:{command.rpartition('/')[2]}" if command else user or "?")
