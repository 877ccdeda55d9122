"""The console: the bar of a run's progress, and a failure with its consequences."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from runner.ui.console import traceback_folding
from runner.ui.console.console import Console, open_console
from runner.ui.console.lines import Source
from runner.ui.console.status_area import ProgressBar, StepClock
from tests.golden.conftest import SCREENS, Check
from tests.lab.waiting import wait_until
from tests.unit.ui.console.test_live import Clock, Terminal, drawn

NODES = ["gpu1", "gpu2"]
PATIENCE_S = 10.0
DISK_FULL = {"level": "error", "msg": "checkpoint failed: disk full", "step": 99}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    made = Terminal(monkeypatch)
    yield made
    made.close()


def following(clock: Clock, pattern: str = "") -> Console:
    shown = Console(None, NODES, is_live=True, clock=clock)
    shown.phase("running")
    for node in NODES:
        shown.node_status(node, "running")
    shown.begin_attempt(pattern, {})
    return shown


def screen_with(terminal: Terminal, text: str) -> str:
    """Return the screen once it shows a text."""
    wait_until(lambda: any(text in row for row in terminal.screen()), text, PATIENCE_S)
    return "\n".join(terminal.screen()) + "\n"


def end(shown: Console, terminal: Terminal) -> str:
    shown.flush_ranks(PATIENCE_S)
    shown.verdict("run 1-a succeeded after 2 m 24 s")
    shown.close()
    terminal.hang_up()
    return "\n".join(terminal.screen()) + "\n"


def train(shown: Console, clock: Clock, first: int, last: int) -> None:
    """Have both ranks tell each third step, one in a second, and an error of one of them."""
    for step in range(first, last + 1, 3):
        clock.now += 3.0
        figures = {"steps": 240, "loss": 1 / step, "rate": 812.4, "unit": "samples"}
        line = json.dumps({"step": step, **figures}).encode() + b"\n"
        for rank, node in enumerate(NODES):
            shown.rank_output(node, rank, "out", line)
        if step == DISK_FULL["step"]:
            shown.rank_output("gpu2", 1, "err", json.dumps(DISK_FULL).encode() + b"\n")


def test_the_bar_of_metrics_lines(check_screen: Check, terminal: Terminal, clock: Clock) -> None:
    """Figures do not scroll, an error does; what ends early has no time left."""
    shown = following(clock)
    train(shown, clock, 3, 120)
    check_screen("progress-80.txt", screen_with(terminal, " 120/240"))
    train(shown, clock, 123, 237)
    check_screen("progress-ended-80.txt", end(shown, terminal))


def test_the_bar_of_a_pattern(check_screen: Check, terminal: Terminal, clock: Clock) -> None:
    """The program's own lines scroll, and their steps are in the bar."""
    shown = following(clock, r"epoch (\d+)/(\d+)")
    for epoch in range(1, 4):
        clock.now += 60.0
        line = f"epoch {epoch}/12 train_loss {1 / epoch:.2f}\n"
        shown.rank_output("gpu1", 0, "out", line.encode())
        clock.now += 1.0  # a line waits that long for equal ones, at most
    check_screen("progress-pattern-80.txt", screen_with(terminal, " 9 m 08 s left"))
    check_screen("progress-pattern-ended-80.txt", end(shown, terminal))


def test_what_lines_do_to_the_bar(check_screen: Check) -> None:
    """Lines of ranks, what scrolls of them, and the figures that are shown then."""
    page = []
    bar = ProgressBar()
    for line in (SCREENS / "progress-lines.txt").read_text(encoding="utf-8").splitlines():
        rank, _, text = line.partition(" ")
        if rank in ("==", "pattern"):
            bar = ProgressBar(text if rank == "pattern" else "")
            page.append(line)
        if not rank.startswith("gpu"):
            continue
        node, _, number = rank.partition(":")
        wrote = text.replace("\\n", "\n").encode()
        scrolls = bar.take(Source(node, int(number)), wrote, 0.0)
        state = bar.state(0.0)
        assert state is not None
        share = "" if state.share is None else f"{state.share:.0%} "
        page += [line, f"  scrolls: {(scrolls or b'').decode()!r}"]
        page.append(f"  {state.source.node}:{state.source.rank} {share}{' '.join(state.texts)}")
    check_screen("progress-lines.txt", "\n".join(page) + "\n")


def test_time_left_follows_the_steps() -> None:
    """It runs down between two lines, and is never less than nothing."""
    clock = StepClock()
    clock.note(10, 100.0)
    assert clock.left_s(50, 100.0) is None
    clock.note(20, 110.0)
    assert clock.left_s(50, 110.0) == 30.0
    assert clock.left_s(50, 115.0) == 25.0
    assert clock.left_s(50, 999.0) == 0.0
    assert clock.left_s(None, 110.0) is None


def test_what_was_written_before_an_attach_says_nothing_of_the_pace() -> None:
    """It comes in the first seconds, quicker than a run takes its steps."""
    clock = StepClock()
    for step in range(1000):
        clock.note(step, step / 500)
    clock.note(1009, 12.0)
    assert clock.left_s(1109, 12.0) == pytest.approx(100.0, rel=0.01)


HOSTS = ["h5", "h6", "h7", "h8"]
FRAMES = """\
Traceback (most recent call last):
  File "/home/ada/train.py", line 81, in <module>
    main()
  File "/home/ada/train.py", line 52, in main
    loss.backward()"""
PAIR = "/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553"
CLOSED = f"RuntimeError: [{PAIR}] Connection closed by peer [10.0.0.4]:"


def test_failure_on_a_terminal(check_screen: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 3 raises an exception of its own, and the others notice it: the first failure is whole.

    Each consequence is one row of 80 columns.
    """
    monkeypatch.setattr(traceback_folding, "WRITING_S", 0.0)
    terminal = Terminal(monkeypatch)
    shown = open_console("auto", None, HOSTS)
    shown.begin_attempt("", {})
    shown.message("every rank started after 2.1 s")
    errors = [f"{CLOSED}{40_000 + rank}" for rank in range(3)] + ["ValueError: lr must be > 0"]
    for rank, error in enumerate(errors):
        lines = [*FRAMES.split("\n"), *["    deeper()"] * rank, error]
        text = "".join(f"[rank{rank}]: {line}\n" for line in lines)
        shown.rank_output(HOSTS[rank], rank, "err", f"step {rank}\n{text}bye\n".encode())
    wait_until(lambda: b"bye" in terminal.raw, "the first failure's traceback", PATIENCE_S)
    shown.message("rank 3 on h8 exited with 1; stopping the rest")
    shown.flush_ranks(PATIENCE_S)
    shown.verdict("run 1-a failed after 4 s\nfirst failure: rank 3 on h8 exited with 1")
    shown.close()
    terminal.hang_up()
    rows = drawn(terminal.raw)
    terminal.close()

    assert max(map(len, rows)) <= 80
    check_screen("failure-80.txt", "\n".join(rows) + "\n")
