"""Progress bar: the figures of the lowest rank that prints metrics lines.

Pure: the caller passes the time. Lines with nothing but figures are taken out of the output, those
of other ranks too: they are in the log files and in `metrics.jsonl`. Not so what counts something
else, as an evaluation does, in a program whose other lines say how many steps there are.
"""

from __future__ import annotations

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
from runner.ui.console.lines import Source
from runner.ui.figures import left_text, loss_text, more_texts, rate_text, step_text

STEP_KEY = b'"step"'  # what each line of mere figures has
WINDOW = 30  # observations that the time left is estimated from
PAUSE_S = 1.0  # the time that each of them covers
FIRST_S = 3.0  # that of the first: what was written before an attach comes all at once
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
        self._since = 0.0  # the beginning of the time that the last one covers

    def note(self, step: int, now: float) -> None:
        """Note a step; one before the last is the first of a restart."""
        if self._seen and step == self._seen[-1][1]:
            return
        if self._seen and step < self._seen[-1][1]:
            self._seen.clear()
        if self._seen and now - self._since < (PAUSE_S if len(self._seen) > 1 else FIRST_S):
            self._seen[-1] = (now, step)
        else:
            self._since = now
            self._seen.append((now, step))

    def left_s(self, steps: int | None, now: float) -> float | None:
        """Return the time left at `now`, None as long as it cannot be told."""
        if not self._seen:
            return None
        began, first = self._seen[0]
        seen_at, last = self._seen[-1]
        if seen_at - began < FIRST_S:
            return None
        left = seconds_left(steps, last, last - first, seen_at - began)
        return None if left is None else max(0.0, left - (now - seen_at))


class ProgressBar:
    """The metrics of the ranks of one attempt."""

    def __init__(self, pattern: str = "", *, is_hidden: bool = False) -> None:
        """Start; while it `is_hidden` only lines of mere figures are worth a look."""
        self._is_hidden = is_hidden
        self.has_news = False  # figures that no line has shown
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
        if not (STEP_KEY in lines if self._is_hidden else may_have_metrics(lines, self._pattern)):
            return lines
        others = []
        for line in lines.split(b"\n"):
            metrics = parse_metrics(line, self._pattern)
            is_noted = metrics is not None and self._note(source, metrics, now)
            if metrics is not None and is_noted and metrics.is_all_figures:
                self.has_news |= source == self._source
            else:
                others.append(line)
        return b"\n".join(others) if others else None

    def feed(self, source: Source, data: bytes, now: float) -> None:
        """Take a piece of the file to which a rank appends metrics."""
        lines, line_break, rest = (self._partial_lines.get(source, b"") + data).rpartition(b"\n")
        self._partial_lines[source] = rest[: MAX_LINE + 1]
        if line_break:
            self.take(source, lines, now)
            self.has_news |= source == self._source and not self._is_hidden

    def state(self, now: float | None) -> BarState | None:
        """Return what is to be shown at `now`, without a time the last; None for nothing."""
        if self._source is None or self._metrics is None:
            return None
        metrics = self._metrics
        share = min(1.0, (metrics.step or 0) / metrics.steps) if metrics.steps else None
        figures = (loss_text(metrics), rate_text(metrics), *more_texts(metrics))
        left_s = None if now is None or share == 1 else self._clock.left_s(metrics.steps, now)
        shown = tuple(filter(None, figures))
        return BarState(self._source, share, step_text(metrics), shown, left_text(left_s))

    def begin_anew(self) -> None:
        """Forget the figures: the ranks start again, or have ended."""
        self.has_news = False
        self._source = None
        self._clock = StepClock()
        self._ranks.clear()

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
