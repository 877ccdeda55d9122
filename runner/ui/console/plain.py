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
"""The number of bytes that may wait to be written."""

MAX_LINE_BYTES = 1 << 20
"""The size of the pieces in which an endless line is written."""

TICK_S = 0.25

OUT, ERR = 1, 2
READER_GONE_NOTE = (
    b"note: the output is no longer read; the run continues, and its log files are complete\n"
)


class Console:
    """Ranks' output on their own streams, and the runner's lines on standard error.

    A line that redraws itself with carriage returns (a progress bar) is shown in its last form.
    An unfinished line is shown after a second, and its rest as a line of its own.
    """

    def __init__(
        self, ranks: frozenset[int] | None = None, reader_gone_note: bytes = READER_GONE_NOTE
    ) -> None:
        """Start the writers.

        Args:
            ranks: The ranks whose output is shown; None for all.
            reader_gone_note: The message when that output is no longer read.
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
        """Whether more bytes wait than a console needs."""
        return self._waiting_bytes > MAX_WAITING_BYTES and not self._muted

    @property
    def reader_gone(self) -> bool:
        """Whether the reader of the ranks' output is gone."""
        return self._writers[OUT].is_broken

    def message(self, text: str) -> None:
        """Write lines of the runner's own."""
        self._writers[ERR].put(ERR, encode_lines(text))

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Note the phase ("connecting", "running", "stopping") and how long it has lasted."""

    def node_status(self, node: str, text: str) -> None:
        """Note the state of a node: "ready", "2 of 4 ranks", "lost"."""

    def verdict(self, text: str) -> None:
        """Write the report that ends a run."""
        self.message(text)

    def rank_output(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output by whole lines; an unfinished one waits for its end."""
        if self._ranks is not None and rank not in self._ranks:
            return
        descriptor = OUT if stream == "out" else ERR
        with self._lock:
            lines = self._assemblers[descriptor].feed((node, rank), data, time.monotonic())
            if lines is not None:
                self._put_lines(node, rank, descriptor, lines)

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much; the log files are complete."""
        self._muted = True

    def reset_lines(self) -> None:
        """Write an attempt's unfinished last lines before the next attempt starts."""
        with self._lock:
            self._put_partial_lines()
        self._muted = False

    def _put_partial_lines(self) -> None:
        for descriptor, assembler in self._assemblers.items():
            for (node, rank), partial in assembler.pop_all():
                self._put_lines(node, rank, descriptor, partial)

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write unfinished last lines and everything before them, in `deadline_s` at most."""
        with self._lock:
            self._put_partial_lines()
        deadline = time.monotonic() + deadline_s
        while (
            any(writer.waiting_pieces and writer.is_alive for writer in self._writers.values())
            and time.monotonic() < deadline
        ):
            time.sleep(0.005)

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Write everything that waits, until done or until the caller gives up."""
        self.flush_ranks()
        for writer in self._writers.values():
            writer.finish()
        while any(writer.is_alive for writer in self._writers.values()) and not give_up():
            time.sleep(0.01)

    @property
    def _waiting_bytes(self) -> int:
        # A writer that died of a bug never empties its queue; the run must not wait for it.
        return max(
            writer.waiting_bytes if writer.is_alive else 0 for writer in self._writers.values()
        )

    def _open_writers(self) -> dict[int, Writer]:
        # One writer where both are the same terminal or file, so that lines keep their order; else
        # two, so that a blocked pipe does not hold back messages.
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
        # While a reader is slow, nothing more is fetched from the hosts.
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
    """Return text as whole lines of bytes that can always be written."""
    return (text.rstrip("\n") + "\n").encode(errors="backslashreplace")
