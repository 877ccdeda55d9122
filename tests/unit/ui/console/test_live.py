"""The live console on a terminal: its screen, its status area, and what is left of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from runner.ui.console import console, status_area
from runner.ui.console.console import open_console
from runner.ui.console.status_area import StatusArea
from tests.lab.waiting import PATIENCE

NODES = ["gpu1", "gpu2"]


class Clock:
    """A clock that passes when told."""

    now = 5_000.0

    def __call__(self) -> float:
        return self.now


class Terminal:
    """A terminal of 80 columns, in place of our standard streams; it knows all it was told."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.other = os.dup(self.theirs)
        patch.setattr(console, "OUT", self.other)
        patch.setattr(console, "ERR", self.theirs)
        patch.setenv("TERM", "xterm")
        self.raw = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with suppress(OSError):
            while chunk := os.read(self._ours, 65536):
                self.raw += chunk

    def screen(self) -> list[str]:
        """Return what a person sees, and what scrolled away above it."""
        return drawn(self.raw)

    def hang_up(self) -> None:
        """Have all that was written read, and close."""
        for descriptor in (self.theirs, self.other):
            with suppress(OSError):
                os.close(descriptor)
        self._reader.join()

    def close(self) -> None:
        self.hang_up()
        os.close(self._ours)


def drawn(raw: bytes) -> list[str]:
    """Return the rows of a terminal that knows what we use, and of that only what we use."""
    rows = [""]
    row = 0
    column = 0
    for part in re.findall(r"\x1b\[[0-9;]*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", raw.decode()):
        if part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif part == "\r":
            column = 0
        elif part == "\x1b[A":
            row -= 1
        elif part in ("\x1b[K", "\x1b[2K"):
            assert column == 0
            rows[row] = ""
        elif part.endswith("m"):
            continue
        else:
            assert not part.startswith("\x1b")
            rows[row] = rows[row][:column] + part + rows[row][column + len(part) :]
            column += len(part)
    while rows and not rows[-1]:
        rows.pop()
    return rows


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Nothing is too quick to be shown."""
    made = Terminal(monkeypatch)
    monkeypatch.setattr(status_area, "SHOW_AFTER_S", -1.0)
    monkeypatch.setattr(status_area, "format_age", lambda _: "0 s")
    monkeypatch.delenv("NO_COLOR", raising=False)
    yield made
    made.close()


@pytest.mark.promise(12)
def test_what_we_quote_of_hosts_moves_no_cursor(terminal: Terminal) -> None:
    """The last lines of a log, or a banner, may hold anything."""
    shown = open_console("auto", None, NODES)
    shown.message("banner\r\n\x1b[2Jwelcome")
    end = "run 1-a failed after 1 s"
    shown.verdict(f"  | \x1b[31mred\x1b[5A\n{end}", {end: "1;31"})
    shown.close()
    terminal.hang_up()

    assert terminal.screen() == [
        "banner",
        r"\x1b[2Jwelcome",
        r"  | red\x1b[5A",
        end,
    ]
    assert f"\x1b[1;31m{end}\x1b[0m" in terminal.raw.decode()


def test_lines_begin_with_node_and_rank(terminal: Terminal) -> None:
    """In the colour of the node; standard error has a mark."""
    shown = open_console("auto", None, NODES)
    shown.rank_output("gpu1", 0, "out", b"one\n")
    shown.rank_output("gpu2", 2, "err", b"two\n")
    shown.close()
    terminal.hang_up()

    told = terminal.raw.decode()
    assert "\x1b[38;5;37m[gpu1:0]\x1b[0m one" in told
    assert "\x1b[38;5;133m[gpu2:2]\x1b[0m\x1b[31m!\x1b[0m two" in told


def test_flood_is_shown_to_the_last_line(terminal: Terminal) -> None:
    """In order, with the area below."""
    shown = open_console("auto", None, NODES)
    shown.phase("running")
    for chunk in range(10):
        text = b"".join(b"%d\n" % (100 * chunk + line) for line in range(100))
        shown.rank_output("gpu1", 0, "out", text)
    shown.flush_ranks(30 * PATIENCE)
    shown.close()
    terminal.hang_up()

    assert terminal.screen() == [f"[gpu1:0] {number}" for number in range(1000)]


def test_output_that_goes_elsewhere_is_plain(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Behind a pipe may be the same terminal (`| tee`): there is no area to be in the way.

    Nor is there one on a terminal that knows nothing, or where nobody wants it.
    """
    monkeypatch.setenv("TERM", "dumb")
    for ui in ("auto", "plain"):
        shown = open_console(ui, None, NODES)
        shown.close()
        monkeypatch.setenv("TERM", "xterm")
    descriptor = os.open(tmp_path / "out", os.O_WRONLY | os.O_CREAT)
    monkeypatch.setattr(console, "OUT", descriptor)
    shown = open_console("auto", None, NODES)
    shown.rank_output("gpu1", 0, "out", b"\x1b[31msame\n")
    shown.rank_output("gpu1", 1, "out", b"\x1b[31msame\nbar\r 10%\r 20%")
    shown.rank_output("gpu1", 1, "err", b"error\n")
    shown.close()
    os.close(descriptor)
    terminal.hang_up()

    assert (tmp_path / "out").read_bytes() == (b"[gpu1:0] same\n[gpu1:1] same\n[gpu1:1]  20%\n")
    assert terminal.screen() == ["[gpu1:1] error"]


EIGHT = [f"gpu{number}" for number in range(1, 9)]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def area(clock: Clock) -> StatusArea:
    return StatusArea(EIGHT, colour=False, clock=clock)


def look(area: StatusArea, columns: int = 80, rows: int = 24) -> list[str]:
    """Return the picture as text; each row fits, with a cell to spare."""
    picture = area.render(columns, rows)
    assert all(row.cells < max(columns, 2) for row in picture)
    return [row.text.decode() for row in picture]


def test_what_is_over_soon_is_never_shown(area: StatusArea, clock: Clock) -> None:
    """A quick run has no area."""
    area.phase("connecting")
    clock.now += 0.9
    first = look(area)
    area.phase("running")
    clock.now += 0.9

    assert first == look(area) == []


def test_equal_states_are_one_row(area: StatusArea, clock: Clock) -> None:
    """Nodes by range, in order of the first; what others say stays in its row."""
    area.phase("connecting")
    for node in EIGHT:
        area.node_status(node, "ready")
    area.node_status("gpu3", "asking\n  DNS\x1b ")
    clock.now += 65

    assert look(area) == [
        "connecting  1 m 05 s",
        "  gpu[1-2,4-8]  ready",
        "  gpu3          asking DNS\\x1b",
    ]


def test_area_takes_a_third_at_most(area: StatusArea, clock: Clock) -> None:
    """What has no room is counted."""
    area.phase("pushing the code")
    for number, node in enumerate(EIGHT):
        area.node_status(node, f"{number} %")
    clock.now += 2

    assert look(area, rows=12) == [
        "pushing the code  2 s",
        "  gpu1  0 %",
        "  gpu2  1 %",
        "  … and 6 more lines",
    ]
    assert look(area, rows=2) == ["pushing the code  2 s"]
