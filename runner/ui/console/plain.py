"""The plain console, for pipes and files: whole lines, each with its node and rank.

Threads write them. A console whose output is not read (a full pipe, a stopped terminal) holds up
nothing else: the bytes that wait are counted, and callers check `is_full` before they fetch more.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter

from runner.ui.console.control_sequences import clean_lines
from runner.ui.console.dedup import NO_RANK, Source
from runner.ui.console.line_buffer import LineAssembler
from runner.ui.console.traceback_folding import RankLines, TracebackFolder
from runner.ui.layout import message_width
from runner.ui.output import message_text

MAX_WAITING_BYTES = 8 << 20  # the number of bytes that may wait to be written
MAX_LINE_BYTES = 1 << 20  # the size of the pieces in which an endless line is written
TICK_S = 0.25

BATCH_BYTES = 1 << 18  # the number of bytes up to which small pieces are written together
SUSPENDED_S = 1.5  # a wait longer than planned by this means that the process was stopped (Ctrl-Z)
OUT, ERR = 1, 2
_TORCH_PREFIX = re.compile(rb"^\[rank\d+\]: ?", re.MULTILINE)
READER_GONE_NOTE = (
    b"note: the output is no longer read; the run continues, and its log files are complete\n"
)


class Writer(threading.Thread):
    """A thread that writes to one file, or to two that are the same.

    It calls `tick` at every interval, but not while a write blocks, and passes data through
    `frame`. When the reader is gone it calls `on_reader_gone` once, and writes no more. After a
    wait much longer than planned it calls `on_suspended`.
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
        super().__init__(daemon=True, name=f"fd {descriptor}")
        self.waiting_bytes = self.waiting_pieces = 0
        self.idle_since = 0.0  # when everything was last written
        self.is_broken = False  # the reader is gone
        self._interval_s, self._tick, self._on_reader_gone = interval_s, tick, on_reader_gone
        self._frame, self._on_suspended = frame, on_suspended
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()

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


