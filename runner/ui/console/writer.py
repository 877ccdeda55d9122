"""Threads that write: whole lines to a file, or to a terminal with a status area below them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from runner.ui.console.status_area import Row, StatusArea

OUT = 1
ERR = 2
BATCH_BYTES = 1 << 18  # the number of bytes up to which small pieces are written together
SUSPENDED_S = 1.5  # a wait longer than planned by this means that the process was stopped (Ctrl-Z)
INTERVAL_S = 0.25
AREA_INTERVAL_S = 0.05
REDRAW_INTERVAL_S = 0.125


class Writer(threading.Thread):
    """A thread that writes to one file.

    It calls `tick` at every interval, but not while a write blocks. When the reader is gone, it
    writes the `farewell` to standard error, and no more to the file.

    With an `area`, the file is a terminal. Each write erases the area, adds its lines, and draws
    the area again, so that no part of it remains among the lines. The cursor rests below the area,
    visible and in default colours, so that the terminal is in order whenever the process dies,
    stops or hands it over.
    """

    def __init__(
        self,
        descriptor: int,
        tick: Callable[[], None],
        farewell: bytes = b"",
        area: StatusArea | None = None,
    ) -> None:
        super().__init__(daemon=True, name=f"fd {descriptor}")
        self.waiting_bytes = 0
        self.waiting_pieces = 0
        self.is_broken = False  # the reader is gone
        self.takes_colours = os.isatty(descriptor) and not os.environ.get("NO_COLOR")
        self._descriptor = descriptor
        self._tick = tick
        self._farewell = farewell
        self._area = area
        self._pieces: deque[bytes] = deque()
        self._is_finishing = False
        self._changed = threading.Condition()
        self._drawn_rows: list[Row] = []
        self._next_redraw = 0.0

    def put(self, data: bytes) -> None:
        with self._changed:
            self.waiting_bytes += len(data)
            self.waiting_pieces += 1
            self._pieces.append(data)
            self._changed.notify()

    def finish(self) -> None:
        with self._changed:
            self._is_finishing = True
            self._changed.notify()

    def run(self) -> None:
        interval_s = AREA_INTERVAL_S if self._area else INTERVAL_S
        next_tick = 0.0
        while self.waiting_pieces or not self._is_finishing:
            pieces = self._next_pieces(interval_s)
            data = b"".join(pieces)
            self._write(self._framed(data, self._area) if self._area else data)
            with self._changed:
                self.waiting_bytes -= len(data)
                self.waiting_pieces -= len(pieces)
            if time.monotonic() >= next_tick and not self._is_finishing:
                self._tick()
                next_tick = time.monotonic() + interval_s

    def _next_pieces(self, interval_s: float) -> list[bytes]:
        """Return the queued data, up to some size, after an interval none."""
        pieces: list[bytes] = []
        size = 0
        deadline = time.monotonic() + interval_s
        with self._changed:
            if not self._pieces and not self._is_finishing:
                self._changed.wait(interval_s)
            while self._pieces and size < BATCH_BYTES:
                pieces.append(self._pieces.popleft())
                size += len(pieces[-1])
        if time.monotonic() - deadline > SUSPENDED_S:
            self._drawn_rows = []  # other programs wrote below the area
        return pieces

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view and not self.is_broken:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a reader such as `head` has ended: the run continues
                self.is_broken = True
                with contextlib.suppress(OSError):
                    os.write(ERR, self._farewell)

    def _framed(self, data: bytes, area: StatusArea) -> bytes:
        """Return the bytes that write `data`, whole lines, above the area."""
        columns, rows = _terminal_size(self._descriptor)
        status_rows = self._drawn_rows
        if time.monotonic() >= self._next_redraw or area.has_ended:
            self._next_redraw = time.monotonic() + REDRAW_INTERVAL_S
            status_rows = self._render(area, columns, rows)
        if not data and status_rows == self._drawn_rows:
            return b""
        # Erased row by row: tmux would keep a screen erased as a whole in its scrollback. A
        # narrower terminal breaks some rows in two.
        drawn = sum(max(1, -(-row.cells // columns)) for row in self._drawn_rows)
        erase = b"\r\x1b[K" + b"\x1b[A\x1b[2K" * drawn if drawn else b""
        self._drawn_rows = status_rows
        return erase + data + b"".join(row.text + b"\n" for row in status_rows)

    def _render(self, area: StatusArea, columns: int, rows: int) -> list[Row]:
        with contextlib.suppress(OSError):
            if os.tcgetpgrp(self._descriptor) != os.getpgrp():  # in the background of a shell
                return []
        return area.render(columns, rows)


def _terminal_size(descriptor: int) -> tuple[int, int]:
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(descriptor)
        if columns and rows:
            return columns, rows
    return 80, 24
