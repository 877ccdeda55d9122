"""The status area: phase, elapsed time, state of each node, progress, and unfinished lines.

Other threads set its content; the writer's thread renders it with Rich, which is imported for the
first row. The progress is that of the lowest rank that prints metrics lines: lines with nothing but
figures are taken out of the output, those of other ranks too. They are in the log files and in
`metrics.jsonl`. Not so what counts something else, as an evaluation does, in a program whose other
lines say how many steps there are.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from runner.core.errors import fold_names
from runner.core.metrics import (
    MAX_LINE,
    LatestMetrics,
    Metrics,
    compile_pattern,
    may_have_metrics,
    parse_metrics,
)
from runner.core.wire.text import counted, format_age, per_second, printable
from runner.ui.console.lines import (
    LineAssembler,
    Source,
    Stream,
    clean_lines,
    label_of,
    without_rates,
)
from runner.ui.layout import group_names, number_text

FIRST_S = 3.0  # not counted: what was written before an attach comes all at once
SHOW_AFTER_S = 1.0  # a run shorter than this needs no area
RUNNING = "running"  # the phase in which ranks write
SCREEN_SHARE = 3  # the area takes at most one in this many rows of the terminal
MAX_NAMES = 24  # the width of nodes' names in a row of the area

BAR_CELLS = 12
DONE = "\N{BOX DRAWINGS HEAVY HORIZONTAL}"
LEFT = "\N{BOX DRAWINGS LIGHT HORIZONTAL}"

Parts = list[tuple[str, str]]
"""The pieces of a row, each with its style for Rich."""


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


def _figures(metrics: Metrics, left_s: float | None) -> Iterator[str]:
    if metrics.step is not None:
        known = metrics.steps is not None
        yield f"{metrics.step}/{metrics.steps}" if known else f"step {metrics.step}"
    if left_s is not None:
        yield f"{format_age(left_s)} left"
    if metrics.loss is not None:
        yield f"loss {number_text(metrics.loss)}"
    if metrics.rate is not None:
        unit = per_second(printable(metrics.unit))
        space = "" if unit.startswith("/") else " "
        yield f"{number_text(metrics.rate)}{space}{unit}"
    for name, value in metrics.more.items():
        yield f"{name} {number_text(value)}"


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
        return BarState(source, share, tuple(_figures(metrics, left_s)))

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


class Row(NamedTuple):
    """A line of the area as it is written, and how many cells it takes."""

    text: bytes
    cells: int


class StatusArea:
    def __init__(self, nodes: Sequence[str], *, colour: bool, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._colour = colour
        self._states = dict.fromkeys(nodes, "")
        self._phase = ""
        self._phase_began = clock()
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
