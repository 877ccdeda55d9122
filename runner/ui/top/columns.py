"""Columns beside each other: those that matter least give way, and long cells lose their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.text import Text

from runner.ui.layout import COLUMN_GAP

HEAD_STYLE = "bold"


@dataclass(frozen=True)
class Column:
    """A column of a table: one cell per row."""

    header: str
    cells: Sequence[Text]
    priority: int  # of two columns that have no room together, the lower one stays
    is_number: bool = False  # it stands at the right
    least: int = 0  # cells from this width on may lose their end; 0: none does
    good: int = 0  # the width that it gets before columns of less priority get any

    @property
    def width(self) -> int:
        """The width of its longest cell, or of the header."""
        return max(cell_len(self.header), *(cell.cell_len for cell in self.cells), 1)

    @property
    def is_empty(self) -> bool:
        """Whether no cell says anything."""
        return not any(cell.plain.strip(" -") for cell in self.cells)


def fitting_widths(columns: Sequence[Column], width: int, wanted: dict[str, int]) -> dict[str, int]:
    """Return the headers of those that have room beside each other, and their widths.

    `wanted` has, and gets, the widths that they want, so that they stay while rows come and go.
    """
    for column in columns:
        if not column.is_empty or column is columns[0]:
            wanted[column.header] = max(column.width, wanted.get(column.header, 0))
    widths, left = dict[str, int](), width + COLUMN_GAP
    known = [column for column in columns if column.header in wanted]
    for column in sorted(known, key=lambda column: column.priority):
        want, room = wanted[column.header], left - COLUMN_GAP
        least = min(want, max(column.least, cell_len(column.header))) if column.least else want
        claimed = min(want, max(least, min(column.good, room)))
        if not widths or claimed <= room:
            widths[column.header] = min(claimed, width)
            left -= claimed + COLUMN_GAP
    for column in known:
        if column.header in widths:
            more = max(0, min(wanted[column.header] - widths[column.header], left))
            widths[column.header] += more
            left -= more
    return widths


def table_lines(columns: Sequence[Column], width: int, wanted: dict[str, int]) -> list[Text]:
    """Return the lines of the headers and of each row; for `wanted` see `fitting_widths`."""
    widths = fitting_widths(columns, width, wanted)
    shown = [column for column in columns if column.header in widths]
    rows: list[list[Text]] = [[Text(column.header, HEAD_STYLE) for column in shown]]
    count = len(columns[0].cells) if columns else 0
    rows += [[column.cells[at] for column in shown] for at in range(count)]
    return [_line(row, shown, widths) for row in rows]


def shorten(text: Text, width: int) -> Text:
    """Return a text that has at most this width; a longer one ends in an ellipsis."""
    if text.cell_len <= width:
        return text
    text = text.copy()
    text.truncate(max(width, 0), overflow="ellipsis")
    return text


def _line(row: Sequence[Text], columns: Sequence[Column], widths: dict[str, int]) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for column, cell in zip(columns, row, strict=True):
        if line:
            line.append(" " * COLUMN_GAP)
        short = shorten(cell, widths[column.header])
        blank = " " * (widths[column.header] - short.cell_len)
        parts = (blank, short) if column.is_number else (short, blank)
        line.append_text(Text.assemble(*parts))
    line.rstrip()
    return line
