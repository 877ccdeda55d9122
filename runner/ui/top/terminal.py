"""Terminal of the live view: the alternate screen, keys without Enter, and all of it taken back.

Whatever ends the view, the terminal is as it was: signals only take note, and wake the reader.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Sequence
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

IN, OUT = 0, 1
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
ENTER = "\x1b[?1049h\x1b[?25l"  # the alternate screen, without a cursor
LEAVE = "\x1b[0m\x1b[?25h\x1b[?1049l"
BEGIN_FRAME, END_FRAME = "\x1b[?2026h", "\x1b[?2026l"
"""What is between appears at once, in terminals that know this; others ignore it."""

ESCAPE_S = 0.05  # after which Escape alone is a key, and no beginning of one
WRITE_S = 2.0  # how long a terminal may take nothing: then it gets no more of this frame
PIECE = 512  # bytes that a terminal takes at once, if it says that it takes any
MIN_COLUMNS, MIN_LINES = 20, 3

KEYS = {
    b"\x1b[A": "up",
    b"\x1b[B": "down",
    b"\x1bOA": "up",
    b"\x1bOB": "down",
    b"\x1b[5~": "pageup",
    b"\x1b[6~": "pagedown",
    b"\x1b[H": "home",
    b"\x1b[F": "end",
    b"\x1bOH": "home",
    b"\x1bOF": "end",
    b"\x1b[1~": "home",
    b"\x1b[4~": "end",
    b"\x1b[7~": "home",
    b"\x1b[8~": "end",
}
ESCAPE = b"\x1b"


class KeyDecoder:
    """Keys from what a terminal sends, which may come in pieces."""

    def __init__(self) -> None:
        self._rest = b""

    @property
    def is_inside(self) -> bool:
        """Whether more is to come, unless Escape was pressed."""
        return bool(self._rest)

    def feed(self, data: bytes) -> list[str]:
        """Return the keys that are complete."""
        data, self._rest = self._rest + data, b""
        keys = []
        while data:
            if data[:1] != ESCAPE:
                keys.append(chr(data[0]))
                data = data[1:]
                continue
            size = _sequence_size(data)
            if not size:
                self._rest = data
                break
            keys.append(KEYS.get(data[:size], ""))
            data = data[size:]
        return [key for key in keys if key]

    def flush(self) -> list[str]:
        """Return "escape" if nothing came after it."""
        rest, self._rest = self._rest, b""
        return ["escape"] if rest == ESCAPE else []


def _sequence_size(data: bytes) -> int:
    """Return the length of the sequence that data begins with, 0 if it is not complete."""
    if data[1:2] == b"O":
        return 3 if len(data) > 2 else 0  # noqa: PLR2004
    if data[1:2] != b"[":
        return min(len(data), 2) if len(data) > 1 else 0
    for at in range(2, len(data)):
        if 0x40 <= data[at] <= 0x7E:  # noqa: PLR2004 (a final byte)
            return at + 1
    return 0


def is_usable() -> bool:
    """Return whether there is a terminal to show a view on, and to read keys from."""
    is_screen = os.environ.get("TERM", "dumb") not in ("dumb", "")
    return is_screen and os.isatty(IN) and os.isatty(OUT)


def takes_blocks() -> bool:
    """Return whether standard output takes block characters."""
    try:
        "\N{FULL BLOCK}".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Terminal:
    """The terminal, between `__enter__` and `__exit__`."""

    def __init__(self) -> None:
        self.signum = 0  # that asks to end
        self._is_suspending = False
        self._keys = KeyDecoder()
        self._drawn: list[str] = []
        self._size = (0, 0)
        self._wake = (-1, -1)
        self._attributes: list[object] = []
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> Self:
        """Take the terminal over."""
        self._attributes = termios.tcgetattr(IN)
        self._wake = os.pipe()
        for descriptor in self._wake:
            os.set_blocking(descriptor, False)
        ending = [each for each in ENDING if signal.getsignal(each) != signal.SIG_IGN]  # nohup
        for signum in (*ending, signal.SIGTSTP, signal.SIGWINCH):
            self._handlers[signum] = signal.signal(signum, self._on_signal)
        self._enter()
        return self

    def __exit__(self, *_: object) -> None:
        """Give it back as it was."""
        self._leave()
        for signum, handler in self._handlers.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]  # as it was returned
        for descriptor in self._wake:
            os.close(descriptor)

    def size(self) -> tuple[int, int]:
        """Return columns and lines of the window."""
        try:
            columns, lines = os.get_terminal_size(OUT)
        except OSError:
            columns = lines = 0
        size = max(MIN_COLUMNS, columns or 80), max(MIN_LINES, lines or 24)
        if size != self._size:
            self._size = size
            self._drawn = []
        return size

    def draw(self, lines: Sequence[str]) -> None:
        """Show lines; only those are written that have changed."""
        parts = [] if self._drawn else ["\x1b[0m\x1b[2J"]
        for at, line in enumerate(lines):
            if at >= len(self._drawn) or self._drawn[at] != line:
                parts.append(f"\x1b[{at + 1};1H\x1b[0m\x1b[2K{line}")
        if not parts:
            return
        is_whole = self._write(BEGIN_FRAME + "".join(parts) + END_FRAME)
        self._drawn = list(lines) if is_whole else []

    def keys(self, timeout_s: float) -> list[str]:
        """Wait for keys, a signal or a new size of the window, and return the keys."""
        wait_s = ESCAPE_S if self._keys.is_inside else timeout_s
        readable, _, _ = select.select([IN, self._wake[0]], [], [], max(0.0, wait_s))
        if self._wake[0] in readable:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._wake[0], 64):
                    pass
        if self._is_suspending:
            self._suspend()
        if IN not in readable:
            return self._keys.flush()
        try:
            data = os.read(IN, 1024)
        except OSError:
            data = b""
        if not data:  # the terminal is gone
            self.signum = self.signum or signal.SIGHUP
        return self._keys.feed(data)

    def _on_signal(self, signum: int, _: FrameType | None) -> None:
        if signum == signal.SIGTSTP:
            self._is_suspending = True
        elif signum != signal.SIGWINCH:
            self.signum = signum
        with contextlib.suppress(OSError):  # it is full: the reader wakes up anyway
            os.write(self._wake[1], b"\0")

    def _suspend(self) -> None:
        """Stop, as Ctrl-Z asks; go on in the foreground where `fg` says so."""
        self._is_suspending = False
        self._leave()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._enter()

    def _enter(self) -> None:
        attributes = termios.tcgetattr(IN)
        attributes[0] &= ~termios.IXON  # Ctrl-S would hold back the end, too
        attributes[3] &= ~(termios.ECHO | termios.ICANON)
        attributes[6][termios.VMIN], attributes[6][termios.VTIME] = 1, 0
        termios.tcsetattr(IN, termios.TCSANOW, attributes)
        self._drawn = []
        self._write(ENTER)

    def _leave(self) -> None:
        self._write(LEAVE, is_last=True)
        with contextlib.suppress(termios.error, OSError):  # it may be gone
            termios.tcsetattr(IN, termios.TCSANOW, self._attributes)  # type: ignore[arg-type]

    def _write(self, text: str, *, is_last: bool = False) -> bool:
        """Write; return whether the terminal took all of it in time.

        A signal cuts it short, unless it `is_last`.
        """
        data = text.encode(sys.stdout.encoding or "utf-8", "backslashreplace")
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            deadline = time.monotonic() + WRITE_S
            while not select.select([], [OUT], [], 0.1)[1]:
                if (self.signum and not is_last) or time.monotonic() > deadline:
                    return False
            try:
                os.write(OUT, piece)
            except OSError:
                self.signum = self.signum or signal.SIGHUP
                return False
        return True
