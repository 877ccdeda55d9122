"""A run whose launch is in a job of Slurm, which ends it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.record.run_store import RunStore
from runner.control.run import job_run
from runner.control.run.job_run import JobRun
from runner.core.launch_request import LaunchRequest
from runner.core.planning.slurm_job import Job
from tests.golden import builders


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
