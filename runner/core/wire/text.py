"""Text for people: counts, lists, sizes and exits in words, and untrusted text made printable."""

from __future__ import annotations

import contextlib
import re
import signal
from pathlib import Path
from typing import List, Optional, Sequence, Tuple, Union

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")


def printable(text: str) -> str:
    """Return text on one line, with everything escaped that a terminal might act upon."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def printable_lines(text: str) -> str:
    """Return text with its lines kept, and everything else escaped that a terminal might act upon.

    Whatever a host may have worded passes this on its way to a terminal or a pipe. Colours are
    left out: logs and tracebacks that are quoted often have some.
    """
    lines = _COLOUR.sub("", text).replace("\r\n", "\n").expandtabs(4).split("\n")
    return "\n".join(line if line.isprintable() else printable(line) for line in lines)


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return "1 rank", "2 ranks" or "1,000 ranks"."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def join_some(names: Sequence[str], limit: int = 8, others: str = "more") -> str:
    """Return the first of many names: "gpu1, gpu2 and 6 more"."""
    more = f" and {len(names) - limit} {others}" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def natural_key(name: str) -> List[Tuple[int, Union[int, str]]]:
    """Return a key by which gpu2 comes before gpu10."""
    parts = re.findall(r"[0-9]+|[^0-9]+", name)
    return [(0, int(part)) if part.isdecimal() else (1, part) for part in parts]


def format_size(size: int) -> str:
    """Return a number of bytes in its largest unit: "1.5 GB"."""
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size} B"


def format_age(seconds: float) -> str:
    """Return a time span in its two largest units: "42 s", "1 m 26 s", "2 h 05 m", "3 d 04 h"."""
    minutes, rest_s = divmod(int(seconds), 60)
    hours, rest_m = divmod(minutes, 60)
    days, rest_h = divmod(hours, 24)
    if days:
        return f"{days} d {rest_h:02} h"
    if hours:
        return f"{hours} h {rest_m:02} m"
    return f"{minutes} m {rest_s:02} s" if minutes else f"{rest_s} s"


def format_duration(seconds: float) -> str:
    """Return how long something took: "4.2 s", "1 m 05 s", "2 h 00 m"."""
    is_short = round(seconds, 1) < 60  # noqa: PLR2004 (a minute)
    return f"{seconds:.1f} s" if is_short else format_age(round(seconds))


def per_second(unit: str) -> str:
    """Return the unit of a rate: "samples/s", also where a program had said so itself."""
    if unit.endswith("/s"):  # noqa: FURB188 (Python 3.8)
        unit = unit[: -len("/s")]
    return f"{unit}/s"


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
    """Return an address in the form that a port can follow."""
    return f"[{addr}]" if ":" in addr else addr


def signal_name(signum: int) -> str:
    """Return "SIGTERM", or "signal 40" for one without a name."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"signal {signum}"


def describe_exit(code: Optional[int], signum: Optional[int]) -> str:
    """Return how a process ended: "exited with 3", "was killed by SIGKILL"."""
    if signum:
        return f"was killed by {signal_name(signum)}"
    return "ended unseen" if code is None else f"exited with {code}"


def display_folder(path: str) -> str:
    """Return the path of a folder here as one types it: "." or "~/project"."""
    home = str(Path("~").expanduser())
    with contextlib.suppress(OSError):  # the working folder was removed
        if Path(path) == Path.cwd():
            return "."
    return f"~{path[len(home) :]}" if path.startswith(f"{home}/") else path
