"""The status area: phase, elapsed time, state of each node, progress, and unfinished lines.

Other threads set its content; the writer's thread renders it with Rich, which is imported for the
first row.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from runner.core.text import counted, format_age
from runner.ui.console.lines import Source, label_of, without_rates
from runner.ui.console.progress_bar import BarState
from runner.ui.layout import fold_names, group_names

SHOW_AFTER_S = 1.0  # a run shorter than this needs no area
SILENT_S = 30.0  # without any output, after which that is said
RUNNING = "running"  # the phase in which ranks write
SCREEN_SHARE = 3  # the area takes at most one in this many rows of the terminal
MAX_NAMES_CELLS = 24  # the width of nodes' names in a row of the area
BAD_STATES = ("lost", "failed", "not reached", "unreachable", "refused")  # prefixes, highlighted

MIN_CELLS = 4
MAX_CELLS = 24
CELLS_SHARE = 4  # the width of a bar: at most one in this many cells of the terminal's
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
        self._lock = threading.Lock()
        self._states = dict.fromkeys(nodes, "")
        self._phase = ""
        self._phase_began = clock()
        self._heard_at = clock()
        self._progress: list[tuple[Source, str]] = []
        self._bar: BarState | None = None
        self._is_shown = False
        self.has_ended = False

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Set the phase, and the seconds for which it has lasted."""
        text = _one_line(text)
        with self._lock:
            if text != self._phase:
                self._phase = text
                self._phase_began = self._clock() - elapsed_s
                self._heard_at = self._clock()

    def heard(self) -> None:
        """Note that a rank wrote something."""
        self._heard_at = self._clock()

    def node_status(self, node: str, text: str) -> None:
        """Set the state of a node; "" for one that does not take part."""
        with self._lock:
            self._states[node] = _one_line(text)

    def progress(self, lines: list[tuple[Source, str]], bar: BarState | None) -> None:
        """Set the newest form of unfinished lines, and how far the ranks are by their metrics."""
        with self._lock:
            self._progress = sorted(lines, key=lambda line: line[0].rank)
            self._bar = bar

    def end(self) -> None:
        """Hide the area from now on."""
        with self._lock:
            self.has_ended = True

    def render(self, columns: int, rows: int) -> list[Row]:
        """Return the area's rows for a terminal of that size."""
        with self._lock:
            elapsed_s = self._clock() - self._phase_began
            phase = self._phase
            progress = self._progress
            bar = self._bar
            states = group_names((node, state) for node, state in self._states.items() if state)
            has_progress = bool(progress or bar)
            self._is_shown |= has_progress or elapsed_s > SHOW_AFTER_S
            if self.has_ended or not self._is_shown or not (phase or has_progress):
                return []
        head = [(phase or RUNNING, "bold"), (f"  {format_age(elapsed_s)}", "dim")]
        height = max(1, rows // SCREEN_SHARE)
        if len(states) == 1 or height == 1:  # a state of all nodes stands beside the phase
            for state, nodes in list(states.items())[:1]:
                names = fold_names(nodes)
                head.append((f"  {names}" if state == phase else f"  {names} {state}", ""))
            states = {}
        silent_s = self._clock() - self._heard_at
        if phase == RUNNING and silent_s >= SILENT_S:
            head.append((f"  no output for {format_age(silent_s)}", "yellow"))
        room = height - 1 - bool(bar)  # of which unfinished lines get at least half
        line_count = len({without_rates(text) for _, text in progress})
        texts = [head, *_state_rows(states, max(room - line_count, room - room // 2))]
        texts += [_bar_row(bar, columns)] if bar and height > 1 else []
        texts += _progress_rows(progress, height - len(texts))
        return _render_rows(texts, max(1, columns - 1), colour=self._colour)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def _state_rows(states: dict[str, list[str]], room: int) -> list[Parts]:
    rows = [(fold_names(nodes), state) for state, nodes in states.items()]
    shown = rows if len(rows) <= room else rows[: max(0, room - 1)]
    width = min(max((len(names) for names, _ in shown), default=0), MAX_NAMES_CELLS)
    texts = []
    for names, state in shown:
        short = names if len(names) <= width else f"{names[: width - 1]}…"
        colour = "red" if state.startswith(BAD_STATES) else ""
        texts.append([(f"  {short:{width}}  ", ""), (state, colour)])
    if len(shown) < len(rows) and room > 0:
        texts.append([(f"  … and {counted(len(rows) - len(shown), 'more state')}", "dim")])
    return texts


def _bar_row(bar: BarState, columns: int) -> Parts:
    """Return how far a rank is: a bar if the number of steps is known, and its figures.

    Where they have no room, the bar is shortened first; then figures are left out, the last ones
    first, and the bar.
    """
    label = f"[{bar.source.label}] "
    figures = bar.figures
    cells = 0
    if bar.share is not None:
        cells = max(MIN_CELLS, min(MAX_CELLS, columns // CELLS_SHARE))

    def text() -> str:
        return "  ".join(bar._replace(figures=figures).texts)

    def is_too_wide() -> bool:
        return len(label) + cells + bool(cells) + len(text()) >= columns

    while is_too_wide() and cells > MIN_CELLS:
        cells = max(MIN_CELLS, cells // 2)  # in few steps: the figures' width changes often
    while is_too_wide() and figures:
        figures = figures[:-1]
    cells = 0 if is_too_wide() else cells
    done = round((bar.share or 0) * cells)
    drawn = [(DONE * done, "green"), (LEFT * (cells - done) + " ", "dim")] if cells else []
    return [(label, "dim"), *drawn, (text(), "")]


def _progress_rows(progress: list[tuple[Source, str]], room: int) -> list[Parts]:
    """Return a row per text, whatever its rates; if these do not fit, one per node."""
    if room <= 0 or not progress:
        return []
    groups: dict[str, list[tuple[Source, str]]] = {}
    for key in (lambda line: without_rates(line[1]), lambda line: line[0].node):
        groups.clear()
        for line in progress:
            groups.setdefault(key(line), []).append(line)
        if len(groups) <= room:
            break
    lines = list(groups.values())
    shown = lines if len(lines) <= room else lines[: max(1, room - 1)]
    labels = [f"[{label_of([source for source, _ in group], math.inf)}]" for group in shown]
    width = max(map(len, labels))
    pairs = zip(labels, shown, strict=True)
    rows = [[(f"{label:{width}} ", "dim"), (group[0][1], "")] for label, group in pairs]
    hidden_count = sum(map(len, lines[len(shown) :]))
    if hidden_count and len(rows) < room:
        rows.append([(f"… and {counted(hidden_count, 'more rank')}", "dim")])
    return rows


def _render_rows(rows: list[Parts], width: int, *, colour: bool) -> list[Row]:
    from rich.console import Console
    from rich.text import Text

    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(file=io.StringIO(), width=width, force_terminal=colour, color_system=system)
    rendered = []
    for parts in rows:
        text = Text.assemble(*parts)
        text.truncate(width, overflow="ellipsis")
        with console.capture() as capture:
            console.print(text, end="", no_wrap=True, crop=True, highlight=False, soft_wrap=False)
        rendered.append(Row(capture.get().encode(errors="replace"), text.cell_len))
    return rendered
