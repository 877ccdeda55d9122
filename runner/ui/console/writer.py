"""Threads that write: whole pieces to a file, and lines above a status area to a terminal."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from operator import itemgetter

from runner.ui.console.status_area import Row, StatusArea

BATCH_BYTES = 1 << 18  # the number of bytes up to which small pieces are written together
SUSPENDED_S = 1.5  # a wait longer than planned by this means that the process was stopped (Ctrl-Z)
WRITE_INTERVAL_S = 0.05
REDRAW_INTERVAL_S = 0.125
DEFAULT_COLUMNS = 80  # the size assumed for a terminal that reports none
DEFAULT_ROWS = 24


class Writer(threading.Thread):
    """A thread that writes to one file, or to two that are the same.

    It calls `tick` at every interval, but not while a write blocks. When the reader is gone it
    calls `on_reader_gone` once, and writes no more.
    """

    def __init__(
        self,
        descriptor: int,
        interval_s: float,
        tick: Callable[[], None],
        on_reader_gone: Callable[[int], None],
    ) -> None:
        super().__init__(daemon=True, name=f"fd {descriptor}")
        self.waiting_bytes = 0
        self.waiting_pieces = 0
        self.idle_since = 0.0  # when everything was last written
        self.is_broken = False  # the reader is gone
        self._interval_s = interval_s
        self._tick = tick
        self._on_reader_gone = on_reader_gone
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

    def frame(self, data: bytes) -> bytes:
        """Return what is to be written for `data`."""
        return data

    def on_suspended(self) -> None:
        """Handle a wait that was much longer than planned."""

    def put(self, descriptor: int, data: bytes) -> None:
        """Queue data to be written after everything queued before."""
        with self._lock:
            self.waiting_bytes += len(data)
            self.waiting_pieces += 1
        self._queue.put((descriptor, data))

    def finish(self) -> None:
        """End the thread when everything is written."""
        self._queue.put(None)

    def run(self) -> None:
        """Write what is queued until `finish` is called."""
        next_tick = 0.0
        ended = False
        while not ended:
            batch, ended = self._next_batch()
            for descriptor, group in itertools.groupby(batch, key=itemgetter(0)):
                pieces = [data for _, data in group]
                data = b"".join(pieces)
                if not self.is_broken:
                    self._write(descriptor, self.frame(data))
                with self._lock:
                    self.waiting_bytes -= len(data)
                    self.waiting_pieces -= len(pieces)
                    if not self.waiting_pieces:
                        self.idle_since = time.monotonic()
            if time.monotonic() >= next_tick:
                self._tick()
                next_tick = time.monotonic() + self._interval_s

    def _next_batch(self) -> tuple[list[tuple[int, bytes]], bool]:
        """Return the queued data, up to some size, and whether the end follows."""
        batch: list[tuple[int, bytes]] = []
        size = 0
        deadline = time.monotonic() + self._interval_s
        try:
            item = self._queue.get(timeout=self._interval_s)
            while item is not None:
                batch.append(item)
                size += len(item[1])
                if size >= BATCH_BYTES:
                    return batch, False
                item = self._queue.get_nowait()
        except queue.Empty:
            return batch, False
        finally:
            if time.monotonic() - deadline > SUSPENDED_S:
                self.on_suspended()
        return batch, True

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a reader such as `head` has ended: the run continues
                self.is_broken = True
                self._on_reader_gone(descriptor)
                return


class Screen(Writer):
    """Writes to a terminal, whose content it knows, with the area below the lines.

    Each write erases the area, adds its lines, and draws the area again, so that no part of it
    remains among the lines. The cursor rests below the area, visible and in default colours, so
    that the terminal is in order whenever the process dies, stops or hands it over.
    """

    def __init__(self, descriptor: int, area: StatusArea, tick: Callable[[], None]) -> None:
        # When the reader is gone, there is no other place for a message.
        super().__init__(descriptor, WRITE_INTERVAL_S, tick, lambda _: None)
        self._descriptor = descriptor
        self._area = area
        self._status_rows: list[Row] = []
        self._drawn_rows: list[Row] = []
        self._drawn_size = (0, 0)
        self._next_redraw = 0.0

    def on_suspended(self) -> None:
        """Leave the drawn area alone: after Ctrl-Z, other programs wrote below it."""
        self._drawn_rows = []

    def frame(self, data: bytes) -> bytes:
        """Return the bytes that write `data`, whole lines, above the area."""
        columns = DEFAULT_COLUMNS
        rows = DEFAULT_ROWS
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(self._descriptor)
            columns = size.columns or columns
            rows = size.lines or rows
        now = time.monotonic()
        is_resized = (columns, rows) != self._drawn_size
        if now >= self._next_redraw or is_resized or self._area.has_ended:
            self._next_redraw = now + REDRAW_INTERVAL_S
            self._status_rows = self._render_area(columns, rows)
        if not data and self._status_rows == self._drawn_rows and not is_resized:
            return b""
        self._drawn_size = (columns, rows)
        # Erased row by row: tmux would keep a screen erased as a whole in its scrollback. A
        # narrower terminal breaks some rows in two.
        drawn = sum(max(1, -(-row.cells // columns)) for row in self._drawn_rows)
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
