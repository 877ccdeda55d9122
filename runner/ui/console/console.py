"""The console: rank output, the runner's own lines, and on a terminal a status area below them.

Threads write them. A console whose output is not read (a full pipe, a stopped terminal) holds up
nothing else: the bytes that wait are counted, and callers check `is_full` before they fetch more.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from runner.core.wire.paths import NO_RANK
from runner.ui.console.lines import (
    LineAssembler,
    LineDeduplicator,
    Source,
    Stream,
    clean_lines,
    label_of,
    without_rates,
)
from runner.ui.console.status_area import ProgressBar, StatusArea
from runner.ui.console.traceback_folding import TracebackFolder
from runner.ui.console.writer import ERR, OUT, Writer
from runner.ui.output import message_text

MAX_WAITING_BYTES = 8 << 20  # the number of bytes that may wait to be written
MAX_LINE_BYTES = 1 << 20  # the size of the pieces in which an endless line is written
MAX_BEHIND = 1 << 12  # with more bytes waiting, no line waits for equal ones
PALETTE = ("38;5;37", "38;5;133", "38;5;71", "38;5;136", "38;5;104", "38;5;173")
"""Colours that are readable on black and on white; red is reserved for errors."""
RED = "31"
READER_GONE_NOTE = (
    b"note: the output is no longer read; the run continues, and its log files are complete\n"
)

_TORCH_PREFIX = re.compile(rb"^\[rank\d+\]: ?", re.MULTILINE)


class Console:
    """Ranks' output, and the runner's lines, which are on standard error.

    A line that redraws itself with carriage returns (a progress bar) is shown in its last form.
    An unfinished line is shown after a second, and its rest as a line of its own.

    If it `is_live`, all is on one terminal, with an area for unfinished lines and for figures,
    whose lines are hidden, and equal lines from many ranks within a fifth of a second are one.
    """

    def __init__(
        self,
        ranks: Collection[int] | None = None,
        nodes: Sequence[str] = (),
        reader_gone_note: bytes = READER_GONE_NOTE,
        *,
        is_live: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the writers; `ranks` are those whose output is shown, None for all.

        Escape sequences in it are dropped, except for colours on a terminal.
        """
        self._ranks = ranks
        self._clock = clock
        self._work_folders: dict[str, bytes] = {}
        self._folder: TracebackFolder | None = None
        self._bar: ProgressBar | None = None
        self._is_muted = False
        self._lock = threading.Lock()
        self._assembler = LineAssembler(MAX_LINE_BYTES)
        self._equal_lines = LineDeduplicator() if is_live else None
        has_colour = is_live and not os.environ.get("NO_COLOR")
        self._has_colour = has_colour
        self._node_numbers = {node: number for number, node in enumerate(nodes)}
        self._area = StatusArea(nodes, colour=has_colour, clock=clock)
        sys.stdout.flush()

        # One writer where both are the same terminal or file, so that lines keep their order; else
        # two, so that a blocked pipe does not hold back messages.
        area = self._area if is_live else None
        writer = Writer(OUT, self._tick, reader_gone_note, area)
        self._writers = {OUT: writer, ERR: writer}
        if not _is_one_output():
            self._writers[ERR] = Writer(ERR, self._tick)
        for writer in set(self._writers.values()):
            writer.start()

    @property
    def is_full(self) -> bool:
        return self._waiting_bytes > MAX_WAITING_BYTES and not self._is_muted

    @property
    def reader_gone(self) -> bool:
        return self._writers[OUT].is_broken

    def message(self, text: str) -> None:
        """Write lines of the runner's own, after earlier ones of ranks; they may quote hosts."""
        self._put_message(message_text(text, ERR))

    def phase(self, text: str, elapsed_s: float = 0.0) -> None:
        self._area.phase(text, elapsed_s)

    def node_status(self, node: str, text: str) -> None:
        self._area.node_status(node, text)

    def verdict(self, text: str, colours: Mapping[str, str] | None = None) -> None:
        """Write the report that ends a run, in place of the area; some lines have `colours`."""
        self._area.has_ended = True
        lines = text.split("\n")
        for place, line in enumerate(lines):
            lines[place] = message_text(line, ERR)
            if colours and line in colours:
                lines[place] = self._paint(colours[line], lines[place])
        self._put_message("\n".join(lines))

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
        """Expect an attempt's lines; an area shows its metrics, and what `pattern` finds.

        Paths below a node's copy of the code are shown as in the project.
        """
        with self._lock:
            self._work_folders = {node: f"{at}/".encode() for node, at in work_folders.items()}
            self._bar = ProgressBar(pattern) if self._is_live else None
            self._folder = TracebackFolder()

    def rank_metrics(self, node: str, rank: int, data: bytes) -> None:
        """Show in the area what a rank appended to the file of its metrics; it is no output."""
        if self._bar and (self._ranks is None or rank in self._ranks):
            with self._lock:
                self._bar.feed(Source(node, rank), data, self._clock())

    def mute(self) -> None:
        """Drop ranks' output from now on where it is too much; the log files are complete."""
        self._is_muted = True

    def reset_lines(self) -> None:
        """Write an attempt's unfinished last lines before the next attempt starts."""
        with self._lock:
            self._put_last_lines()
            self._bar = None
            self._folder = None
            self._assembler = LineAssembler(MAX_LINE_BYTES)
        self._is_muted = False

    def flush_ranks(self, deadline_s: float = 0.0) -> None:
        """Write ranks' last lines and all before them, in `deadline_s` at most; end the area."""
        with self._lock:
            self._put_last_lines()
        self._area.has_ended = True
        self._writers[ERR].put(b"")
        deadline = time.monotonic() + deadline_s
        writers = self._writers.values()
        while any(each.waiting_pieces and each.is_alive() for each in writers):
            if time.monotonic() >= deadline:
                return
            time.sleep(0.005)

    def close(self, give_up: Callable[[], bool] = lambda: False) -> None:
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

    @property
    def _is_live(self) -> bool:
        return self._equal_lines is not None

    def _tick(self) -> None:
        with self._lock:
            now = self._clock()
            self._put_tracebacks(now)
            self._put_equal_lines(now)
            if self._is_live:
                self._area.lines = self._assembler.pending(now)
                self._area.bar = self._bar.state(now) if self._bar else None
                return
            if self._waiting_bytes:
                self._assembler.postpone(now)  # nothing more may have been fetched from the hosts
            for stream, partial in self._assembler.pop_overdue(now):
                self._take_lines(stream, partial)

    def _put_message(self, lines: str) -> None:
        with self._lock:
            self._put_equal_lines()
            self._writers[ERR].put(f"{lines.rstrip()}\n".encode())

    def _put_last_lines(self) -> None:
        for stream, partial in self._assembler.pop_overdue():
            self._take_lines(stream, partial)
        self._put_tracebacks()
        self._put_equal_lines()
        if self._bar and (state := self._bar.pop_last()):
            self._emit([state.source], OUT, "  ".join(state.texts).encode())

    def _take_lines(self, stream: Stream, lines: bytes) -> None:
        lines = self._with_short_paths(stream[0].node, lines)
        shown = self._folder.feed(stream, lines, self._clock()) if self._folder else lines
        if shown is not None:
            self._put_lines(stream, shown)

    def _put_tracebacks(self, now: float = math.inf) -> None:
        for stream, lines in self._folder.pop_due(now) if self._folder else ():
            self._put_lines(stream, lines)

    def _put_lines(self, stream: Stream, lines: bytes) -> None:
        """Write what is shown of lines, at once or with equal ones of other ranks.

        A progress bar that has ended is no error, and equal to others whatever its rates.
        """
        source, descriptor = stream
        now = self._clock()
        is_split = self._is_live and b"\r" in lines
        for piece in lines.split(b"\n") if is_split else [lines]:
            shown = self._shown(stream, piece)
            if shown is None:
                continue
            is_behind = self._writers[ERR].waiting_bytes > MAX_BEHIND
            if self._equal_lines and piece.startswith(b"\r"):
                same = without_rates(shown.decode(errors="surrogateescape"))
                self._equal_lines.add((source, OUT), shown, now, same)
            elif self._equal_lines and not is_behind and self._equal_lines.accepts(shown):
                self._equal_lines.add(stream, shown, now)
            else:
                self._put_equal_lines()
                self._emit([source], descriptor, shown)

    def _shown(self, stream: Stream, lines: bytes) -> bytes | None:
        """Return what is shown of lines, without mere figures; None for nothing."""
        source, descriptor = stream
        lines = lines.replace(b"\r", b"")
        if b"[rank" in lines:
            lines = _TORCH_PREFIX.sub(b"", lines)
        if self._bar and source.rank != NO_RANK:
            others = self._bar.take(source, lines, self._clock())
            if others is None:
                return None
            lines = others
        return clean_lines(lines, keep_colours=self._writers[descriptor].takes_colours)

    def _with_short_paths(self, node: str, lines: bytes) -> bytes:
        """Return lines with paths below the node's copy of the code as in the project."""
        folder = self._work_folders.get(node)
        return lines.replace(folder, b"") if folder else lines

    def _put_equal_lines(self, now: float = math.inf) -> None:
        for held in self._equal_lines.pop_due(now) if self._equal_lines else ():
            self._emit(held.sources, held.descriptor, held.line)

    def _emit(self, sources: Sequence[Source], descriptor: int, lines: bytes) -> None:
        writer = self._writers[descriptor]
        if self._is_muted and writer.waiting_bytes > MAX_WAITING_BYTES:
            return
        label = f"[{label_of(sources)}]"
        node = sources[0].node
        if all(source.node == node for source in sources):
            number = self._node_numbers.setdefault(node, len(self._node_numbers))
            label = self._paint(PALETTE[number % len(PALETTE)], label)
        mark = self._paint(RED, "!") if self._is_live and descriptor == ERR else ""
        prefix = f"{label}{mark} ".encode()
        writer.put(prefix + lines.replace(b"\n", b"\n" + prefix) + b"\n")

    def _paint(self, colour: str, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._has_colour else text


def _is_one_output() -> bool:
    return os.path.samestat(os.fstat(OUT), os.fstat(ERR))


def open_console(
    ui: str,
    ranks: Collection[int] | None,
    nodes: Sequence[str],
    reader_gone_note: bytes = READER_GONE_NOTE,
) -> Console:
    """Return the console of a run, which suits standard output and error.

    `ui` is "auto" or "plain". The live one needs both to be the same terminal: a pipe may lead to
    that terminal as well (`| tee`), where its lines and the status area would overwrite each other.
    """
    is_screen = os.environ.get("TERM", "dumb") not in ("dumb", "") and os.isatty(OUT)
    is_live = ui == "auto" and is_screen and _is_one_output()
    return Console(ranks, nodes, reader_gone_note, is_live=is_live)
