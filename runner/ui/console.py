"""The console, plain: whole lines, each with its node and rank, written by a thread of its own.

A console that nobody reads (a full pipe, a stopped terminal) holds up nothing but itself: what
waits is counted, and whoever feeds it asks `full` before fetching more.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable

LIMIT = 8 << 20
"""Bytes that may wait to be written."""

LONG_LINE = 1 << 20
"""A line without end is written in pieces of this size."""

OUT, ERR = 1, 2
NOBODY_READS = (
    b"note: nobody reads our output any more; the run goes on, its files have all of it\n"
)


class Console:
    """What a person sees: ranks' output on theirs, our own lines on standard error."""

    def __init__(self, ranks: frozenset[int] | None = None) -> None:
        self._ranks = ranks
        self._torn: dict[tuple[str, int, int], bytes] = {}
        self._muted = False
        sys.stdout.flush()
        out = _Writer(OUT)
        # One writer where both are the same terminal or file, so that lines keep their order; two
        # otherwise, so that a pipe nobody reads does not keep our own words back.
        self._writers = {
            OUT: out,
            ERR: out if os.path.samestat(*map(os.fstat, (OUT, ERR))) else _Writer(ERR),
        }

    @property
    def full(self) -> bool:
        """Whether what waits is more than a console needs."""
        return self._waiting > LIMIT and not self._muted

    def say(self, text: str) -> None:
        """Write our own lines."""
        self._writers[ERR].put(ERR, (text.rstrip("\n") + "\n").encode(errors="backslashreplace"))

    def show(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output, by whole lines; the rest waits for its end."""
        if self._ranks is not None and rank not in self._ranks:
            return
        descriptor = OUT if stream == "out" else ERR
        key = (node, rank, descriptor)
        data = data.replace(b"\r\n", b"\n").replace(
            b"\r", b"\n"
        )  # a progress bar's, too, are lines
        lines, newline, torn = (self._torn.pop(key, b"") + data).rpartition(b"\n")
        if len(torn) > LONG_LINE:
            lines, newline, torn = lines + newline + torn, b"\n", b""
        if torn:
            self._torn[key] = torn
        if newline:
            self._put_lines(node, rank, descriptor, lines)

    def mute(self) -> None:
        """From now on drop ranks' output that would be too much; their files hold all of it."""
        self._muted = True

    def finish_ranks(self, deadline_s: float = 0.0) -> None:
        """Write unfinished last lines, and what waits before them, for `deadline_s` at most."""
        for (node, rank, descriptor), torn in self._torn.items():
            self._put_lines(node, rank, descriptor, torn)
        self._torn.clear()
        end = time.monotonic() + deadline_s
        while self._waiting and time.monotonic() < end:
            time.sleep(0.005)

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Write what waits, until it is written or the caller gives up."""
        self.finish_ranks()
        for writer in self._writers.values():
            writer.end()
        while any(writer.alive for writer in self._writers.values()) and not give_up():
            time.sleep(0.01)

    @property
    def _waiting(self) -> int:
        return max(writer.waiting for writer in self._writers.values())

    def _put_lines(self, node: str, rank: int, descriptor: int, lines: bytes) -> None:
        if self._muted and self._writers[descriptor].waiting > LIMIT:
            return
        prefix = b"[%s:%d] " % (node.encode(), rank)
        text = prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n"
        self._writers[descriptor].put(descriptor, text)


class _Writer:
    """A thread that writes to one file, or to two that are the same."""

    def __init__(self, descriptor: int) -> None:
        self.waiting = 0
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._broken = False
        self._thread = threading.Thread(target=self._write, daemon=True, name=f"fd {descriptor}")
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, descriptor: int, data: bytes) -> None:
        with self._lock:
            self.waiting += len(data)
        self._queue.put((descriptor, data))

    def end(self) -> None:
        self._queue.put(None)

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            if not self._broken:
                self._write_out(descriptor, data)
            with self._lock:
                self.waiting -= len(data)

    def _write_out(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a reader such as `head` has left: the run goes on without it
                self._broken = True
                with contextlib.suppress(OSError):
                    if descriptor == OUT:
                        os.write(ERR, NOBODY_READS)
                return
