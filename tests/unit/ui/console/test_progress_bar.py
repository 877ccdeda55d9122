"""The bar that stands for metrics lines."""

from __future__ import annotations

import pytest

from runner.ui.console.lines import Source
from runner.ui.console.progress_bar import ProgressBar, StepClock

FIRST, SECOND = Source("gpu1", 0), Source("gpu2", 1)


def test_the_lowest_rank_that_prints_metrics_is_shown() -> None:
    """Of all ranks the lines are taken out, and nothing else is."""
    bar = ProgressBar()
    assert bar.state(0.0) is None
    assert bar.take(SECOND, b'hello\n{"step": 4, "steps": 8}\nworld', 0.0) == b"hello\nworld"
    assert bar.take(FIRST, b'{"step": 2, "steps": 8, "loss": 0.25, "rate": 64}', 1.0) is None
    assert bar.take(SECOND, b'{"step": 5, "steps": 8}', 2.0) is None
    state = bar.state(2.0)
    assert state is not None
    assert (state.source, state.share) == (FIRST, 0.25)
    assert state.texts == ("2/8", "loss 0.25", "64/s")
    bar.take(FIRST, b'{"step": 8, "steps": 8, "rate": 12345.6, "unit": "it/s"}', 3.0)
    last = bar.state(None)
    assert last is not None
    assert last.texts == ("8/8", "loss 0.25", "12,346 it/s")


@pytest.mark.parametrize(
    "line",
    [
        b'{"level": "error", "msg": "checkpoint failed: disk full", "step": 99, "steps": 100}',
        b"step 99/100 train_loss 0.5 val_acc 0.91 WARNING grad overflow",
    ],
)
def test_a_line_that_says_more_than_figures_stays_output(line: bytes) -> None:
    """Its step is shown in the bar all the same."""
    bar = ProgressBar(r"step (\d+)/(\d+)")
    assert bar.take(FIRST, b"a\n" + line + b"\nb", 0.0) == b"a\n" + line + b"\nb"
    state = bar.state(0.0)
    assert state is not None
    assert state.texts == ("99/100",)


def shown(bar: ProgressBar, now: float = 0.0) -> tuple[Source, tuple[str, ...]]:
    """Return whose figures are shown, and these."""
    state = bar.state(now)
    assert state is not None
    return state.source, state.texts


def test_an_evaluation_that_counts_its_own_steps_does_not_move_the_bar() -> None:
    """Where the training says in each line how many there are; it scrolls."""
    bar = ProgressBar()
    bar.take(FIRST, b'{"step": 1, "steps": 100}\n{"step": 2, "steps": 100}', 0.0)
    evaluation = b'{"step": 1, "val_loss": 0.3}'
    assert bar.take(FIRST, evaluation, 1.0) == evaluation
    assert shown(bar) == (FIRST, ("2/100",))


def test_a_rank_that_tells_how_many_steps_there_are_is_shown_rather() -> None:
    """One that said something once is no obstacle."""
    bar = ProgressBar()
    bar.take(FIRST, b'{"step": 0, "event": "init done"}', 0.0)
    assert shown(bar) == (FIRST, ("step 0",))
    bar.take(SECOND, b'{"step": 1, "steps": 100}', 1.0)
    assert shown(bar) == (SECOND, ("1/100",))
    bar.take(FIRST, b'{"step": 21}', 2.0)
    assert shown(bar) == (SECOND, ("1/100",))
    bar.take(FIRST, b'{"step": 22, "steps": 100}', 2.5)
    assert shown(bar) == (FIRST, ("22/100",))


def test_plain_lines_move_the_bar_and_stay_output() -> None:
    """Of a rank that prints steps, or JSON, its summaries do not."""
    bar = ProgressBar()
    for line, told in (
        (b"epoch 1/3 loss 0.9", ("1/3", "loss 0.9")),
        (b"step 5/9 loss 0.8 lr 1e-3", ("5/9", "loss 0.8", "lr 0.001")),
        (b"epoch 2/3 loss 0.7", ("5/9", "loss 0.8", "lr 0.001")),
        (b"{'loss': 0.5, 'epoch': 0.1}", ("5/9", "loss 0.8", "lr 0.001")),
    ):
        assert bar.take(FIRST, line, 1.0) == line
        assert shown(bar) == (FIRST, told)
    assert bar.take(FIRST, b'{"step": 6, "steps": 9}', 1.0) is None
    assert shown(bar) == (FIRST, ("6/9",))


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
