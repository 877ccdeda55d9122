"""Text that somebody else wrote, as it can be printed; and numbers in words."""

from __future__ import annotations

from typing import List, Sequence


def readable(text: str) -> str:
    """Return it on one line and without a terminal's commands, whatever bytes it has."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def spans(numbers: Sequence[int], noun: str = "rank") -> str:
    """Return "rank 3" or "ranks 0-3, 7" for ascending numbers."""
    found: List[List[int]] = []
    for number in numbers:
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in found]
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(texts)}"


def bracketed(addr: str) -> str:
    """Return an address as it is written before a port."""
    return f"[{addr}]" if ":" in addr else addr
