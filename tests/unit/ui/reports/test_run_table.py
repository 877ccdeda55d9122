"""The table of runs, and a run in words."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.outcome.verdict import Verdict
from runner.ui.reports.run_table import Row, next_step, render, render_stop, run_lines


def row(run_id: str, folder: str) -> Row:
    place = {"nodes": ("gpu1",), "of": 1, "gpus": 0, "attempt": 0, "ended": False}
    return Row(run_id, "train", "ada@lap", "running", 3.0, **place, folder=folder)  # type: ignore[arg-type]


def test_folders_are_shown_where_a_run_is_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One below the home is named from there; that of a run without a record is not known."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    own, unknown = row("run-a", str(tmp_path / "here")), row("run-c", "")
    assert "FOLDER" not in render([own, unknown], {}, {}, all_=False)
    shown = [own, row("run-b", str(tmp_path / "there")), unknown]
    lines = render(shown, {}, {}, all_=False).splitlines()
    assert [line.split()[-1] for line in lines] == ["FOLDER", ".", "~/there", "-"]


def test_the_runs_of_months_are_counted() -> None:
    """The youngest come first; one that is on is shown however old it is."""
    runs = [replace(row(f"run-{number}", ""), ended=True) for number in range(22)]
    runs[21] = replace(runs[21], ended=False)
    _, *lines, last = render(runs, {}, {}, all_=True).splitlines()
    assert [line.split()[0] for line in lines] == [f"run-{n}" for n in (*range(20), 21)]
    assert last == "1 older run not shown: --json has all"


def test_the_owner_of_a_run_is_named_where_it_is_not_the_reader() -> None:
    """As in `ps`; what is about to be removed takes one line for each run."""
    now = time.time()
    runs = [
        RunInfo("run-a", task="train", launched_by="ada@lap", launched_at=now - 90),
        RunInfo("run-b", task="digits", launched_by="bob@lap", launched_at=now),
    ]
    lines = run_lines(runs, "ada@lap", {"run-b": "/other"})
    assert re.fullmatch("run-a  train   1 m 3[0-9] s ago", lines[0])
    assert re.fullmatch("run-b  digits  [0-9]+ s ago +of bob@lap, from /other", lines[1])


def test_a_run_that_needs_something_has_a_next_step() -> None:
    """One without supervisors is closed by a stop."""
    run = row("run-a", "")
    assert next_step(run, "--run run-a") == ""
    told = next_step(replace(run, state="broken"), "--run run-a")
    assert re.search("supervisors are gone.*\n  .*runner stop --run run-a$", told)
    told = next_step(replace(run, unattended_left_s=9.0), "--run run-a")
    assert re.search("in 9 s .*\n  .*runner attach --run run-a$", told)


def test_equal_results_of_a_stop_are_one_line() -> None:
    """A node that is unlike has its own."""
    verdict = Verdict("stopped", 130, 3.0, nodes={})
    told = render_stop("run-a", "--run run-a", verdict, {"n1": 0, "n2": 0, "n3": "no answer"})
    assert re.search(r"n\[1-2\]  0 processes.* on each\n  n3 +no answer\n", told)


def test_a_node_of_an_attempt_before_is_as_proven_as_its_end() -> None:
    """It takes no part in the last one, whose results do not name it."""
    past = PastAttempt(0, ("n1", "n2"), "rank 0 exited with 1", unverified=("n2",))
    verdict = Verdict("stopped", 130, 3.0, past_attempts=(past,))
    told = render_stop("run-a", "--run run-a", verdict, {"n1": 0, "n2": 0})
    assert re.search(r"n1  0 processes\n  n2  0 processes, found by their environment\n", told)
