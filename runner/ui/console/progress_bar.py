"""Progress bar: the figures of the lowest rank that prints metrics lines.

Pure: the caller passes the time. Lines with nothing but figures are taken out of the output, those
of other ranks too: they are in the log files and in `metrics.jsonl`. Not so what counts something
else, as an evaluation does, in a program whose other lines say how many steps there are.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import deque
from typing import NamedTuple

from runner.core.model.metrics import (
    MAX_LINE,
    LatestMetrics,
    Metrics,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
    seconds_left,
)
from runner.ui.console.dedup import Source
from runner.ui.figures import left_text, loss_text, more_texts, rate_text, step_text

WINDOW, MIN_PAUSE_S = 30, 1.0
"""How many observations the time left is estimated from, and the time that each of them covers."""

MIN_SPAN_S = 3.0  # between the first and the last of them, for an estimate
HISTORY_S, HISTORY_PACE = 60.0, 5.0
"""What was written before an attach comes at once, or quicker than a run writes: in the first time,
what came so many times quicker than what followed it says nothing of the pace."""

MIN_CELLS, MAX_CELLS = 4, 24
CELLS_SHARE = 4  # the width of a bar: at most one in this many cells of the terminal's
DONE, LEFT = "\N{BOX DRAWINGS HEAVY HORIZONTAL}", "\N{BOX DRAWINGS LIGHT HORIZONTAL}"

Parts = list[tuple[str, str]]
"""The pieces of a row, each with its style for Rich."""


SILENT_S = 60.0  # after which another rank is shown


class BarState(NamedTuple):
    """What the bar shows."""

    source: Source
    share: float | None  # of the steps that are done; None if it is not known how many there are
    step: str
    figures: tuple[str, ...] = ()  # what matters most is first
    left: str = ""

    @property
    def texts(self) -> tuple[str, ...]:
        """All that is shown beside the bar."""
        return tuple(filter(None, (self.step, *self.figures, self.left)))


class StepClock:
    """How long the steps of one rank take, by when they were seen."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=WINDOW)  # when, and the step
        self._began: float | None = None  # the first of all
        self._since = 0.0  # the beginning of the time that the last one covers

    def note(self, step: int, now: float) -> None:
        """Note a step; one before the last is the first of a restart."""
        if self._began is None:
            self._began = now
        last = self._seen[-1][1] if self._seen else None
        if step == last:
            return
        if last is not None and step < last:
            self._seen.clear()
        if self._seen and now - self._since < MIN_PAUSE_S:
            self._seen[-1] = (now, step)
        else:
            self._since = now
            self._seen.append((now, step))

    def left_s(self, steps: int | None, now: float) -> float | None:
        """Return the time left at `now`, None as long as it cannot be told."""
        if not self._seen:
            return None
        began, first = self._first()
        seen_at, last = self._seen[-1]
        if seen_at - began < MIN_SPAN_S:
            return None
        left = seconds_left(steps, last, last - first, seen_at - began)
        return None if left is None else max(0.0, left - (now - seen_at))

    def _first(self) -> tuple[float, int]:
        """Return the first observation that is no history."""
        first = self._seen[0]
        for (began, step), (ended, next_step) in itertools.pairwise(self._seen):
            if self._began is None or began - self._began > HISTORY_S:
                break
            pace_s = (ended - began) / (next_step - step)
            if step > first[1] and pace_s > HISTORY_PACE * (began - first[0]) / (step - first[1]):
                first = began, step
        return first


