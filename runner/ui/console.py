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

LIMIT = 8 << 20
"""Bytes that may wait to be written."""

LONG_LINE = 1 << 20
"""A line without end is written in pieces of this size."""

OUT, ERR = 1, 2


class Console:
    """What a person sees: ranks' output on theirs, our own lines on standard error."""

    def __init__(self, ranks: frozenset[int] | None = None) -> None:
        self._ranks = ranks
        self._torn: dict[tuple[str, int, int], bytes] = {}
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._waiting = 0
        self._lock = threading.Lock()
        self._muted = False
        self._broken: set[int] = set()
        sys.stdout.flush()
        self._thread = threading.Thread(target=self._write, daemon=True, name="console")
        self._thread.start()

    @property
    def full(self) -> bool:
        """Whether what waits is more than a console needs."""
        return self._waiting > LIMIT and not self._muted

    def say(self, text: str) -> None:
        """Write our own lines."""
        self._put(ERR, (text.rstrip("\n") + "\n").encode(errors="backslashreplace"))

    def show(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output, by whole lines; the rest waits for its end."""
        if self._ranks is not None and rank not in self._ranks:
            return
        descriptor = OUT if stream == "out" else ERR
        key = (node, rank, descriptor)
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

    def finish_ranks(self) -> None:
        """Write unfinished last lines."""
        for (node, rank, descriptor), torn in self._torn.items():
            self._put_lines(node, rank, descriptor, torn)
        self._torn.clear()

    def close(self, deadline_s: float | None = None) -> None:
        """Write what waits; for `deadline_s` at most."""
        self.finish_ranks()
        self._queue.put(None)
        self._thread.join(deadline_s)

    def _put_lines(self, node: str, rank: int, descriptor: int, lines: bytes) -> None:
        if self._muted and self._waiting > LIMIT:
            return
        prefix = b"[%s:%d] " % (node.encode(), rank)
        self._put(descriptor, prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n")

    def _put(self, descriptor: int, data: bytes) -> None:
        with self._lock:
            self._waiting += len(data)
        self._queue.put((descriptor, data))

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            descriptor, data = item
            if descriptor not in self._broken:
                self._write_out(descriptor, data)
            with self._lock:
                self._waiting -= len(data)

    def _write_out(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(descriptor, view) :]
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:  # a reader such as `head` has left: the run goes on without it
                self._broken.add(descriptor)
                with contextlib.suppress(OSError):
                    if descriptor == OUT:
                        os.write(
                            ERR, b"runner: nobody reads our output any more; the run goes on\n"
                        )
                return
