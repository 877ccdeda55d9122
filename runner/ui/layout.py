"""Layout of text: folded names of nodes, aligned rows, tables, and figures of progress in words."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import textwrap
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from runner.core.metrics import Metrics
from runner.core.shell import this_program
from runner.core.wire.text import format_age, join_some, per_second, printable

if TYPE_CHECKING:
    from rich.table import Table

K = TypeVar("K", bound=Hashable)

UNLIMITED_WIDTH = 10_000  # where there is no terminal
COLUMN_GAP = 2
MAX_SHOWN = 1e15  # beyond it, and for other small numbers, the exponent is shown


def fold_names(names: Iterable[str]) -> str:
    """Return names in ClusterShell's notation, `gpu[1-7]`, which the YAML accepts, too.

    Text that is not a node's name, but has a meaning in that notation, is left as it is.
    """
    return _fold_unique_names(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=512)
def _fold_unique_names(names: tuple[str, ...]) -> str:
    if len(names) <= 1 or not all(re.fullmatch(r"[\w.-]{1,255}", name) for name in names):
        return ", ".join(names)
    from ClusterShell.NodeSet import NodeSet

    return str(NodeSet.fromlist(names))


def terminal_width(descriptor: int = 1) -> int:
    """Return the width of a terminal; in a pipe, a line may be as long as it has to."""
    with contextlib.suppress(OSError):
        return os.get_terminal_size(descriptor).columns or UNLIMITED_WIDTH
    return UNLIMITED_WIDTH


_PROGRAMS = r"sudo|ssh-\S+|ssh(?= -)|(?:\S*/)?(?:runner|fab|python[0-9.]* -m)"
"""What commands in messages begin with, besides this program as it was typed."""

_WHOLE = re.compile(
    r"""`[^`]*`|(?<!\w)'[^']*'(?!\w)|(?<!\w)"[^"]*"(?!\w)"""
    r"|\d (?:m?s|[mhdB]|[kMGT]B|[KMGTPE]iB)\b"
)
"""What is quoted, and numbers with their units."""


def wrap_lines(text: str, width: int) -> str:
    """Return text whose lines are broken at blanks alone; a command stays whole on a line."""
    return "\n".join(part for each in text.split("\n") for part in _wrap_line(each, width))


def _wrap_line(line: str, width: int) -> list[str]:
    margin = line[: len(line) - len(line.lstrip(" #"))]  # that of a comment, too
    if len(line) <= width or line.lstrip().startswith("| "):  # a quotation
        return [line]
    programs = f"{re.escape(this_program())}|{_PROGRAMS}"
    if match := re.fullmatch(rf"(|.*?: | +)((?:nohup )?(?:{programs}) \S.*)", line):
        before = match[1].rstrip()
        return [*_wrap_line(before, width), f"    {match[2]}"] if before else [line]
    return wrap(line[len(margin) :].rstrip(), width, margin, f"{margin}  ")


def wrap(text: str, width: int, margin: str = "", hanging_margin: str = "") -> list[str]:
    """Return text as lines broken at blanks, but not in quotes or between a number and its unit."""
    wrapper = textwrap.TextWrapper(width, margin, hanging_margin, break_long_words=False)
    wrapper.break_on_hyphens = False
    joined = _WHOLE.sub(lambda match: match[0].replace(" ", "\0"), text)
    return [line.replace("\0", " ") for line in wrapper.wrap(joined)] or [""]


def table_lines(table: Table, width: int = UNLIMITED_WIDTH, *, colour: bool = False) -> list[str]:
    """Return a table of Rich's as lines of at most this width."""
    from rich.console import Console

    if not table.rows:  # Rich would print an empty line
        return []
    colours: Literal["standard"] | None = "standard" if colour else None
    console = Console(width=width, color_system=colours, force_terminal=colour)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def new_table(**options: Any) -> Table:
    from rich.table import Table

    return Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), **options)


def aligned(rows: Iterable[Sequence[str]], indent: str = "  ") -> list[str]:
    """Return rows as lines with their columns below each other, however long."""
    from rich.text import Text

    table = new_table(show_header=False)
    for row in rows:
        table.add_row(*(Text(printable(cell), no_wrap=True) for cell in row))
    return [indent + line for line in table_lines(table)]


def columns_that_fit(widths: Mapping[str, int], giving_way: Iterable[str], width: int) -> list[str]:
    """Return the columns of a table that have room beside each other.

    Those of `giving_way` are left out as long as there is not enough, the first one first.
    """
    kept = dict(widths)
    for name in giving_way:
        if sum(kept.values()) + COLUMN_GAP * (len(kept) - 1) <= width:
            break
        kept.pop(name, None)
    return [*kept]


def fitted(
    columns: Mapping[str, Sequence[str]], giving_way: Iterable[str], width: int, more: str
) -> list[str]:
    """Return columns, each with its header, as lines; those without room are named below.

    `more` is the flag that shows all.
    """
    from rich.cells import cell_len

    widths = {name: max(map(cell_len, cells)) for name, cells in columns.items()}
    shown = columns_that_fit(widths, giving_way, width)
    lines = aligned(zip(*(columns[name] for name in shown), strict=True), indent="")
    left_out = [cells[0].strip() for name, cells in columns.items() if name not in shown]
    if named := [header for header in left_out if header]:
        told = f"left out, to fit: {join_some(named, 6)}; {more} has all"
        lines += wrap(told, width, hanging_margin="  ")
    return lines


def group_names(keys: Iterable[tuple[str, K]]) -> dict[K, list[str]]:
    """Return the names of each key, in the order of each key's first name."""
    groups: dict[K, list[str]] = {}
    for name, key in keys:
        groups.setdefault(key, []).append(name)
    return groups


def step_text(progress: Metrics) -> str:
    """Return "120/240", or "step 120" where it is not known how many there are; "" for no step."""
    if progress.step is None:
        return ""
    if progress.steps is None:
        return f"step {progress.step}"
    return f"{progress.step}/{progress.steps}"


def rate_text(progress: Metrics) -> str:
    if progress.rate is None:
        return ""
    unit = per_second(printable(progress.unit))
    space = "" if unit.startswith("/") else " "
    return f"{number_text(progress.rate)}{space}{unit}"


def left_text(left_s: float | None) -> str:
    return "" if left_s is None else f"{format_age(left_s)} left"


def number_text(value: float) -> str:
    """Return a number with four digits that say something, or all before the point."""
    is_long = math.isfinite(value) and 1e4 <= abs(value) < MAX_SHOWN  # noqa: PLR2004 (four digits)
    return f"{value:,.0f}" if is_long else f"{value:.4g}"
