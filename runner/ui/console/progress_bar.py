"""Progress bar: the figures of the lowest rank that prints metrics lines.

Pure: the caller passes the time. Lines with nothing but figures are taken out of the output, those
of other ranks too: they are in the log files and in `metrics.jsonl`. Not so what counts something
else, as an evaluation does, in a program whose other lines say how many steps there are.
"""

from __future__ import annotations

from typing import NamedTuple

from runner.core.metrics import (
    MAX_LINE,
    LatestMetrics,
    Metrics,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
)
from runner.ui.console.lines import LineAssembler, Source
from runner.ui.layout import left_text, number_text, rate_text, step_text

FIRST_S = 3.0  # not counted: what was written before an attach comes all at once


class BarState(NamedTuple):
    source: Source
    share: float | None  # of the steps that are done; None if it is not known how many there are
    texts: tuple[str, ...]  # what matters most is first


class StepClock:
    def __init__(self) -> None:
        self._heard_at: float | None = None
        self._first = (0.0, 0)  # when, and the step
        self._last = (0.0, 0)

    def note(self, step: int, now: float) -> None:
        """Note a step; one before the last is the first of a restart."""
        if self._heard_at is None or step < self._last[1]:
            self._heard_at = now
        if now - self._heard_at < FIRST_S:
            self._first = (now, step)
        self._last = (now, step)

    def left_s(self, steps: int | None, now: float) -> float | None:
        """Return the time left at `now`, None as long as it cannot be told."""
        began, first = self._first
        seen_at, last = self._last
        if steps is None or last <= first:
            return None
        seconds_per_step = (seen_at - began) / (last - first)
        left_s = max(0, steps - last) * seconds_per_step
        return max(0.0, left_s - (now - seen_at))


class ProgressBar:
    def __init__(self, pattern: str = "") -> None:
        self._pattern = compile_pattern(pattern)
        self._has_hidden = False  # figures that no line has shown
        self._files = LineAssembler(MAX_LINE)  # of the metrics that ranks append to files
        self._ranks: dict[Source, tuple[LatestMetrics, StepClock]] = {}

    def take(self, source: Source, lines: bytes, now: float) -> bytes | None:
        """Take the metrics out of whole lines; return the others, None if there are none.

        Lines that say more than figures are among the others, those of a pattern as well.
        """
        if not may_have_metrics(lines, self._pattern):
            return lines
        others = []
        for line in lines.split(b"\n"):
            metrics = parse_metrics(line, self._pattern)
            if metrics and self._note(source, metrics, now) and metrics.is_all_figures:
                self._has_hidden = True
            else:
                others.append(line)
        return b"\n".join(others) if others else None

    def feed(self, source: Source, data: bytes, now: float) -> None:
        lines = self._files.feed((source, 0), data, now)
        if lines is not None:
            self.take(source, lines, now)

    def state(self, now: float | None) -> BarState | None:
        """Return what is to be shown at `now`, without a time the last; None for nothing."""
        ranks = [
            (latest.metrics.steps is None, source.rank, source, latest.metrics)
            for source, (latest, _) in self._ranks.items()
            if latest.metrics
        ]
        if not ranks:
            return None
        *_, source, metrics = min(ranks)
        share = min(1.0, (metrics.step or 0) / metrics.steps) if metrics.steps else None
        left_s = None
        if now is not None and share != 1:
            left_s = self._ranks[source][1].left_s(metrics.steps, now)
        texts = [step_text(metrics), left_text(left_s)]
        texts += [] if metrics.loss is None else [f"loss {number_text(metrics.loss)}"]
        texts.append(rate_text(metrics))
        texts += [f"{name} {number_text(value)}" for name, value in metrics.more.items()]
        return BarState(source, share, tuple(filter(None, texts)))

    def pop_last(self) -> BarState | None:
        """Return the last figures if lines of them were hidden since the last time."""
        state = self.state(None) if self._has_hidden else None
        self._has_hidden = False
        return state

    def _note(self, source: Source, metrics: Metrics, now: float) -> bool:
        """Take a line of a rank; return whether it counts the rank's steps."""
        latest, clock = self._ranks.get(source) or (LatestMetrics(), StepClock())
        if latest.metrics and latest.metrics.form < metrics.form:
            clock = StepClock()  # those before counted epochs, or other steps
        if not latest.take(metrics):
            return False
        self._ranks[source] = (latest, clock)
        if metrics.step is not None:
            clock.note(metrics.step, now)
        return True
