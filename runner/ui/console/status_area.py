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

from runner.core.text import counted, format_age
from runner.ui.console.lines import Source, Stream, clean_lines, label_of, without_rates
from runner.ui.console.progress_bar import BarState
from runner.ui.layout import fold_names, group_names

SHOW_AFTER_S = 1.0  # a run shorter than this needs no area
SILENT_S = 30.0  # without any output, after which that is said
RUNNING = "running"  # the phase in which ranks write
SCREEN_SHARE = 3  # the area takes at most one in this many rows of the terminal
MAX_NAMES_CELLS = 24  # the width of nodes' names in a row of the area
BAD_STATES = ("lost", "failed", "not reached", "unreachable", "refused")  # prefixes, highlighted

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
    """The content of the area, for any number of threads."""

    def __init__(
        self, nodes: Sequence[str], *, colour: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._colour = colour
        self._states = dict.fromkeys(nodes, "")
        self._phase = ""
        self._phase_began = clock()
        self._heard_at = clock()
        self._lines: list[tuple[Stream, bytes]] = []
        self._bar: BarState | None = None
        self._is_shown = False
        self.has_ended = False

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Set the phase, and the seconds for which it has lasted; less than 0 is a countdown."""
        text = _one_line(text)
        if text != self._phase:
            self._phase = text
            self._phase_began = self._clock() - elapsed_s
            self.heard()

    def heard(self) -> None:
        """Note that a rank wrote something."""
        self._heard_at = self._clock()

    def node_status(self, node: str, text: str) -> None:
        """Set the state of a node; "" for one that does not take part."""
        self._states[node] = _one_line(text)

    def progress(self, lines: list[tuple[Stream, bytes]], bar: BarState | None) -> None:
        """Set the newest form of unfinished lines, and how far the ranks are by their metrics."""
        self._lines = lines
        self._bar = bar

    def render(self, columns: int, rows: int) -> list[Row]:
        """Return the area's rows for a terminal of that size."""
        phase = self._phase
        bar = self._bar
        lines = _line_rows(self._lines)
        elapsed_s = self._clock() - self._phase_began
        self._is_shown |= bool(lines or bar) or not 0 <= elapsed_s <= SHOW_AFTER_S
        if self.has_ended or not self._is_shown or not (phase or lines or bar):
            return []
        age = format_age(elapsed_s) if elapsed_s >= 0 else f"in {format_age(math.ceil(-elapsed_s))}"
        head = [(phase or RUNNING, "bold"), (f"  {age}", "dim")]
        pairs = [(node, state) for node, state in list(self._states.items()) if state]
        states = group_names(pairs)
        if len(states) == 1:  # a state of all nodes stands beside the phase
            state, nodes = states.popitem()
            names = fold_names(nodes)
            head.append((f"  {names}" if state == phase else f"  {names} {state}", ""))
        silent_s = self._clock() - self._heard_at
        if phase == RUNNING and silent_s >= SILENT_S:
            head.append((f"  no output for {format_age(silent_s)}", "yellow"))
        height = max(1, rows // SCREEN_SHARE)
        room = height - 1 - bool(bar)  # of which unfinished lines get at least half
        states_room = max(room - len(lines), room - room // 2)
        shown = [head, *_fitting(_state_rows(states), states_room, "state")]
        if bar and height > 1:
            shown.append(_bar_row(bar))
        shown += _fitting(lines, height - len(shown), "line")
        return _render_rows(shown, max(1, columns - 1), colour=self._colour)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def _fitting(rows: list[Parts], room: int, noun: str) -> list[Parts]:
    """Return the rows, or as many as there is room for, the last of which counts the others."""
    if len(rows) <= room:
        return rows
    shown = rows[: max(0, room - 1)]
    more = counted(len(rows) - len(shown), f"more {noun}")
    return [*shown, [(f"  … and {more}", "dim")]] if room > 0 else []


def _state_rows(states: dict[str, list[str]]) -> list[Parts]:
    rows = []
    names = {state: fold_names(nodes) for state, nodes in states.items()}
    width = min(max(map(len, names.values()), default=0), MAX_NAMES_CELLS)
    for state, name in names.items():
        short = name if len(name) <= width else f"{name[: width - 1]}…"
        colour = "red" if state.startswith(BAD_STATES) else ""
        rows.append([(f"  {short:{width}}  ", ""), (state, colour)])
    return rows


def _bar_row(bar: BarState) -> Parts:
    """Return how far a rank is: a bar if the number of steps is known, and its figures."""
    parts = [(f"[{bar.source.label}] ", "dim")]
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
