"""The status area: phase, elapsed time, state of each node, progress, and unfinished lines.

Other threads set its content; the writer's thread renders it with Rich, which is imported for the
first row.
"""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from runner.core.errors import fold_names
from runner.core.wire.text import counted, format_age, printable
from runner.ui.console.lines import Source, Stream, clean_lines, label_of, without_rates
from runner.ui.console.progress_bar import BarState
from runner.ui.layout import group_names

SHOW_AFTER_S = 1.0  # a run shorter than this needs no area
SILENT_S = 30.0  # without any output, after which that is said
RUNNING = "running"  # the phase in which ranks write
SCREEN_SHARE = 3  # the area takes at most one in this many rows of the terminal
MAX_NAMES = 24  # the width of nodes' names in a row of the area

BAR_CELLS = 12
DONE = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"
LEFT = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"

Parts = list[tuple[str, str]]
"""The pieces of a row, each with its style for Rich."""


class Row(NamedTuple):
    """A line of the area as it is written, and how many cells it takes."""

    text: bytes
    cells: int


class StatusArea:
    def __init__(
        self, nodes: Sequence[str], *, colour: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._colour = colour
        self._states = dict.fromkeys(nodes, "")
        self._phase = ""
        self._phase_began = clock()
        self._heard_at = clock()
        self.lines: list[tuple[Stream, bytes]] = []  # unfinished ones
        self.bar: BarState | None = None
        self._is_shown = False
        self.has_ended = False

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Set the phase ("connecting", "running", "stopping"), and how long it has lasted."""
        text = printable(" ".join(text.split()))
        if text != self._phase:
            self._phase = text
            self._phase_began = self._clock() - elapsed_s
            self.heard()

    def heard(self) -> None:
        self._heard_at = self._clock()

    def node_status(self, node: str, text: str) -> None:
        """Set the state of a node ("ready", "lost"); "" for one that does not take part."""
        self._states[node] = printable(" ".join(text.split()))

    def render(self, columns: int, rows: int) -> list[Row]:
        bar = self.bar
        lines = _line_rows(self.lines)
        elapsed_s = self._clock() - self._phase_began
        self._is_shown |= bool(lines or bar) or elapsed_s > SHOW_AFTER_S
        if self.has_ended or not self._is_shown or not (self._phase or lines or bar):
            return []
        head = [(self._phase or RUNNING, "bold"), (f"  {format_age(elapsed_s)}", "dim")]
        states = group_names(each for each in list(self._states.items()) if each[1])
        if len(states) == 1:  # a state of all nodes stands beside the phase
            state, nodes = states.popitem()
            head.append((f"  {fold_names(nodes)}{f' {state}' * (state != self._phase)}", ""))
        silent_s = self._clock() - self._heard_at
        if self._phase == RUNNING and silent_s >= SILENT_S:
            head.append((f"  no output for {format_age(silent_s)}", "yellow"))
        shown = [head]
        if bar:
            shown.append(_bar_row(bar))
        shown += _state_rows(states)
        shown += lines
        height = max(1, rows // SCREEN_SHARE)
        if len(shown) > height:
            more = counted(len(shown) - height + 1, "more line")
            shown[max(1, height - 1) :] = [[(f"  … and {more}", "dim")]]
        return _render_rows(shown[:height], max(1, columns - 1), colour=self._colour)


def _state_rows(states: dict[str, list[str]]) -> list[Parts]:
    rows = [(fold_names(nodes), state) for state, nodes in states.items()]
    rows = [(n if len(n) <= MAX_NAMES else f"{n[: MAX_NAMES - 1]}…", state) for n, state in rows]
    width = max((len(names) for names, _ in rows), default=0)
    return [[(f"  {names:{width}}  {state}", "")] for names, state in rows]


def _bar_row(bar: BarState) -> Parts:
    parts = [(f"[{label_of([bar.source])}] ", "dim")]
    if bar.share is not None:
        done = round(bar.share * BAR_CELLS)
        parts += [(DONE * done, "green"), (LEFT * (BAR_CELLS - done) + " ", "dim")]
    return [*parts, ("  ".join(bar.texts), "")]


def _line_rows(lines: list[tuple[Stream, bytes]]) -> list[Parts]:
    """Return a row per unfinished line, of several ranks if it differs in its rates alone."""
    rows: dict[str, tuple[str, list[Source]]] = {}
    for (source, _), line in sorted(lines, key=lambda each: each[0][0].rank):
        text = clean_lines(line, keep_colours=False).decode(errors="replace").expandtabs(4)
        rows.setdefault(without_rates(text), (text, []))[1].append(source)
    labels = [f"[{label_of(sources, math.inf)}]" for _, sources in rows.values()]
    width = max(map(len, labels), default=0)
    pairs = zip(labels, rows.values(), strict=True)
    return [[(f"{label:{width}} ", "dim"), (text, "")] for label, (text, _) in pairs]


def _render_rows(rows: list[Parts], width: int, *, colour: bool) -> list[Row]:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), width=width, force_terminal=colour, no_color=not colour)
    rendered = []
    for parts in rows:
        text = Text.assemble(*parts)
        text.truncate(width, overflow="ellipsis")
        with console.capture() as capture:
            console.print(text, end="", no_wrap=True, crop=True, highlight=False)
        rendered.append(Row(capture.get().encode(errors="replace"), text.cell_len))
    return rendered
