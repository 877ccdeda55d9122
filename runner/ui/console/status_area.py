"""The status area: phase, elapsed time, state of each node, and unfinished lines.

Other threads set its content; the writer's thread renders it with Rich, which is imported for the
first row.
"""

from __future__ import annotations

import io
import math
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from runner.core.text import counted, format_age
from runner.ui.console.colour import TIMES_SIGN
from runner.ui.console.dedup import Source
from runner.ui.console.progress_bar import BarState, Parts, bar_row
from runner.ui.layout import fold_names

SHOW_AFTER_S = 1.0  # a run shorter than this needs no area
SCREEN_SHARE = 3  # the area takes at most one in this many rows of the terminal
MAX_NAMES_CELLS = 24  # the width of nodes' names in a row of the area
BAD_STATES = ("lost", "failed", "not reached", "unreachable", "refused")  # prefixes, highlighted

_BAR_RATES = re.compile(r"\s*\[[^][]*\]\s*$")  # what a progress bar of tqdm ends with


class Row(NamedTuple):
    """A line of the area as it is written, and how many cells it takes."""

    text: bytes
    cells: int


class StatusArea:
    """The content of the area, for any number of threads."""

    def __init__(
        self, nodes: Sequence[str], *, colour: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock, self._colour = clock, colour
        self._lock = threading.Lock()
        self._states = dict.fromkeys(nodes, "")
        self._phase, self._phase_began = "", clock()
        self._progress: list[tuple[Source, str]] = []
        self._bar: BarState | None = None
        self._is_shown = self.has_ended = False

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Set the phase, and the seconds for which it has lasted; less than 0 is a countdown."""
        text = _one_line(text)
        with self._lock:
            if text != self._phase:
                self._phase, self._phase_began = text, self._clock() - elapsed_s

    def node_status(self, node: str, text: str) -> None:
        """Set the state of a node; "" for one that does not take part."""
        with self._lock:
            self._states[node] = _one_line(text)

    def progress_lines(self, lines: list[tuple[Source, str]]) -> None:
        """Set the newest form of unfinished lines."""
        with self._lock:
            self._progress = sorted(lines, key=lambda line: line[0].rank)

    def bar(self, state: BarState | None) -> None:
        """Set how far the ranks are, by their metrics."""
        with self._lock:
            self._bar = state

    def end(self) -> None:
        """Hide the area from now on."""
        with self._lock:
            self.has_ended = True

    def render(self, columns: int, rows: int) -> list[Row]:
        """Return the area's rows for a terminal of that size."""
        with self._lock:
            elapsed_s = self._clock() - self._phase_began
            is_worth_it = bool(self._progress or self._bar) or not 0 <= elapsed_s <= SHOW_AFTER_S
            self._is_shown = self._is_shown or is_worth_it
            if (
                self.has_ended
                or not self._is_shown
                or not (self._phase or self._progress or self._bar)
            ):
                return []
            phase, progress, bar = self._phase, list(self._progress), self._bar
            groups: dict[str, list[str]] = {}
            for node, state in self._states.items():
                if state:
                    groups.setdefault(state, []).append(node)
        states = [(fold_names(nodes), state) for state, nodes in groups.items()]
        head = [(phase or "running", "bold"), (f"  {_clock_text(elapsed_s)}", "dim")]
        height = max(1, rows // SCREEN_SHARE)
        if len(states) == 1 or height == 1:  # a state of all nodes stands beside the phase
            for names, state in states[:1]:
                head.append((f"  {names}" if state == phase else f"  {names} {state}", ""))
            states = []
        room = height - 1 - bool(bar)  # of which unfinished lines get at least half
        bars = {without_rates(text) for _, text in progress}
        room = max(room - len(bars), room - room // 2)
        texts = [head, *_state_rows(states, room)]
        texts += [bar_row(bar, columns)] if bar and height > 1 else []
        texts += _progress_rows(progress, height - len(texts))
        return _render_rows(texts, max(1, columns - 1), colour=self._colour)


def without_rates(text: str) -> str:
    """Return a progress bar without its times and rates, in which equal ones differ."""
    return _BAR_RATES.sub("", text)


def _one_line(text: str) -> str:
    return "".join(char for char in " ".join(text.split()) if char.isprintable())


def _state_rows(states: list[tuple[str, str]], room: int) -> list[Parts]:
    from rich.text import Text

    shown = states if len(states) <= room else states[: max(0, room - 1)]
    names = [Text(names) for names, _ in shown]
    width = min(max((each.cell_len for each in names), default=0), MAX_NAMES_CELLS)
    for each in names:
        each.truncate(width, overflow="ellipsis", pad=True)
    rows = [
        [(f"  {each.plain}  ", ""), (state, "red" if state.startswith(BAD_STATES) else "")]
        for each, (_, state) in zip(names, shown, strict=True)
    ]
    if len(shown) < len(states) and room > 0:
        rows.append([(f"  … and {counted(len(states) - len(shown), 'more state')}", "dim")])
    return rows


def _progress_rows(progress: list[tuple[Source, str]], room: int) -> list[Parts]:
    """Return a row per text, whatever its rates; if these do not fit, per node."""
    if room <= 0 or not progress:
        return []
    groups = _group_lines(progress, by_text=True)
    if len(groups) > room:
        groups = _group_lines(progress, by_text=False)
    shown = groups if len(groups) <= room else groups[: max(1, room - 1)]
    labels = [
        f"[{TIMES_SIGN}{len(sources)} {fold_names(source.node for source in sources)}]"
        if len(sources) > 1
        else f"[{sources[0].label}]"
        for sources, _ in shown
    ]
    width = max(map(len, labels))
    pairs = zip(labels, shown, strict=True)
    rows = [[(f"{label:{width}} ", "dim"), (text, "")] for label, (_, text) in pairs]
    hidden_count = sum(len(sources) for sources, _ in groups[len(shown) :])
    if hidden_count and len(rows) < room:
        rows.append([(f"… and {counted(hidden_count, 'more rank')}", "dim")])
    return rows


def _group_lines(
    progress: list[tuple[Source, str]], *, by_text: bool
) -> list[tuple[list[Source], str]]:
    """Group equal lines, or else those of a node, of which the first rank's is shown."""
    groups: dict[str, tuple[list[Source], str]] = {}
    for source, text in progress:
        key = without_rates(text) if by_text else source.node
        groups.setdefault(key, ([], text))[0].append(source)
    return list(groups.values())


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


def _clock_text(elapsed_s: float) -> str:
    return format_age(elapsed_s) if elapsed_s >= 0 else f"in {format_age(math.ceil(-elapsed_s))}"
