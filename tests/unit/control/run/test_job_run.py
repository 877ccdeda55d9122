"""A run whose launch is in a job: what Ctrl-C does while the job waits."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.record.run_store import RunStore
from runner.control.run import job_run
from runner.control.run.job_run import JobRun
from runner.core.errors import Interrupted
from runner.core.launch_request import LaunchRequest
from runner.core.planning.slurm_job import Job
from tests.golden import builders

ASKED = "cancel job 7, or leave it in the queue? c or l, and Enter (c)"


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("l\n", "job 7 of run r1 is left in the queue"),
        ("c\n", "its job is cancelled"),
        ("\n", "its job is cancelled"),
    ],
)
def test_ctrl_c_asks_what_becomes_of_a_job_that_waits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, typed: str, told: str
) -> None:
    """At a terminal where a text is typed; Enter alone cancels it."""
    monkeypatch.setattr(job_run, "job_of", lambda job_id: Job(job_id, "PENDING", "Resources"))
    monkeypatch.setattr(JobRun, "stop", lambda _: "its job is cancelled")
    said: list[str] = []
    request = LaunchRequest(spec=builders.spec(run_id="r1"), run_dir=tmp_path, config_yaml="")
    ours, theirs = os.openpty()
    os.write(ours, typed.encode())
    with os.fdopen(theirs) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        with pytest.raises(Interrupted, match=told):
            JobRun(request, "7", said.append)._on_signal(130)
    os.close(ours)
    assert said == [ASKED]


@pytest.mark.parametrize("events", [None, b'{"kind":"sta'])
def test_a_launch_that_was_killed_early_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, events: bytes | None
) -> None:
    """It has written no event, or a part of one; the attempts of the job before it are kept."""
    monkeypatch.setattr(job_run, "job_of", lambda job_id: Job(job_id, "FAILED", exit_code="0:9"))
    monkeypatch.setattr(job_run, "KILLED_LAG_S", 0.0)
    store = RunStore(tmp_path)
    request = LaunchRequest(spec=builders.spec(), run_dir=tmp_path, config_yaml="")
    for attempt in range(3):
        store.write_plan(replace(builders.plan(0), attempt=attempt), request)
    if events is not None:
        (tmp_path / "events.jsonl").write_bytes(events)
    JobRun(request, "7", lambda _: None).complete()
    _, verdict = store.read_result()
    assert verdict.first_failure is not None
    assert verdict.first_failure.text == "ended by Slurm: its launch was killed"
    assert [past.attempt for past in verdict.past_attempts] == [0, 1]
