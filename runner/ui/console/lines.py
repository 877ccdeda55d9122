"""Lines of ranks: made whole, without what moves the cursor, the same of many ranks as one.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
import os
import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.ui.layout import fold_names

SHOW_PARTIAL_AFTER_S = 1.0  # time after which an unfinished line is shown
MAX_NAMES_WIDTH = 20  # of nodes in a prefix
NO_RANK = -1  # stands for a command on the node, which is no rank

HOLD_S = 0.15  # time that a line waits for equal ones; with the writer's interval 0.2 s
FLOOD_LINES = 2000
FLOOD_BYTES = 1 << 18  # more in that time is a flood, which is shown unchanged
FLOOD_CHUNK_LINES = 64  # a piece of more lines than this is a flood as well

PALETTE_256 = (b"38;5;37", b"38;5;133", b"38;5;71", b"38;5;136", b"38;5;104", b"38;5;173")
"""Colours that are readable on black and on white; red is reserved for errors."""
PALETTE_16 = (b"36", b"35", b"32")
RED = b"31"
GREEN = b"32"
YELLOW = b"33"
DIM = b"2"
BOLD = b"1"

ESC = b"\x1b"
RESET = b"\x1b[0m"
CONTROL_BYTES = b"\x05\x07\x08\x0b\x0c\x0e\x0f\x7f"  # bells, character sets, cursor movements
_CONTROL_CHARS = tuple(bytes([each]) for each in CONTROL_BYTES)
_C1_LEAD = b"\xc2"
_C1_CONTROL = re.compile(_C1_LEAD + rb"[\x80-\x9f]")
"""In UTF-8; U+009B alone begins a sequence, as ESC [ does."""
_ESCAPE_SEQUENCE = re.compile(
    rb"\x1b(?:\[([0-?]*)[ -/]*([@-~]?)|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~]?)"
)
_BAR_RATES = re.compile(r"\s*\[[^][]*\]\s*$")  # what a progress bar of tqdm ends with


class Source(NamedTuple):
    """The node and the rank that wrote a line."""

    node: str
    rank: int

    @property
    def label(self) -> str:
        """Its name in a prefix."""
        return self.node if self.rank == NO_RANK else f"{self.node}:{self.rank}"


Stream = tuple[Source, int]
"""Whose standard output or standard error it is, by its descriptor."""


def label_of(sources: Sequence[Source], max_names: float = MAX_NAMES_WIDTH) -> str:
    """Return what stands in brackets before a line: `gpu1:0`, or for many `x15 gpu[1-4]`."""
    if len(sources) == 1:
        return sources[0].label
    names = fold_names(source.node for source in sources)
    count = f"\N{MULTIPLICATION SIGN}{len(sources)}"
    return f"{count} {names}" if len(names) <= max_names else count


def clean_lines(lines: bytes, *, keep_colours: bool) -> bytes:
    """Return lines without control sequences, but perhaps with colours that end with their line."""
    if _C1_LEAD in lines:
        lines = _C1_CONTROL.sub(b"", lines)
    if ESC in lines:
        keep = keep_colours
        lines = _ESCAPE_SEQUENCE.sub(lambda m: m[0] if keep and m[2] == b"m" else b"", lines)
    if any(control in lines for control in _CONTROL_CHARS):
        lines = lines.translate(None, CONTROL_BYTES)
    if ESC in lines:
        split_lines = lines.split(b"\n")
        lines = b"\n".join([line + RESET if ESC in line else line for line in split_lines])
    return lines


def strip_controls(line: bytes) -> str:
    """Return a line as text without any control characters."""
    text = _ESCAPE_SEQUENCE.sub(b"", line).decode(errors="replace").expandtabs(4)
    return "".join(char for char in text if char.isprintable())


def without_rates(text: str) -> str:
    """Return a progress bar without its times and rates, in which equal ones differ."""
    return _BAR_RATES.sub("", text)


class LineStyler:
    """The colours of reports and of the prefixes of lines, each of which has its node's.

    NO_COLOR removes all.
    """

    def __init__(self, nodes: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self.has_colour = not environ.get("NO_COLOR")
        has_256_colours = "256color" in environ.get("TERM", "") or bool(environ.get("COLORTERM"))
        self._palette = PALETTE_256 if has_256_colours else PALETTE_16
        self._node_numbers = {node: number for number, node in enumerate(nodes)}

    def sgr(self, code: bytes, text: bytes) -> bytes:
        """Return text in a colour."""
        return b"\x1b[%sm%s\x1b[0m" % (code, text) if self.has_colour else text

    def prefix(self, *sources: Source, is_error: bool, is_plain: bool = False) -> bytes:
        """Return the prefix of lines that these ranks wrote: standard error has a mark, `!`.

        One that `is_plain` has no colour, which is faster.
        """
        text = f"[{label_of(sources)}]".encode()
        mark = b"!" * is_error
        if self.has_colour and not is_plain:
            if len({source.node for source in sources}) == 1:
                number = self._node_numbers.setdefault(sources[0].node, len(self._node_numbers))
                text = self.sgr(self._palette[number % len(self._palette)], text)
            mark = self.sgr(RED, mark) if mark else b""
        return text + mark + b" "

    def style_report(self, text: str) -> str:
        """Return a report with its success or failure in colour."""
        lines = text.split("\n")
        for number, line in enumerate(lines):
            if verdict := re.match(r"run \S+ (?!goes |is )(\w+) |first failure: ", line):
                code = BOLD + b";" + {"succeeded": GREEN, "stopped": YELLOW}.get(verdict[1], RED)
                lines[number] = self.sgr(code, line.encode(errors="backslashreplace")).decode()
        return "\n".join(lines)


@dataclass
class _PartialLine:
    """An unfinished line, in its newest form if it redraws itself; "" if all of it was returned."""

    text: bytes
    since: float
    is_continuation: bool  # its beginning was already returned as a line


class LineAssembler:
    """Makes lines of pieces of output, of many streams.

    Work per line is done only where there are carriage returns.
    """

    def __init__(self, max_line_bytes: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._partial: dict[Stream, _PartialLine] = {}

    def feed(self, stream: Stream, data: bytes, now: float) -> bytes | None:
        """Add a piece; return the lines that it completes, joined by newlines, or None.

        A line that redrew itself begins with a carriage return, the only one in what is returned.
        """
        partial = self._partial.pop(stream, None)
        data = partial.text + data if partial else data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines, newline, rest = data.rpartition(b"\n")
        complete: bytes | None = None
        if newline:
            complete = lines
            if b"\r" in lines:
                complete = b"\n".join(map(_newest_form, lines.split(b"\n")))
            if partial and partial.is_continuation and complete[:1] in (b"", b"\n"):
                complete = complete[1:] if complete else None  # the end of a line returned before
            partial = None
        if rest:
            if b"\r" in rest:
                rest = _newest_form(rest) + b"\r" * rest.endswith(b"\r")
            since = partial.since if partial and partial.text else now
            is_continuation = partial is not None and partial.is_continuation
            partial = _PartialLine(rest, since, is_continuation)
            if len(rest) > self._max_line_bytes:
                partial = _PartialLine(b"", since, is_continuation=True)
                complete = rest if complete is None else complete + b"\n" + rest
        if partial:
            self._partial[stream] = partial
        return complete

    def pop_overdue(self, now: float) -> list[tuple[Stream, bytes]]:
        """Return the lines unfinished for long; their rest becomes a line of its own."""
        lines = []
        for stream, partial in self._partial.items():
            is_overdue = now - partial.since >= SHOW_PARTIAL_AFTER_S
            if is_overdue and partial.text and b"\r" not in partial.text:
                lines.append((stream, partial.text))
                partial.text = b""
                partial.is_continuation = True
        return lines

    def defer(self, until: float) -> None:
        """Count waiting from `until` on: the rest may have been written, but not fetched."""
        for partial in self._partial.values():
            partial.since = max(partial.since, until)

    def pending(self, now: float) -> list[tuple[Stream, bytes]]:
        """Return the newest form of each line that redraws itself or is unfinished for long."""
        return [
            (stream, partial.text.strip(b"\r"))
            for stream, partial in self._partial.items()
            if (b"\r" in partial.text or now - partial.since >= SHOW_PARTIAL_AFTER_S)
            and partial.text.strip()
        ]

    def pop_all(self) -> list[tuple[Stream, bytes]]:
        """Return all unfinished lines; a progress bar that erased itself is none."""
        texts = [(stream, each.text) for stream, each in self._partial.items()]
        self._partial.clear()
        # An empty one is the rest of a line that was returned.
        return [(stream, _newest_form(text)) for stream, text in texts if text.strip(b"\r \t")]


def _newest_form(line: bytes) -> bytes:
    """Return what a line shows last, after a carriage return if it had other forms."""
    text = line.rstrip(b"\r")
    newest = text.rpartition(b"\r")[2]
    return newest if newest == text else b"\r" + newest


@dataclass
class PendingLine:
    """A line of the stream `descriptor`, and the ranks that wrote it so far."""

    number: int
    since: float
    descriptor: int
    line: bytes
    text: bytes | str  # what has to be equal
    sources: list[Source] = field(default_factory=list)


class LineDeduplicator:
    """Lines that wait a moment for equal ones from other ranks, in order of arrival.

    The order per rank and stream is kept: a rank joins a pending line only if that comes after all
    its own pending lines.
    """

    def __init__(self) -> None:
        self._pending: deque[PendingLine] = deque()
        self._by_text: dict[tuple[int, bytes | str], deque[PendingLine]] = {}
        self._last_number: dict[Source, int] = {}
        self._number = 0
        self._window_start = 0.0
        self._window_lines = 0
        self._window_bytes = 0

    def accepts(self, lines: bytes, now: float) -> bool:
        """Return whether the flow is slow enough for these lines to wait."""
        count = lines.count(b"\n") + 1
        if now - self._window_start >= HOLD_S:
            self._window_start = now
            self._window_lines = 0
            self._window_bytes = 0
        self._window_lines += count
        self._window_bytes += len(lines)
        is_small = count <= FLOOD_CHUNK_LINES
        return is_small and self._window_lines <= FLOOD_LINES and self._window_bytes <= FLOOD_BYTES

    def add(self, stream: Stream, lines: bytes, now: float, same: str | None = None) -> None:
        """Add lines that wait; `same` is what has to be equal, by default the whole line."""
        source, descriptor = stream
        for line in lines.split(b"\n"):
            text = line if same is None else same
            last_number = self._last_number.get(source, 0)
            candidates = self._by_text.setdefault((descriptor, text), deque())
            pending = next((each for each in candidates if each.number > last_number), None)
            if pending is None:
                self._number += 1
                pending = PendingLine(self._number, now, descriptor, line, text)
                self._pending.append(pending)
                candidates.append(pending)
            pending.sources.append(source)
            self._last_number[source] = pending.number

    def pop_due(self, now: float = math.inf) -> list[PendingLine]:
        """Remove and return the lines that have waited long enough, by default all."""
        ready = []
        while self._pending and now - self._pending[0].since >= HOLD_S:
            pending = self._pending.popleft()
            key = (pending.descriptor, pending.text)
            self._by_text[key].popleft()
            if not self._by_text[key]:
                del self._by_text[key]
            ready.append(pending)
        if not self._pending:
            self._last_number.clear()
        return ready
