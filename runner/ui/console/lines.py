"""Lines of ranks: made whole, without what moves the cursor, the same of many ranks as one.

Pure: the caller passes the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from runner.core.errors import fold_names
from runner.core.wire.paths import NO_RANK

SHOW_PARTIAL_AFTER_S = 1.0  # time after which an unfinished line is shown
MAX_NAMES_WIDTH = 20  # of nodes in a prefix

HOLD_S = 0.15  # time that a line waits for equal ones
MAX_HELD = 1000  # lines that wait; more are a flood, which is shown as it comes
FLOOD_LINES = 64  # of one piece, which is a flood as well

RESET = b"\x1b[0m"

_COLOUR = rb"\[[0-9;:]*m"
_SEQUENCE = rb"\[[0-?]*[ -/]*[@-~]?|[]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|[ -/]*[0-Z\\^-~]?"
_UNSAFE = re.compile(
    rb"\x1b(?:(?P<colour>" + _COLOUR + rb")|" + _SEQUENCE + rb")"
    rb"|\xc2(?:[\x80-\x9f]|(?![\xa0-\xbf]))"  # C1 controls in UTF-8, and what could become one
    rb"|[\x05\x07\x08\x0b\x0c\x0e\x0f\x7f]"  # bells, character sets, cursor movements
)
_FIRST_BYTES = b"\x1b\xc2\x05\x07\x08\x0b\x0c\x0e\x0f\x7f"
_BAR_RATES = re.compile(r"(?<!\s)\s*\[[^][]*\]\s*$")  # what a progress bar of tqdm ends with


class Source(NamedTuple):
    node: str
    rank: int


Stream = tuple[Source, int]
"""Whose standard output or standard error it is, by its descriptor."""


def label_of(sources: Sequence[Source], max_names: float = MAX_NAMES_WIDTH) -> str:
    """Return what stands in brackets before a line: `gpu1:0`, or for many `x15 gpu[1-4]`."""
    if len(sources) == 1:
        node, rank = sources[0]
        return node if rank == NO_RANK else f"{node}:{rank}"
    names = fold_names(source.node for source in sources)
    count = f"\N{MULTIPLICATION SIGN}{len(sources)}"
    return f"{count} {names}" if len(names) <= max_names else count


def clean_lines(lines: bytes, *, keep_colours: bool) -> bytes:
    """Return lines without control sequences, but perhaps with colours that end with their line."""
    if not any(byte in lines for byte in _FIRST_BYTES):  # which is much faster
        return lines
    if not keep_colours:
        return _UNSAFE.sub(b"", lines)
    lines = _UNSAFE.sub(lambda match: match[0] if match["colour"] else b"", lines)
    if b"\x1b" in lines:
        split_lines = lines.split(b"\n")
        lines = b"\n".join(line + RESET if b"\x1b" in line else line for line in split_lines)
    return lines


def without_rates(text: str) -> str:
    """Return a progress bar without its times and rates, in which equal ones differ."""
    return _BAR_RATES.sub("", text)


@dataclass
class _PartialLine:
    """An unfinished line, in its newest form if it redraws itself; "" if all of it was returned."""

    text: bytes
    since: float
    is_continuation: bool  # its beginning was already returned as a line

    def is_overdue(self, now: float) -> bool:
        return now - self.since >= SHOW_PARTIAL_AFTER_S and b"\r" not in self.text


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
        partial = self._partial.pop(stream, None) or _PartialLine(b"", now, is_continuation=False)
        data = partial.text + data
        if b"\r" in data:
            data = data.replace(b"\r\n", b"\n")
        lines, newline, rest = data.rpartition(b"\n")
        complete: bytes | None = None
        if newline:
            complete = lines
            if b"\r" in lines:
                complete = b"\n".join(map(_newest_form, lines.split(b"\n")))
            if partial.is_continuation and complete[:1] in (b"", b"\n"):
                complete = complete[1:] if complete else None  # the end of a line returned before
            partial = _PartialLine(b"", now, is_continuation=False)
        if rest and not partial.text:
            partial.since = now
        if b"\r" in rest:
            rest = _newest_form(rest) + b"\r" * rest.endswith(b"\r")
        if len(rest) > self._max_line_bytes:
            complete = rest if complete is None else complete + b"\n" + rest
            rest = b""
            partial.is_continuation = True
        partial.text = rest
        if rest or partial.is_continuation:
            self._partial[stream] = partial
        return complete

    def postpone(self, now: float) -> None:
        for partial in self._partial.values():
            partial.since = now

    def pop_overdue(self, now: float = math.inf) -> list[tuple[Stream, bytes]]:
        """Return the lines unfinished for long; their rest becomes a line of its own.

        Without a time, all are; a progress bar that erased itself is none.
        """
        lines = []
        for stream, partial in self._partial.items():
            is_due = now == math.inf or partial.is_overdue(now)
            if is_due and partial.text.strip(b"\r \t"):
                lines.append((stream, _newest_form(partial.text)))
                partial.text = b""
                partial.is_continuation = True
        return lines

    def pending(self, now: float) -> list[tuple[Stream, bytes]]:
        """Return the newest form of each line that redraws itself or is unfinished for long."""
        return [
            (stream, partial.text.strip(b"\r"))
            for stream, partial in self._partial.items()
            if (b"\r" in partial.text or partial.is_overdue(now)) and partial.text.strip()
        ]


def _newest_form(line: bytes) -> bytes:
    """Return what a line shows last, after a carriage return if it had other forms."""
    text = line.rstrip(b"\r")
    newest = text.rpartition(b"\r")[2]
    return newest if newest == text else b"\r" + newest


@dataclass(eq=False)
class HeldLine:
    """A line of the stream `descriptor`, and the ranks that wrote it so far."""

    since: float
    descriptor: int
    line: bytes
    text: bytes | str  # what has to be equal
    depth: int  # how many lines of its first rank were held when it came
    sources: list[Source] = field(default_factory=list)


class LineDeduplicator:
    """Lines that wait a moment for equal ones from other ranks.

    The order per rank is kept: a rank joins a line only if that comes after all its own. A line
    that is new comes before those that may be equal to the rank's next ones.
    """

    def __init__(self) -> None:
        self._held: list[HeldLine] = []
        self._last: dict[Source, HeldLine] = {}  # of each rank

    def accepts(self, lines: bytes) -> bool:
        return len(self._held) < MAX_HELD and lines.count(b"\n") < FLOOD_LINES

    def add(self, stream: Stream, lines: bytes, now: float, same: str | None = None) -> None:
        """Add lines that wait; `same` is what has to be equal, by default the whole line."""
        source, descriptor = stream
        for line in lines.split(b"\n"):
            text = line if same is None else same
            last = self._last.get(source)
            later = self._held[self._held.index(last) + 1 if last else 0 :]
            for held in later:
                if held.text == text and held.descriptor == descriptor:
                    break
            else:
                held = HeldLine(now, descriptor, line, text, depth=last.depth + 1 if last else 0)
                after = [each.depth > held.depth for each in later]
                index = after.index(True) if True in after else len(later)
                self._held.insert(len(self._held) - len(later) + index, held)
            held.sources.append(source)
            self._last[source] = held

    def pop_due(self, now: float = math.inf) -> list[HeldLine]:
        """Remove and return the lines that have waited long enough, by default all."""
        count = 0
        for number, held in enumerate(self._held):
            waited_s = now - held.since
            # What came before an older line must not hold it up for long.
            if waited_s >= 2 * HOLD_S or (waited_s >= HOLD_S and count == number):
                count = number + 1
        ready = self._held[:count]
        del self._held[:count]
        gone = set(ready)
        self._last = {source: held for source, held in self._last.items() if held not in gone}
        return ready
