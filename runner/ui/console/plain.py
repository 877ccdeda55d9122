"""The plain console, for pipes and files: whole lines, each with its node and rank.

Threads write them. A console whose output is not read (a full pipe, a stopped terminal) holds up
nothing else: the bytes that wait are counted, and callers check `is_full` before they fetch more.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import re
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from runner.ui.console.lines import NO_RANK, LineAssembler, Source, Stream, clean_lines
from runner.ui.console.progress_bar import ProgressBar
from runner.ui.console.traceback_folding import TracebackFolder
from runner.ui.console.writer import Writer
from runner.ui.layout import terminal_width
from runner.ui.output import message_text

MAX_WAITING_BYTES = 8 << 20  # the number of bytes that may wait to be written
MAX_LINE_BYTES = 1 << 20  # the size of the pieces in which an endless line is written
TICK_S = 0.25
FIGURES_S = 30.0  # the interval at which figures are shown that no line has
OUT, ERR = 1, 2
SEEN_LINES = 40  # the last lines, which a person still sees
SEEN_BYTES = 1 << 14
_TORCH_PREFIX = re.compile(rb"^\[rank\d+\]: ?", re.MULTILINE)
READER_GONE_NOTE = (
    b"note: the output is no longer read; the run continues, and its log files are complete\n"
)


class Console:
    """Ranks' output on their own streams, and the runner's lines on standard error.

    A line that redraws itself with carriage returns (a progress bar) is shown in its last form.
    An unfinished line is shown after a second, and its rest as a line of its own. Of lines of mere
    figures only the last is shown now and then, in words.
    """

    _has_area = False

    def __init__(
        self,
        ranks: frozenset[int] | None = None,
        reader_gone_note: bytes = READER_GONE_NOTE,
        *,
        raw: bool = False,
        folds_tracebacks: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the writers; `ranks` are those whose output is shown, None for all.

        Unless `raw`, escape sequences in it are dropped, except for colours on a terminal.
        `folds_tracebacks` is for a run that goes on: see `first_failure`.
        """
        self._ranks = ranks
        self._reader_gone_note = reader_gone_note
        self._raw = raw
        self._clock = clock
        self._coloured = {fd for fd in (OUT, ERR) if os.isatty(fd) and not os.getenv("NO_COLOR")}
        self._is_muted = False
        self._work_folders: dict[str, bytes] = {}
        width = functools.partial(terminal_width, ERR)
        self._folder = TracebackFolder(width, self._bare, is_active=folds_tracebacks)
        self._bar: ProgressBar | None = None
        self._next_figures = 0.0
        self._last_pieces: deque[bytes] = deque(maxlen=SEEN_LINES)  # shown where messages are
        self._lock = threading.Lock()
        self._assembler = LineAssembler(MAX_LINE_BYTES)
        sys.stdout.flush()
        self._writers = self._open_writers()
        for writer in set(self._writers.values()):
            writer.start()

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait than a console needs."""
        return self._waiting_bytes > MAX_WAITING_BYTES and not self._is_muted

    @property
    def reader_gone(self) -> bool:
        """Whether the reader of the ranks' output is gone."""
        return self._writers[OUT].is_broken

    def message(self, text: str) -> None:
        """Write lines of the runner's own, after earlier ones of ranks; they may quote hosts."""
        self._put_message(encode_lines(text))

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        """Note the phase ("connecting", "running", "stopping") and how long it has lasted."""

    def node_status(self, node: str, text: str) -> None:
        """Note the state of a node: "ready", "2 of 4 ranks", "lost"."""

    def verdict(self, text: str) -> None:
        """Write the report that ends a run."""
        self._put_message(encode_lines(text))

    def rank_output(self, node: str, rank: int, stream: str, data: bytes) -> None:
        """Write a rank's output by whole lines; an unfinished one waits for its end.

        `NO_RANK` stands for a command on the node.
        """
        if self._ranks is not None and rank not in (*self._ranks, NO_RANK):
            return
        key = (Source(node, rank), OUT if stream == "out" else ERR)
        with self._lock:
            lines = self._assembler.feed(key, data, self._clock())
            if lines is not None:
                self._take_lines(key, lines)

    def begin_attempt(self, pattern: str, work_folders: Mapping[str, str]) -> None:
        """Expect an attempt's lines, and metrics; with an area those of `pattern`, too.

        Paths below a node's copy of the code are shown as in the project.
        """
        with self._lock:
            self._work_folders = {node: f"{at}/".encode() for node, at in work_folders.items()}
            self._bar = None if self._raw else ProgressBar(pattern, is_hidden=not self._has_area)

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Note what a rank appended to the file of its metrics; it is no output."""
        if self._bar and (self._ranks is None or rank in self._ranks):
            with self._lock:
                self._bar.feed(Source(node, rank), data, self._clock())

    def first_failure(self, node: str, rank: int | None, *, is_over: bool = False) -> None:
        """Fold tracebacks that follow from this failure, until `recovered` or `reset_lines`.

        Of those on the node without a `rank`, or of that rank, all lines are shown. `is_over`: the
        attempt is, and its logs are read in no order of time.
        """
        with self._lock:
            self._folder.fold_except(node, rank, math.inf if is_over else self._clock())

    def recovered(self) -> None:
        """Show whole tracebacks again: the ranks go on without what failed."""
        with self._lock:
            self._put_held_lines()
            self._folder.keep_whole()

    def has_just_shown(self, node: str, lines: Sequence[str]) -> bool:
        """Return whether all these lines of a rank are among the last that were shown."""
        seen = b"\n".join(self._last_pieces).split(b"\n")[-SEEN_LINES:]
        bare = self._bare(Source(node, NO_RANK), "\n".join(lines).encode(errors="surrogateescape"))
        return set(bare.split(b"\n")) <= set(seen)

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much; the log files are complete."""
        self._is_muted = True

    def reset_lines(self) -> None:
        """Write an attempt's unfinished last lines before the next attempt starts."""
        with self._lock:
            self._put_last_lines()
        self.recovered()
        self._is_muted = False

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write unfinished last lines and everything before them, in `deadline_s` at most."""
        with self._lock:
            self._put_last_lines()
        deadline = time.monotonic() + deadline_s
        writers = self._writers.values()
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
        descriptors = (OUT,) if _is_one_output() else (OUT, ERR)
        writers = [Writer(fd, TICK_S, self._tick, self._on_reader_gone) for fd in descriptors]
        return {OUT: writers[0], ERR: writers[-1]}

    def _tick(self) -> None:
        with self._lock:
            now = self._clock()
            # While a reader is slow, nothing more is fetched from the hosts.
            idle_since = max(writer.idle_since for writer in self._writers.values())
            self._assembler.defer(now if self._waiting_bytes else idle_since)
            for stream, partial in self._assembler.pop_overdue(now):
                self._take_lines(stream, partial)
            self._put_held_lines(now)
            if now >= self._next_figures:
                self._put_figures(now)

    def _on_reader_gone(self, descriptor: int) -> None:
        if descriptor == OUT:
            with contextlib.suppress(OSError):
                os.write(ERR, self._reader_gone_note)

    def _put_message(self, data: bytes) -> None:
        self._writers[ERR].put(ERR, data)

    def _put_last_lines(self) -> None:
        """Write what ranks have not finished, and the last figures, which stay as other lines."""
        for stream, partial in self._assembler.pop_all():
            self._take_lines(stream, partial)
        self._put_held_lines()
        self._put_figures(None)
        if self._bar:
            self._bar.begin_anew()

    def _put_figures(self, now: float | None) -> None:
        """Write the figures that no line has shown, if there are any."""
        state = self._bar.state(now) if self._bar and self._bar.has_news else None
        if self._bar and state:
            self._bar.has_news = False
            self._next_figures = self._clock() + FIGURES_S
            self._emit((state.source,), OUT, "  ".join(state.texts).encode())

    def _take_lines(self, stream: Stream, lines: bytes) -> None:
        """Write lines, except for tracebacks, which wait."""
        shown = self._folder.feed(stream, lines, self._clock())
        if shown is not None:
            self._put_lines(stream, shown)

    def _put_held_lines(self, now: float = math.inf) -> None:
        for stream, lines in self._folder.pop_due(now):
            self._put_lines(stream, lines)

    def _put_lines(self, stream: Stream, lines: bytes) -> None:
        shown = self._output(stream, lines)
        if shown is not None:
            self._emit((stream[0],), stream[1], shown)

    def _output(self, stream: Stream, lines: bytes) -> bytes | None:
        """Return what is shown of lines, without mere figures; None for nothing."""
        source, descriptor = stream
        shown: bytes | None = self._bare(source, lines.replace(b"\r", b""))
        if self._bar and shown is not None and source.rank != NO_RANK:
            shown = self._bar.take(source, shown, self._clock())
        if self._raw or shown is None:
            return shown
        return clean_lines(shown, keep_colours=descriptor in self._coloured)

    def _bare(self, source: Source, lines: bytes) -> bytes:
        """Return lines without what our own prefix says, and where the node has its code."""
        if b"[rank" in lines:
            lines = _TORCH_PREFIX.sub(b"", lines)
        folder = self._work_folders.get(source.node)
        return lines.replace(folder, b"") if folder else lines

    def _prefix(self, sources: Sequence[Source], descriptor: int) -> bytes:  # noqa: ARG002
        return f"[{sources[0].label}] ".encode()

    def _emit(self, sources: Sequence[Source], descriptor: int, lines: bytes) -> None:
        """Write lines, all with the same prefix."""
        writer = self._writers[descriptor]
        if self._is_muted and writer.waiting_bytes > MAX_WAITING_BYTES:
            return
        if writer is self._writers[ERR]:
            self._last_pieces.append(lines[-SEEN_BYTES:])
        prefix = self._prefix(sources, descriptor)
        writer.put(descriptor, prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n")


def _is_one_output() -> bool:
    return os.path.samestat(os.fstat(OUT), os.fstat(ERR))


def encode_lines(text: str) -> bytes:
    """Return text as whole lines of bytes that can always be written, and only show."""
    return f"{message_text(text).rstrip()}\n".encode()


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
    is_screen = os.environ.get("TERM", "dumb") not in ("dumb", "") and os.isatty(OUT)
    if ui != "auto" or not is_screen or not _is_one_output():
        return Console(ranks, reader_gone_note, raw=ui == "raw", folds_tracebacks=True)
    from runner.ui.console.live import LiveConsole

    return LiveConsole(ranks, nodes)
