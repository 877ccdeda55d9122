"""The console on a terminal: lines scroll by, and below them stands what is going on.

Each write takes the area away, adds its lines, and draws the area again, so that nothing of it
stays among the lines. The cursor rests below the area, visible, in default colours: whoever dies,
stops or takes over there finds a terminal in order.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from runner.ui.console import plain
from runner.ui.console.colour import Paint, bare
from runner.ui.console.dedup import Folding, Held, Source
from runner.ui.console.plain import Console, encoded
from runner.ui.console.status_area import Area, Row
from runner.ui.console.writer import Writer

RHYTHM_S = 0.05
REDRAW_S = 0.125
LIVE_S = 1.0
"""How often a line that redraws itself is shown anew."""

BEHIND = 1 << 20
"""When so many bytes wait, lines come without colours: a terminal takes twice as long for them."""

COLUMNS, ROWS = 80, 24
"""For terminals that do not know their size."""


class Screen:
    """The terminal as the thread that writes to it knows it."""

    def __init__(
        self, descriptor: int, area: Area, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._descriptor, self._area, self._clock = descriptor, area, clock
        self._picture: list[Row] = []
        self._drawn: list[Row] = []
        self._size = (0, 0)
        self._next = 0.0

    def forget(self) -> None:
        """Take what is on the screen for others': after Ctrl-Z they wrote below the area."""
        self._drawn = []

    def frame(self, data: bytes) -> bytes:
        """Return what writes `data`, whole lines, above the area."""
        size = _size(self._descriptor)
        if self._clock() >= self._next or size != self._size or self._area.over:
            self._next = self._clock() + REDRAW_S
            self._picture = self._look(*size)
        if not data and self._picture == self._drawn and size == self._size:
            return b""
        self._size = size
        frame = self._erasure(size[0]) + data + b"".join(row.text + b"\n" for row in self._picture)
        self._drawn = self._picture
        return frame

    def _look(self, columns: int, rows: int) -> list[Row]:
        if not _in_front(self._descriptor):
            return []
        try:
            return self._area.picture(columns, rows)
        except Exception:  # noqa: BLE001 (a broken picture must not cost a line)
            self._area.end()
            return []

    def _erasure(self, columns: int) -> bytes:
        """Wipe the area's rows; a terminal made narrower broke some of them in two.

        One by one: tmux would keep a screen that is wiped as a whole among what scrolled by.
        """
        rows = sum(max(1, -(-row.cells // columns)) for row in self._drawn)
        return b"\r\x1b[K" + b"\x1b[A\x1b[2K" * rows if rows else b""


def _size(descriptor: int) -> tuple[int, int]:
    try:
        columns, rows = os.get_terminal_size(descriptor)
    except OSError:
        columns = rows = 0
    return columns or COLUMNS, rows or ROWS


def _in_front(descriptor: int) -> bool:
    """Whether the terminal is ours; in the background we would draw into another's screen."""
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return True


class LiveConsole(Console):
    """The console with a live area.

    The same line from many ranks within a fifth of a second is one line. A line that redraws
    itself, or has had no end for a second, stands in the area until it ends.
    """

    def __init__(self, ranks: frozenset[int] | None, nodes: Sequence[str]) -> None:
        self._paint = Paint(nodes)
        self._area = Area(nodes, colour=self._paint.colour)
        self._screen = Screen(plain.ERR, self._area)
        self._folding = Folding()
        self._folds = ranks is None or len(ranks) > 1
        self._next_live = 0.0
        self._unfinished: dict[tuple[str, int, int], str] = {}
        super().__init__(ranks)

    def say(self, text: str) -> None:
        """Write our own lines, after what ranks wrote before; they may quote what a host said."""
        words = self._paint.clean(encoded(text).replace(b"\r", b""))
        with self._lock:
            self._put_held(self._folding.flush())
            self._writers[plain.ERR].put(plain.ERR, words)

    def phase(self, text: str, lasted: float = 0.0) -> None:
        """Show what is going on, once it lasts."""
        self._area.phase(text, lasted)

    def state(self, node: str, text: str) -> None:
        """Show how a node is doing."""
        self._area.state(node, text)

    def verdict(self, text: str) -> None:
        """Take the area away for good and write the report in its place."""
        self._area.end()
        self.say(self._paint.report(text))

    def finish_ranks(self, deadline_s: float = 0.0) -> None:
        """Write ranks' last lines, and take the area away for good."""
        with self._lock:
            self._put_unfinished()
        self._area.end()
        self._writers[plain.ERR].put(plain.ERR, b"")
        super().finish_ranks(deadline_s)

    def _put_unfinished(self) -> None:
        super()._put_unfinished()
        self._put_held(self._folding.flush())

    def _open_writers(self) -> dict[int, Writer]:
        frame, forget = self._screen.frame, self._screen.forget
        screen = Writer(plain.ERR, RHYTHM_S, self._tick, self._left, frame, forget)
        return {plain.OUT: screen, plain.ERR: screen}

    def _tick(self) -> None:
        now = time.monotonic()
        with self._lock:
            self._put_held(self._folding.due(now))
            self._look_at_unfinished(now)
        screen = self._writers[plain.ERR]
        if not screen.pieces:
            screen.put(plain.ERR, b"")

    def _look_at_unfinished(self, now: float) -> None:
        """Have lines without an end in the area: the new at once, their newest form now and then.

        One that ended is among the lines above, and goes at once.
        """
        before = self._unfinished
        if now >= self._next_live:
            self._next_live = now + LIVE_S
            before = {}
        self._unfinished = {
            (*key, descriptor): before.get((*key, descriptor)) or bare(text)
            for descriptor, lines in self._lines.items()
            for key, text in lines.pending(now)
        }
        self._area.live(
            [(Source(node, rank), text) for (node, rank, _), text in self._unfinished.items()]
        )

    def _left(self, descriptor: int) -> None:
        """There is no other place to say that nobody reads."""

    def _put_lines(self, node: str, rank: int, descriptor: int, lines: bytes) -> None:
        source, now = Source(node, rank), time.monotonic()
        lines = self._paint.clean(lines)
        behind = self._writers[plain.ERR].waiting > 0  # what is held then would pile up
        if self._folds and not behind and self._folding.takes(lines, now):
            self._folding.add(source, descriptor, lines, now)
            return
        self._put_held(self._folding.flush())
        error, hurry = descriptor == plain.ERR, self._writers[plain.ERR].waiting > BEHIND
        prefix = self._paint.prefix(source, error=error, hurry=hurry)
        self._put_prefixed(prefix, plain.ERR, lines)

    def _put_held(self, held: list[Held]) -> None:
        for each in held:
            error = each.descriptor == plain.ERR
            prefix = (
                self._paint.prefix(each.sources[0], error=error)
                if len(each.sources) == 1
                else self._paint.prefix_of_many(each.sources, error=error)
            )
            self._put_prefixed(prefix, plain.ERR, each.line)
