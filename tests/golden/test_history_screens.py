"""What `compare` prints on a terminal and in a pipe."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from runner.core.errors import ConfigError
from runner.core.history import Metric, RunData, Series
from runner.core.outcome.verdict import Verdict
from runner.ui.comparison import compare_runs, render_runs, sort_runs
from runner.ui.layout import UNLIMITED_WIDTH
from tests.page_runs import plan

BEGAN = 1.7e9
STEPS = tuple(range(0, 1000, 10))


def run(number: int, rate: float, **fields: object) -> RunData:
    """A run that has ended; its loss falls at that rate."""
    made = plan("r", 0, 4, 4)
    losses = tuple(math.exp(-rate * step) for step in STEPS)
    series = {0: Series(STEPS, losses)}
    args = {"lr": rate, "batch_size": 64, "schedule": "cosine" if number % 2 else "linear"}
    data = RunData(
        run_id=f"1127-02{number:02}-digits-md3x",
        folder="/x",
        cluster="lab",
        task="train",
        launched_at=BEGAN,
        ended_at=BEGAN + 1000 * number,
        verdict=Verdict("succeeded", 0, 900.0 * number),
        plans=(replace(made, commit=f"{number}" * 40 + "+", release="0123456789abcdef"),),
        config={"task": {"args": args}, "run_id": str(number), "grace_s": 10.0 + number},
        metrics=(
            Metric("loss", last=losses[-1], least=min(losses), by_attempt=series),
            Metric("rate", "samples", last=812.25, by_attempt=series),
            Metric("val_acc", last=1 - losses[-1], by_attempt=series),
        ),
    )
    return replace(data, **fields)  # type: ignore[arg-type]  # its own fields


def runs() -> list[RunData]:
    """Six runs: one failed, one diverged, one is on."""
    made = [run(number, 0.001 * number) for number in range(1, 7)]
    made[1] = replace(made[1], verdict=Verdict("failed", 1, 60.0))
    diverged = replace(made[2].metrics[0], last=None)
    made[2] = replace(made[2], metrics=(diverged, *made[2].metrics[1:]))
    made[3] = replace(made[3], verdict=None, ended_at=None)
    return made


@pytest.mark.parametrize("width", [80, UNLIMITED_WIDTH])
def test_the_table_fits_the_terminal(check_screen: Callable[[str, str], None], width: int) -> None:
    """Of several runs, and of two."""
    text = "".join(f"{render_runs(shown, width)}\n\n" for shown in (runs(), runs()[:2]))
    assert all(len(line) <= width for line in text.splitlines())
    check_screen(f"compare-{width}", text)


def test_hostile_names_act_upon_nothing() -> None:
    """They come from programs, hosts and other users."""
    evil = "\x1b]0;x\x07\x1b[2J\r\n=1+1"
    metric = replace(run(1, 0.1).metrics[0], name=evil)
    hostile = run(1, 0.1, metrics=(metric,), config={"task": {"args": {evil: evil}}})
    shown = [hostile, run(2, 0.1)]
    cells = [text for row in compare_runs(shown) for each in row.items() for text in each]
    for text in (render_runs(shown, 200).replace("\n", ""), *cells):
        assert not isinstance(text, str) or text.isprintable()


def test_runs_are_sorted_by_any_column() -> None:
    """What is not known comes last, in both directions; a name that is none is refused."""
    for word, expected in (("loss", [6, 5, 4, 2, 1, 3]), ("-lr", [6, 5, 4, 3, 2, 1])):
        ids = [each.run_id for each in sort_runs(runs(), word)]
        assert [int(run_id[7:9]) for run_id in ids] == expected, word
    with pytest.raises(ConfigError, match="there are .*val_acc"):
        sort_runs(runs(), "val_ac")


def test_json_has_every_column_and_is_json() -> None:
    data = json.loads(json.dumps(compare_runs(runs()), allow_nan=False))
    assert [each["loss"] for each in data][2] == "NaN"
    assert data[0]["task.args.lr"] == "0.001"
    assert data[3]["end"] is None
    names = ("cluster", "task", "seconds", "end", "least_loss")
    values = [data[1][name] for name in names]
    assert values == ["lab", "train", 2000.0, "failed (1)", data[1]["loss"]]
