"""The live console, for a terminal: lines scroll, and a status area stays below them.

Each write erases the area, adds its lines, and draws the area again, so that no part of it remains
among the lines. The cursor rests below the area, visible and in default colours, so that the
terminal is in order whenever the process dies, stops or hands it over.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping, Sequence

from runner.ui.console import plain
from runner.ui.console.colour import LineStyler
from runner.ui.console.control_sequences import strip_controls
from runner.ui.console.dedup import NO_RANK, LineDeduplicator, PendingLine, Source
from runner.ui.console.plain import Console, Writer, encode_lines
from runner.ui.console.progress_bar import ProgressBar
from runner.ui.console.status_area import Row, StatusArea, without_rates

WRITE_INTERVAL_S = 0.05
REDRAW_INTERVAL_S = 0.125
PROGRESS_INTERVAL_S = 1.0  # the interval at which lines that redraw themselves are updated
MAX_COLOUR_BACKLOG = 1 << 20  # with more bytes waiting, no colours: they cost a terminal double
DEFAULT_COLUMNS, DEFAULT_ROWS = 80, 24  # the size assumed for a terminal that reports none


class Screen:
    """The terminal's content, as known to the thread that writes to it."""

    def __init__(
        self, descriptor: int, area: StatusArea, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._descriptor, self._area, self._clock = descriptor, area, clock
        self._status_rows: list[Row] = []
        self._drawn_rows: list[Row] = []
        self._drawn_size = (0, 0)
        self._next_redraw = 0.0

    def forget_drawn(self) -> None:
        """Leave the drawn area alone: after Ctrl-Z, other programs wrote below it."""
        self._drawn_rows = []

    def frame(self, data: bytes) -> bytes:
        """Return the bytes that write `data`, whole lines, above the area."""
        size = _terminal_size(self._descriptor)
        if self._clock() >= self._next_redraw or size != self._drawn_size or self._area.has_ended:
            self._next_redraw = self._clock() + REDRAW_INTERVAL_S
            self._status_rows = self._render_area(*size)
        if not data and self._status_rows == self._drawn_rows and size == self._drawn_size:
            return b""
        self._drawn_size = size
        # Erased row by row: tmux would keep a screen erased as a whole in its scrollback. A
        # narrower terminal breaks some rows in two.
        drawn = sum(max(1, -(-row.cells // size[0])) for row in self._drawn_rows)
        erase = b"\r\x1b[K" + b"\x1b[A\x1b[2K" * drawn if drawn else b""
        self._drawn_rows = self._status_rows
        return erase + data + b"".join(row.text + b"\n" for row in self._status_rows)

    def _render_area(self, columns: int, rows: int) -> list[Row]:
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) != os.getpgrp():  # in the background of a shell
                return []
        try:
            return self._area.render(columns, rows)
        except Exception:  # noqa: BLE001 (an error in the area must not lose a line)
            self._area.end()
            return []


def _terminal_size(descriptor: int) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        columns = rows = 0
    return columns or DEFAULT_COLUMNS, rows or DEFAULT_ROWS


class LiveConsole(Console):
    """The console with a status area.

    Equal lines from many ranks within a fifth of a second become one line. A line that redraws
    itself, or is unfinished for a second, is shown in the area until it ends.
    """

    def __init__(self, ranks: frozenset[int] | None, nodes: Sequence[str]) -> None:
        self._styler = LineStyler(nodes)
        self._area = StatusArea(nodes, colour=self._styler.has_colour)
        self._screen = Screen(plain.ERR, self._area)
        self._deduplicator = LineDeduplicator()
        self._has_many_ranks = ranks is None or len(ranks) > 1
        self._next_progress = 0.0
        self._progress: dict[tuple[Source, int], str] = {}
        self._bar = ProgressBar()
        super().__init__(ranks, folds_tracebacks=True)

    def message(self, text: str) -> None:
        """Write the runner's own lines after earlier lines of ranks; they may quote hosts."""
        self._put_message(encode_lines(text))

    def _put_message(self, data: bytes) -> None:
        with self._lock:
            self._put_pending(self._deduplicator.pop_all())
            self._writers[plain.ERR].put(plain.ERR, data)

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

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write ranks' last lines, and remove the area permanently."""
        with self._lock:
            self._put_partial_lines()
        self._area.end()
        self._writers[plain.ERR].put(plain.ERR, b"")
        super().flush_ranks(deadline_s)

    def begin_attempt(self, pattern: str, work_folders: Mapping[str, str]) -> None:
        """Show a bar in place of metrics lines from now on."""
        super().begin_attempt(pattern, work_folders)
        with self._lock:
            self._bar = ProgressBar(pattern)

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Show in the bar what a rank appended to the file of its metrics."""
        if self._ranks is None or rank in self._ranks:
            with self._lock:
                self._bar.feed(Source(node, rank), data, time.monotonic())

    def _put_partial_lines(self) -> None:
        super()._put_partial_lines()
        self._put_pending(self._deduplicator.pop_all())
        if state := self._bar.pop():  # its last figures stay, as those of other bars do
            prefix = self._styler.prefix(state.source, is_error=False)
            self._put_prefixed(prefix, plain.ERR, "  ".join(state.texts).encode())

    def _open_writers(self) -> dict[int, Writer]:
        on_gone, frame, on_stop = (
            self._on_reader_gone,
            self._screen.frame,
            self._screen.forget_drawn,
        )
        screen = Writer(plain.ERR, WRITE_INTERVAL_S, self._tick, on_gone, frame, on_stop)
        return {plain.OUT: screen, plain.ERR: screen}

    def _tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._put_due_lines()
            self._put_pending(self._deduplicator.pop_due(now))
            self._update_progress(now)
            self._area.bar(self._bar.state(now))
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
        self._progress = {
            (Source(*key), descriptor): shown.get((Source(*key), descriptor))
            or strip_controls(text)
            for descriptor, assembler in self._assemblers.items()
            for key, text in assembler.pending(now)
        }
        self._area.progress_lines([(source, text) for (source, _), text in self._progress.items()])

    def _on_reader_gone(self, descriptor: int) -> None:
        """Do nothing: there is no other place for a message."""

    def _put_lines(self, source: Source, descriptor: int, lines: bytes) -> None:
        if b"\r" in lines:
            self._put_redrawn_lines(source, descriptor, lines)
            return
        lines = self._without_places(source, lines)
        now = time.monotonic()
        others = self._without_metrics(source, lines, now)
        if others is None:
            return
        lines = self._styler.clean(others)
        is_behind = self._writers[plain.ERR].waiting_bytes > 0  # lines held back would accumulate
        if self._has_many_ranks and not is_behind and self._deduplicator.accepts(lines, now):
            self._deduplicator.add(source, descriptor, lines, now)
            return
        self._put_pending(self._deduplicator.pop_all())
        is_plain = self._writers[plain.ERR].waiting_bytes > MAX_COLOUR_BACKLOG
        is_error = descriptor == plain.ERR
        prefix = self._styler.prefix(source, is_error=is_error, is_plain=is_plain)
        self._put_prefixed(prefix, plain.ERR, lines)

    def _put_redrawn_lines(self, source: Source, descriptor: int, lines: bytes) -> None:
        """Write lines of which some redrew themselves: a progress bar that has ended is no error.

        Those of several ranks are one, whatever their times and rates.
        """
        for line in lines.split(b"\n"):
            if not line.startswith(b"\r"):
                self._put_lines(source, descriptor, line)
                continue
            now = time.monotonic()
            others = self._without_metrics(source, line[1:], now)
            if others is None:
                continue
            text = self._styler.clean(others)
            bar = without_rates(text.decode(errors="surrogateescape"))
            same = bar.encode(errors="surrogateescape")
            self._deduplicator.add(source, plain.OUT, text, now, same)

    def _without_metrics(self, source: Source, lines: bytes, now: float) -> bytes | None:
        return lines if source.rank == NO_RANK else self._bar.take(source, lines, now)

    def _put_pending(self, pending: list[PendingLine]) -> None:
        for line in pending:
            prefix = self._styler.prefix(*line.sources, is_error=line.descriptor == plain.ERR)
            self._put_prefixed(prefix, plain.ERR, line.line)