class Console:
    """Ranks' output on their own streams, and the runner's lines on standard error.

    A line that redraws itself with carriage returns (a progress bar) is shown in its last form.
    An unfinished line is shown after a second, and its rest as a line of its own.
    """

    def __init__(
        self,
        ranks: frozenset[int] | None = None,
        reader_gone_note: bytes = READER_GONE_NOTE,
        *,
        raw: bool = False,
        folds_tracebacks: bool = False,
    ) -> None:
        """Start the writers; `ranks` are those whose output is shown, None for all.

        Unless `raw`, escape sequences in it are dropped, except for colours on a terminal.
        `folds_tracebacks` is for a run that goes on: see `first_failure`.
        """
        self._ranks, self._reader_gone_note, self._raw = ranks, reader_gone_note, raw
        self._coloured = {fd for fd in (OUT, ERR) if os.isatty(fd) and not os.getenv("NO_COLOR")}
        self._muted = False
        self._work_folders: dict[str, bytes] = {}
        self._folder = TracebackFolder(lambda: message_width(ERR)) if folds_tracebacks else None
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
        """Write a rank's output by whole lines; an unfinished one waits for its end.

        `NO_RANK` stands for a command on the node.
        """
        if self._ranks is not None and rank not in (*self._ranks, NO_RANK):
            return
        descriptor = OUT if stream == "out" else ERR
        with self._lock:
            source = Source(node, rank)
            lines = self._assemblers[descriptor].feed(source, data, time.monotonic())
            if lines is not None:
                self._take_lines(source, descriptor, lines)

    def begin_attempt(self, pattern: str, work_folders: Mapping[str, str]) -> None:  # noqa: ARG002
        """Expect an attempt's lines: metrics, also those of `pattern`, here as any others.

        Paths below a node's copy of the code are shown as in the project.
        """
        folders = {node: f"{folder}/".encode() for node, folder in work_folders.items()}
        with self._lock:
            self._work_folders = folders

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Note what a rank appended to the file of its metrics; it is no output."""

    def first_failure(self, node: str, rank: int | None, *, is_over: bool = False) -> None:
        """Fold tracebacks that follow from this failure, until `recovered` or `reset_lines`.

        Of those on the node without a `rank`, or of that rank, all lines are shown. `is_over`: the
        attempt is, and its logs are read in no order of time.
        """
        with self._lock:
            if self._folder:
                known_at = math.inf if is_over else time.monotonic()
                self._folder.fold_except(node, rank, known_at)

    def recovered(self) -> None:
        """Show whole tracebacks again: the ranks go on without what failed."""
        with self._lock:
            if self._folder:
                self._put_held_lines(self._folder.pop_all())
                self._folder.keep_whole()

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much; the log files are complete."""
        self._muted = True

    def reset_lines(self) -> None:
        """Write an attempt's unfinished last lines before the next attempt starts."""
        with self._lock:
            self._put_partial_lines()
        self.recovered()
        self._muted = False

    def _put_partial_lines(self) -> None:
        for descriptor, assembler in self._assemblers.items():
            for key, partial in assembler.pop_all():
                self._take_lines(Source(*key), descriptor, partial)
        if self._folder:
            self._put_held_lines(self._folder.pop_all())

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write unfinished last lines and everything before them, in `deadline_s` at most."""
        with self._lock:
            self._put_partial_lines()
        deadline, writers = time.monotonic() + deadline_s, self._writers.values()
        while any(each.waiting_pieces and each.is_alive() for each in writers):
            if time.monotonic() >= deadline:
                return
            time.sleep(0.005)

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Write everything that waits, until done or until the caller gives up."""
        self.flush_ranks()
        for writer in self._writers.values():
            writer.finish()
        while any(writer.is_alive() for writer in self._writers.values()) and not give_up():
            time.sleep(0.01)

    @property
    def _waiting_bytes(self) -> int:
        # A writer that died of a bug never empties its queue; the run must not wait for it.
        writers = self._writers.values()
        return max(each.waiting_bytes if each.is_alive() else 0 for each in writers)

    def _open_writers(self) -> dict[int, Writer]:
        # One writer where both are the same terminal or file, so that lines keep their order; else
        # two, so that a blocked pipe does not hold back messages.
        out = Writer(OUT, TICK_S, self._tick, self._on_reader_gone)
        if os.path.samestat(os.fstat(OUT), os.fstat(ERR)):
            return {OUT: out, ERR: out}
        return {OUT: out, ERR: Writer(ERR, TICK_S, self._tick, self._on_reader_gone)}

    def _tick(self) -> None:
        with self._lock:
            for descriptor, assembler in self._assemblers.items():
                now, idle_since = time.monotonic(), (w.idle_since for w in self._writers.values())
                # While a reader is slow, nothing more is fetched from the hosts.
                assembler.defer(now if self._waiting_bytes else max(idle_since))
                for key, partial in assembler.pop_overdue(now):
                    self._take_lines(Source(*key), descriptor, partial)
            self._put_due_lines()

    def _on_reader_gone(self, descriptor: int) -> None:
        if descriptor == OUT:
            with contextlib.suppress(OSError):
                os.write(ERR, self._reader_gone_note)

    def _take_lines(self, source: Source, descriptor: int, lines: bytes) -> None:
        """Write lines, except for tracebacks, which wait."""
        shown: bytes | None = lines
        if self._folder:
            shown = self._folder.feed(source, descriptor, lines, time.monotonic())
        if shown is not None:
            self._put_lines(source, descriptor, shown)

    def _put_due_lines(self) -> None:
        if self._folder:
            self._put_held_lines(self._folder.pop_due(time.monotonic()))

    def _put_held_lines(self, held: list[RankLines]) -> None:
        for source, descriptor, lines in held:
            self._put_lines(source, descriptor, lines)

    def _put_lines(self, source: Source, descriptor: int, lines: bytes) -> None:
        lines = self._without_places(source, lines).replace(b"\r", b"")
        if not self._raw:
            lines = clean_lines(lines, keep_colours=descriptor in self._coloured)
        self._put_prefixed(f"[{source.label}] ".encode(), descriptor, lines)

    def _without_places(self, source: Source, lines: bytes) -> bytes:
        """Return lines without what our own prefix says, and where the node has its code."""
        if b"[rank" in lines:
            lines = _TORCH_PREFIX.sub(b"", lines)
        folder = self._work_folders.get(source.node)
        return lines.replace(folder, b"") if folder else lines

    def _put_prefixed(self, prefix: bytes, descriptor: int, lines: bytes) -> None:
        if self._muted and self._writers[descriptor].waiting_bytes > MAX_WAITING_BYTES:
            return
        text = prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n"
        self._writers[descriptor].put(descriptor, text)


def encode_lines(text: str) -> bytes:
    """Return text as whole lines of bytes that can always be written, and only show."""
    return f"{message_text(text, ERR).rstrip()}\n".encode()


def open_console(
    ui: str,
    ranks: frozenset[int] | None,
    nodes: Sequence[str],
    reader_gone_note: bytes = READER_GONE_NOTE,
) -> Console:
    """Return the console of a run, which suits standard output and error.

    `ui` is "auto", "plain", or "raw", which is plain with the ranks' escape sequences.
    The live one needs both to be the same terminal: a pipe may lead to that terminal as well
    (`| tee`), where its lines and the status area would overwrite each other.
    """
    is_screen = os.environ.get("TERM", "dumb") not in ("dumb", "")
    is_screen = is_screen and os.isatty(ERR) and os.isatty(OUT)
    if ui != "auto" or not is_screen or not os.path.samestat(os.fstat(OUT), os.fstat(ERR)):
        return Console(ranks, reader_gone_note, raw=ui == "raw", folds_tracebacks=True)
    from runner.ui.console.live import LiveConsole

    return LiveConsole(ranks, nodes)
