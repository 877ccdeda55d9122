"""Text that somebody else wrote, as it can be printed; and numbers in words."""

from __future__ import annotations

from typing import List, Sequence


def printable(text: str) -> str:
    """Return it on one line and without a terminal's commands, whatever bytes it has."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def format_ranges(numbers: Sequence[int], noun: str = "rank") -> str:
    """Return "rank 3" or "ranks 0-3, 7" for ascending numbers."""
    ranges: List[List[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return f"{noun}{'' if len(numbers) == 1 else 's'} {', '.join(texts)}"


def bracket_ipv6(addr: str) -> str:
    """Return an address as it is written before a port."""
    return f"[{addr}]" if ":" in addr else addr
