"""Screen of the live view: its lines for a window of some size, and what keys change of them."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from runner.ui.layout import COLUMN_GAP, PIPE_WIDTH
from runner.ui.top.cells import clean
from runner.ui.top.cluster_view import ClusterView
from runner.ui.top.columns import shorten
from runner.ui.top.node_table import SORTS, node_lines, ordered_rows, summary
from runner.ui.top.run_table import run_lines

MAX_RUN_SHARE = 3  # a third of the window is for runs, or less
HELP = (
    ("s", "sort by: unusual, name, use, memory"),
    ("r", "reverse the order"),
    ("g", "a line per GPU, or per node"),
    ("up down k j", "scroll by a line"),
    ("PgUp PgDn space b", "scroll by a page"),
    ("Home End", "to the first, to the last"),
    ("? h", "this help, and back"),
    ("q Esc Ctrl-C", "quit"),
)


class Screen:
    """What is shown of a cluster, and where the reader is in it."""

    def __init__(self, *, ascii_only: bool = False) -> None:
        self.sort, self.reverse, self.by_gpu, self.shows_help = SORTS[0], False, False, False
        self._ascii_only = ascii_only
        self._offset = 0
        self._page, self._row_count = 1, 0
        self._widths: dict[str, int] = {}  # wanted by the columns so far
        self._width = 0

    def on_key(self, key: str) -> None:
        """Do what a key asks for; others do nothing."""
        moves = {
            **dict.fromkeys(("up", "k"), -1),
            **dict.fromkeys(("down", "j"), 1),
            **dict.fromkeys(("pageup", "b"), -self._page),
            **dict.fromkeys(("pagedown", " "), self._page),
            "home": -self._row_count,
            "end": self._row_count,
        }
        if key in moves:
            self._offset = self._clamped(self._offset + moves[key])
        elif key in ("s", "r", "g"):
            self._arrange(key)
        elif key in ("?", "h"):
            self.shows_help = not self.shows_help

    def _arrange(self, key: str) -> None:
        """Show the rows in another way, from the first on."""
        self._offset, self._widths = 0, {}
        if key == "s":
            self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
        elif key == "r":
            self.reverse = not self.reverse
        else:
            self.by_gpu = not self.by_gpu

    def lines(self, view: ClusterView, width: int, height: int) -> list[Text]:
        """Return the lines of a window; none is wider, and there are exactly `height`."""
        header = _header(view, width)
        if self.shows_help:
            body = _help_lines(width)[: max(0, height - 2)]
            footer = "? back   q quit"
        else:
            body = self._body(view, width, height - 1)
            footer = self._footer(width)
        lines = [header, *body]
        lines += [Text()] * (height - len(lines) - 1)
        lines[max(0, height - 1) :] = [shorten(Text(footer, "dim"), width)] if height > 1 else []
        return lines[:height]

    def _body(self, view: ClusterView, width: int, height: int) -> list[Text]:
        notes = [shorten(Text(clean(note), "dim"), width) for note in view.notes[:2]]
        runs = run_lines(view.runs, width, (height - 1) // MAX_RUN_SHARE)
        below = [*([Text()] if runs else []), *runs, *notes]
        room = max(1, height - len(below) - 2)
        rows = ordered_rows(view, self.sort, reverse=self.reverse, by_gpu=self.by_gpu)
        self._page, self._row_count = room, len(rows)
        self._offset = self._clamped(self._offset)
        if width != self._width:
            self._width, self._widths = width, {}
        shown = rows[self._offset : self._offset + room]
        shown[:1] = [replace(row, is_first=True) for row in shown[:1]]  # its node has a name
        lines = node_lines(shown, width, self._widths, ascii_only=self._ascii_only)
        return [*lines, *below]

    def _clamped(self, offset: int) -> int:
        return max(0, min(offset, self._row_count - self._page))

    def _footer(self, width: int) -> str:
        order = f"s sort: {self.sort}{' reversed' if self.reverse else ''}"
        last = min(self._row_count, self._offset + self._page)
        place = f"{self._offset + 1}-{last} of {self._row_count}"
        parts = [place] if self._row_count > self._page else []
        for part in ("q quit", "? help", order, f"g {'nodes' if self.by_gpu else 'GPUs'}"):
            if sum(map(len, parts)) + 3 * len(parts) + len(part) <= width:
                parts.append(part)
        return "   ".join(parts)


def text_table(view: ClusterView, width: int, *, ascii_only: bool = False) -> list[Text]:
    """Return all lines, as they are printed once."""
    rows = ordered_rows(view, SORTS[0])
    lines = [
        _header(view, min(width, PIPE_WIDTH)),
        *node_lines(rows, width, {}, ascii_only=ascii_only),
    ]
    runs = run_lines(view.runs, width, len(view.runs) + 2)
    return [*lines, *([Text()] if runs else []), *runs, *[Text(clean(n)) for n in view.notes]]


def encode_frame(lines: Sequence[Text], width: int, *, colour: bool) -> list[str]:
    """Return lines with the sequences of their colours."""
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        color_system="standard" if colour else None,
        no_color=not colour,
        width=width,
        legacy_windows=False,
        markup=False,
        highlight=False,
        emoji=False,
    )
    with console.capture() as captured:
        for line in lines:
            console.print(line, no_wrap=True, overflow="crop", crop=True)
    return captured.get().split("\n")[: len(lines)]


def _header(view: ClusterView, width: int) -> Text:
    """Return the title, as much of the summary as has room, and the time at the right."""
    clock = time.strftime("%H:%M:%S", time.localtime(view.wall))
    header = Text(clean(view.title), "bold")
    said = summary(view)
    for name in ("hosts", "gpus", "use"):
        more = " " * COLUMN_GAP + said[name]
        if said[name] and header.cell_len + len(more) + COLUMN_GAP + len(clock) <= width:
            header.append(more, "red" if name == "hosts" and view.silent else "")
    if header.cell_len + COLUMN_GAP + len(clock) <= width:
        header.append(clock.rjust(width - header.cell_len), "dim")
    return shorten(header, width)


def _help_lines(width: int) -> list[Text]:
    keys = max(len(key) for key, _ in HELP)
    return [
        Text(),
        *(
            shorten(Text.assemble((f"  {key:{keys}}", "bold"), f"  {does}"), width)
            for key, does in HELP
        ),
        Text(),
        *(
            shorten(Text(f"  {line}"), width)
            for line in (
                "Unusual, the worst first: not answering, GPU errors, throttled, hot,",
                "used outside of runs, idle while its run works, power-limited.",
            )
        ),
    ]
