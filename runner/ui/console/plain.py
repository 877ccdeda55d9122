"""The plain console, for pipes and files: whole lines, each with its node and rank.

Threads write them. A console whose output is not read (a full pipe, a stopped terminal) holds up
nothing else: the bytes that wait are counted, and callers check `is_full` before they fetch more.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable

from runner.ui.console.line_buffer import LineAssembler
from runner.ui.console.writer import Writer

MAX_WAITING_BYTES = 8 << 20
"""Bytes that may wait to be written."""

MAX_LINE_BYTES = 1 << 20
"""A line without end is written in pieces of this size."""

TICK_S = 0.25

OUT, ERR = 1, 2
READER_GONE_NOTE = (
    b"note: nobody reads our output any more; the run goes on, its files have all of it\n"
)


class Console:
    """What a person sees: ranks' output on theirs, our own lines on standard error.

    A line that redraws itself with carriage returns (a progress bar) is shown in its last form.
    One without an end is shown after a second, its rest as a line of its own.
    """

    def __init__(
        self, ranks: frozenset[int] | None = None, reader_gone_note: bytes = READER_GONE_NOTE
    ) -> None:
        """Begin to write.

        Args:
            ranks: Whose output is shown; None for all.
            reader_gone_note: What is said when nobody reads that any more.
        """
        self._ranks, self._reader_gone_note = ranks, reader_gone_note
        self._muted = False
        self._lock = threading.Lock()
        self._assemblers = {descriptor: LineAssembler(MAX_LINE_BYTES) for descriptor in (OUT, ERR)}
        sys.stdout.flush()
        self._writers = self._open_writers()
        for writer in set(self._writers.values()):
            writer.start()

    @property
    def is_full(self) -> bool:
        """Whether what waits is more than a console needs."""
        return self._waiting_bytes > MAX_WAITING_BYTES and not self._muted

    @property
    def reader_gone(self) -> bool:
        """Whether nobody reads what the ranks write."""
        return self._writers[OUT].is_broken

    def message(self, text: str) -> None:
        """Write our own lines."""
        self._writers[ERR].put(ERR, encode_lines(text))

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Note what is going on: "connecting", "running", "stopping"; and for how long already."""

    def node_status(self, node: str, text: str) -> None:
        """Note how a node is doing: "ready", "2 of 4 ranks", "lost"."""

    def verdict(self, text: str) -> None:
        """Write the report that ends a run."""
        self.message(text)

    def rank_output(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output, by whole lines; the rest waits for its end."""
        if self._ranks is not None and rank not in self._ranks:
            return
        descriptor = OUT if stream == "out" else ERR
        with self._lock:
            lines = self._assemblers[descriptor].feed((node, rank), data, time.monotonic())
            if lines is not None:
                self._put_lines(node, rank, descriptor, lines)

    def mute(self) -> None:
        """From now on drop ranks' output that would be too much; their files hold all of it."""
        self._muted = True

    def reset_lines(self) -> None:
        """Write unfinished last lines of an attempt, before another one follows it."""
        with self._lock:
            self._put_partial_lines()
        self._muted = False

    def _put_partial_lines(self) -> None:
        for descriptor, assembler in self._assemblers.items():
            for (node, rank), partial in assembler.pop_all():
                self._put_lines(node, rank, descriptor, partial)

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write unfinished last lines, and what waits before them, for `deadline_s` at most."""
        with self._lock:
            self._put_partial_lines()
        deadline = time.monotonic() + deadline_s
        while (
            any(writer.waiting_pieces and writer.is_alive for writer in self._writers.values())
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Write what waits, until it is written or the caller gives up."""
        self.flush_ranks()
        for writer in self._writers.values():
            writer.finish()
        while any(writer.is_alive for writer in self._writers.values()) and not give_up():
            time.sleep(0.01)

    @property
    def _waiting_bytes(self) -> int:
        # One that died of a mistake of ours waits for nothing; the run must not wait for it.
        return max(
            writer.waiting_bytes if writer.is_alive else 0 for writer in self._writers.values()
        )

    def _open_writers(self) -> dict[int, Writer]:
        # One writer where both are the same terminal or file, so that lines keep their order; two
        # otherwise, so that a pipe nobody reads does not keep our own words back.
        out = Writer(OUT, TICK_S, self._tick, self._on_reader_gone)
        same = os.path.samestat(*map(os.fstat, (OUT, ERR)))
        return {
            OUT: out,
            ERR: out if same else Writer(ERR, TICK_S, self._tick, self._on_reader_gone),
        }

    def _tick(self) -> None:
        with self._lock:
            for descriptor in self._assemblers:
                self._put_overdue(descriptor)

    def _put_overdue(self, descriptor: int) -> None:
        assembler, now = self._assemblers[descriptor], time.monotonic()
        # Where a reader is slow, no more is fetched from the hosts.
        assembler.defer(
            now
            if self._waiting_bytes
            else max(writer.idle_since for writer in self._writers.values())
        )
        for (node, rank), partial in assembler.pop_overdue(now):
            self._put_lines(node, rank, descriptor, partial)

    def _on_reader_gone(self, descriptor: int) -> None:
        if descriptor == OUT:
            with contextlib.suppress(OSError):
                os.write(ERR, self._reader_gone_note)

    def _put_lines(self, node: str, rank: int, descriptor: int, lines: bytes) -> None:
        self._put_prefixed(b"[%s:%d] " % (node.encode(), rank), descriptor, lines)

    def _put_prefixed(self, prefix: bytes, descriptor: int, lines: bytes) -> None:
        if self._muted and self._writers[descriptor].waiting_bytes > MAX_WAITING_BYTES:
            return
        text = prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n"
        self._writers[descriptor].put(descriptor, text)


def encode_lines(text: str) -> bytes:
    """Return our own words as whole lines; nothing can fail to be written."""
    return (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
