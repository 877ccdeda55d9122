"""Writer threads, so that no caller waits for a slow reader."""

from __future__ import annotations

import itertools
import os
import queue
import threading
import time
from collections.abc import Callable
from operator import itemgetter

BATCH_BYTES = 1 << 18
"""The number of bytes up to which small pieces are written together."""


SUSPENDED_S = 1.5
"""A wait longer than planned by this means that the process was stopped (Ctrl-Z)."""


class Writer:
    """A thread that writes to one file, or to two that are the same.

    It calls `tick` at every interval, but not while a write blocks, and passes data through
    `frame`. When the reader is gone it calls `on_reader_gone` once, and writes no more. After a
    wait much longer than planned it calls `on_suspended`.

    Attributes:
        waiting_bytes: The number of bytes not written yet.
        waiting_pieces: The number of pieces not written yet.
        idle_since: The time when everything was last written.
        is_broken: Whether the reader is gone.
    """

    def __init__(
        self,
        descriptor: int,
        interval_s: float,
        tick: Callable[[], None],
        on_reader_gone: Callable[[int], None],
        frame: Callable[[bytes], bytes] = bytes,
        on_suspended: Callable[[], None] = lambda: None,
    ) -> None:
        self.waiting_bytes = 0
        self.waiting_pieces = 0
        self.idle_since = 0.0
        self._interval_s, self._tick, self._on_reader_gone = interval_s, tick, on_reader_gone
        self._frame, self._on_suspended = frame, on_suspended
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self.is_broken = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"fd {descriptor}")

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    def put(self, descriptor: int, data: bytes) -> None:
        """Queue data to be written after everything queued before."""
        with self._lock:
            self.waiting_bytes += len(data)
            self.waiting_pieces += 1
        self._queue.put((descriptor, data))

    def finish(self) -> None:
        """End the thread when everything is written."""
        self._queue.put(None)

    def _run(self) -> None:
        next_tick = 0.0
        ended = False
        while not ended:
            batch, ended = self._next_batch()
            for descriptor, group in itertools.groupby(batch, key=itemgetter(0)):
                pieces = [data for _, data in group]
                data = b"".join(pieces)
                if not self.is_broken:
                    self._write(descriptor, self._frame(data))
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
                self._on_suspended()
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
