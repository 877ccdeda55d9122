"""The live console, for a terminal: lines scroll, and a status area stays below them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from runner.ui.console import plain
from runner.ui.console.lines import (
    LineDeduplicator,
    LineStyler,
    PendingLine,
    Source,
    Stream,
    strip_controls,
    without_rates,
)
from runner.ui.console.plain import Console, encode_lines
from runner.ui.console.status_area import StatusArea
from runner.ui.console.writer import Screen, Writer

PROGRESS_INTERVAL_S = 1.0  # the interval at which lines that redraw themselves are updated
MAX_COLOUR_BACKLOG = 1 << 20  # with more bytes waiting, no colours: they cost a terminal double


class LiveConsole(Console):
    """The console with a status area.

    Equal lines from many ranks within a fifth of a second become one line. A line that redraws
    itself, or is unfinished for a second, is shown in the area until it ends.
    """

    _has_area = True

    def __init__(
        self,
        ranks: Collection[int] | None,
        nodes: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._styler = LineStyler(nodes)
        self._area = StatusArea(nodes, colour=self._styler.has_colour)
        self._deduplicator = LineDeduplicator()
        self._has_many_ranks = ranks is None or len(ranks) > 1
        self._next_progress = 0.0
        self._progress: dict[Stream, str] = {}
        super().__init__(ranks, folds_tracebacks=True, clock=clock)

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Show the phase of the run, if it lasts."""
        self._area.phase(text, elapsed_s)

    def node_status(self, node: str, text: str) -> None:
        """Show the state of a node."""
        self._area.node_status(node, text)

    def verdict(self, text: str) -> None:
        """Replace the area by the report, permanently."""
        self._area.end()
        report = self._styler.style_report(encode_lines(text).decode())
        self._put_message(report.encode())

    def rank_output(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output; of one that is not shown, too, the area knows that it came."""
        self._area.heard()
        super().rank_output(node, rank, stream, data)

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Show in the bar what a rank appended to the file of its metrics."""
        self._area.heard()
        super().rank_metrics(node, rank, data)

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write ranks' last lines, and remove the area permanently."""
        with self._lock:
            self._put_last_lines()
        self._area.end()
        self._writers[plain.ERR].put(plain.ERR, b"")
        super().flush_ranks(deadline_s)

    def _put_message(self, data: bytes) -> None:
        with self._lock:
            self._put_pending(self._deduplicator.pop_due())
            super()._put_message(data)

    def _put_figures(self, now: float | None) -> None:
        self._put_pending(self._deduplicator.pop_due())
        super()._put_figures(now)

    def _open_writers(self) -> dict[int, Writer]:
        screen = Screen(plain.ERR, self._area, self._tick)
        return {plain.OUT: screen, plain.ERR: screen}

    def _tick(self) -> None:
        with self._lock:
            now = self._clock()
            self._put_held_lines(now)
            self._put_pending(self._deduplicator.pop_due(now))
            self._update_progress(now)
        screen = self._writers[plain.ERR]
        if not screen.waiting_pieces:
            screen.put(plain.ERR, b"")

    def _update_progress(self, now: float) -> None:
        """Show unfinished lines in the area: new ones at once, their newest forms at intervals.

        A finished line is among the lines above, and is removed at once.
        """
        shown = self._progress
        if now >= self._next_progress:
            self._next_progress = now + PROGRESS_INTERVAL_S
            shown = {}
        pending = self._assembler.pending(now)
        self._progress = {key: shown.get(key) or strip_controls(text) for key, text in pending}
        lines = [(source, text) for (source, _), text in self._progress.items()]
        self._area.progress(lines, self._bar.state(now) if self._bar else None)

    def _put_lines(self, stream: Stream, lines: bytes) -> None:
        """Write lines; a progress bar that has ended is no error.

        Those of several ranks are one, whatever their times and rates.
        """
        for piece in lines.split(b"\n") if b"\r" in lines else (lines,):
            shown = self._output(stream, piece)
            now = self._clock()
            is_behind = self._writers[plain.ERR].waiting_bytes > 0  # what waits would accumulate
            if shown is None:
                continue
            if piece.startswith(b"\r"):
                same = without_rates(shown.decode(errors="surrogateescape"))
                self._deduplicator.add((stream[0], plain.OUT), shown, now, same)
            elif self._has_many_ranks and not is_behind and self._deduplicator.accepts(shown, now):
                self._deduplicator.add(stream, shown, now)
            else:
                self._put_pending(self._deduplicator.pop_due())
                self._emit((stream[0],), stream[1], shown)

    def _put_pending(self, pending: list[PendingLine]) -> None:
        for line in pending:
            self._emit(line.sources, line.descriptor, line.line)

    def _prefix(self, sources: Sequence[Source], descriptor: int) -> bytes:
        is_plain = self._writers[plain.ERR].waiting_bytes > MAX_COLOUR_BACKLOG
        return self._styler.prefix(*sources, is_error=descriptor == plain.ERR, is_plain=is_plain)