class ProgressBar:
    """The metrics of the ranks of one attempt."""

    def __init__(self, pattern: str = "") -> None:
        self._pattern = compile_pattern(pattern)
        self._partial_lines: dict[Source, bytes] = {}  # of the files that ranks append to
        self._ranks: dict[Source, LatestMetrics] = {}
        self._source: Source | None = None
        self._clock = StepClock()
        self._seen_at = 0.0

    def take(self, source: Source, lines: bytes, now: float) -> bytes | None:
        """Take the metrics out of whole lines; return the others, None if there are none.

        Lines that say more than figures are among the others, those of a pattern as well.
        """
        if not may_have_metrics(lines, self._pattern):
            return lines
        others = []
        for line in lines.split(b"\n"):
            metrics = None
            with contextlib.suppress(ValueError):  # broken: it stays output
                metrics = parse_metrics(line, self._pattern)
            is_shown = metrics is not None and self._note(source, metrics, now)
            if metrics is None or not (is_shown and metrics.is_all_figures):
                others.append(line)
        return b"\n".join(others) if others else None

    def feed(self, source: Source, data: bytes, now: float) -> None:
        """Take a piece of the file to which a rank appends metrics."""
        lines, line_break, rest = (self._partial_lines.get(source, b"") + data).rpartition(b"\n")
        self._partial_lines[source] = rest[: MAX_LINE + 1]
        if line_break:
            self.take(source, lines, now)

    def state(self, now: float) -> BarState | None:
        """Return what is to be shown, None while there is nothing."""
        return self._shown(self._clock.left_s(self._metrics.steps, now) if self._metrics else None)

    def _shown(self, left_s: float | None) -> BarState | None:
        metrics = self._metrics
        if self._source is None or metrics is None:
            return None
        share = min(1.0, (metrics.step or 0) / metrics.steps) if metrics.steps else None
        figures = (loss_text(metrics), rate_text(metrics), *more_texts(metrics))
        left = left_text(left_s if share != 1 else None)
        return BarState(self._source, share, step_text(metrics), tuple(filter(None, figures)), left)

    def pop(self) -> BarState | None:
        """Return its last figures once, without the time that was left, and begin anew."""
        state = self._shown(None)
        self._source = None
        self._clock = StepClock()
        self._ranks.clear()
        return state

    def _note(self, source: Source, metrics: Metrics, now: float) -> bool:
        """Take a line of a rank; return whether it counts the rank's steps."""
        rank = self._ranks.setdefault(source, LatestMetrics())
        was_plain = rank.metrics is not None and rank.metrics.form < metrics.form
        if not rank.take(metrics):
            return False
        if was_plain and source == self._source:
            self._clock = StepClock()  # those were epochs, or other steps
        if source != self._source and self._replaces(source, metrics, now):
            self._source = source
            self._clock = StepClock()
        if source == self._source:
            self._seen_at = now
            if metrics.step is not None:
                self._clock.note(metrics.step, now)
        return True

    def _replaces(self, source: Source, metrics: Metrics, now: float) -> bool:
        """Return whether another rank is to be shown from now on."""
        shown = self._metrics
        if self._source is None or shown is None:
            return True
        if (metrics.steps is None) != (shown.steps is None):
            return shown.steps is None
        return source.rank < self._source.rank or now - self._seen_at > SILENT_S

    @property
    def _metrics(self) -> Metrics | None:
        return self._ranks[self._source].metrics if self._source else None


def bar_row(bar: BarState, columns: int) -> Parts:
    """Return how far a rank is: a bar if the number of steps is known, and its figures.

    Where they have no room, the bar is shortened first; then figures are left out, the last ones
    first, and the bar.
    """
    label = f"[{bar.source.label}] "
    figures = [*bar.figures]
    cells = 0
    if bar.share is not None:
        cells = max(MIN_CELLS, min(MAX_CELLS, columns // CELLS_SHARE))

    def text() -> str:
        return "  ".join(filter(None, (bar.step, *figures, bar.left)))

    def is_too_wide() -> bool:
        return len(label) + cells + bool(cells) + len(text()) >= columns

    while is_too_wide() and cells > MIN_CELLS:
        cells = max(MIN_CELLS, cells // 2)  # in few steps: the figures' width changes often
    while is_too_wide() and figures:
        figures.pop()
    cells = 0 if is_too_wide() else cells
    done = round((bar.share or 0) * cells)
    drawn = [(DONE * done, "green"), (LEFT * (cells - done) + " ", "dim")] if cells else []
    return [(label, "dim"), *drawn, (text(), "")]
