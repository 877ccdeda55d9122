"""The table of `ps` in terminals of two widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.metrics import RankProgress
from runner.ui.reports.run_table import Row, render
from tests.golden.conftest import Check

WIDTHS = (80, 160)
PLACE: dict[str, Any] = {"nodes": ("gpu1", "gpu2"), "of": 2, "gpus": 0, "attempt": 0}
FIRST = Row(
    "1124-0431-char_gpt-ab12", "char_gpt", "ada@laptop", "running", 75.0, **PLACE, ended=False
)
SECOND = Row("1124-0401-ddp-9x9x", "ddp", "ada@laptop", "running", 4000.0, **PLACE, ended=False)
TOLD = replace(FIRST, progress=RankProgress(0, 280, 110_000, 812.4, "samples", 5025.5))
ENDED = replace(SECOND, state="succeeded", ended=True, folder="/srv/vision")
ELASTIC = replace(
    FIRST,
    run_id="1123-2359-elastic-q1q1",
    task="elastic",
    owner="grace@station",
    state="running, 2 of 2-4 nodes",
    gpus=16,
    attempt=2,
    progress=RankProgress(0, 12, 400, 3.25, "it", 86_000.0),
    folder="/srv/projects/speech-recognition",
)
LONG = replace(
    TOLD,
    run_id="1124-0431-a-task-with-a-name-of-forty-characters-zz99",
    task="a_task_with_a_name_of_forty_characters",
    owner="somebody@workstation.department.example.org",
    state="running, 19 of 16-24 nodes",
    nodes=tuple(f"gpu{number:02}" for number in (*range(1, 17), 18, 20, 22)),
    of=24,
    gpus=152,
    folder="/srv/projects/with-a-long-name/and-a-long-name-in-it/and-one-more-for-good-measure",
)
HERE = replace(FIRST, folder=str(Path.cwd()))
TABLES = {
    "without progress": (FIRST, SECOND),
    "with progress": (TOLD, replace(SECOND, progress=RankProgress(0, 7))),
    "of several folders": (TOLD, ENDED, ELASTIC),
    "of this folder": (HERE, SECOND),
    "of this folder and others": (HERE, SECOND, ELASTIC),
    "of ended runs from one other folder": (ENDED, replace(ENDED, run_id="1124-0400-ddp-1a1a")),
    "with long names": (LONG, SECOND),
}


def shown(runs: Sequence[Row], width: int) -> str:
    return render(runs, {}, {}, all_=True, width=width, reader="ada@laptop")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_runs(
    width: int, check_screen: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room beside the rest is on a second line of its run."""
    monkeypatch.setenv("HOME", "/srv/projects")
    parts = [f"{title}\n{shown(runs, width)}\n" for title, runs in TABLES.items()]
    check_screen(f"ps-{width}.txt", "\n".join(parts))


def test_the_runs_of_months_are_counted() -> None:
    """The youngest come first; one that is on is shown however old it is."""
    runs = [replace(ENDED, run_id=f"run-{number}") for number in range(22)]
    runs[21] = replace(runs[21], ended=False)
    lines = render(runs, {}, {}, all_=True).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("run-")]
    assert shown == [f"run-{n}" for n in (*range(20), 21)]
    assert lines[-1] == "1 older run not shown: --json has all"
