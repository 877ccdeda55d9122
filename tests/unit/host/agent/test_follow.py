"""A followed run whose supervisor cannot be reached by its socket, or whose files are shared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from runner.core.model.plan import Order
from runner.core.protocol.events import ENDED_BY_SCHEDULER, Ended, JobEnded, StopCause, Stopping
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.agent.follow import FollowedRun, Handler
from runner.host.agent.slurm import follow
from runner.host.agent.slurm.follow import FollowedJob
from runner.host.process.event_loop import run_steps
from runner.host.process.file_worker import run_now
from runner.host.storage import run_folder, run_owner
from tests.lab.waiting import wait_until

SUPERVISOR = """
import os, signal, sys
signal.signal(signal.SIGTERM, lambda *_: os.mkdir(sys.argv[1]))
print(flush=True)
signal.pause()
"""


@pytest.mark.promise(2)
def test_supervisor_out_of_reach_is_asked_by_a_signal_to_stop(tmp_path: Path) -> None:
    """In another network namespace: it gives its ranks their grace, as for any stop."""
    order = Order("r1", "n1", 0, str(tmp_path), ("x",), {}, "/", (0,), grace_s=60.0)
    folder = RunPaths(str(tmp_path), "r1", "n1")
    run_steps(run_folder.create_run_folder(folder, order, {"shim": "", "sitecustomize": ""}, {}))
    asked = tmp_path / "asked"
    argv = [sys.executable, "-c", SUPERVISOR, str(asked)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout
        supervisor.stdout.readline()
        run_owner.record(folder, [supervisor.pid])
        run = FollowedRun(run_owner.RunSocket(folder), order, run_now)
        run.check_ended()
        assert supervisor.poll() is None
        run.send_command("stop", cause="user", reason="^C")

        def has_ended() -> bool:
            run.check_ended()
            return supervisor.poll() is not None

        try:
            wait_until(has_ended, "the signal")
        finally:
            supervisor.kill()
    assert asked.exists()


def test_a_job_is_read_again_only_when_it_has_grown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes share a disk: nothing there is looked at more often for new data."""
    read = list[str]()

    def note(folder: RunPaths, order: Order) -> bool:
        read.append(order.node)
        return run_folder.has_ended(folder, order)

    monkeypatch.setattr(follow, "has_ended", note)
    monkeypatch.setattr(follow, "EXAMINE_S", 0.0)
    order = Order("r1", "n1", 0, str(tmp_path), ("x",), {}, "/", (0,))
    folder = RunPaths(str(tmp_path), "r1", "n1")
    Path(folder.attempt_folder(0)).mkdir(parents=True)
    context: Any = SimpleNamespace(files=SimpleNamespace(submit=run_now))
    job = FollowedJob(context, folder, order, ended=False, read_only=True)
    handler = Handler(context)
    handler._run = job
    job.log_reader.submit({"id": 1})
    assert (handler.busy, job.log_reader.idle) == (False, False)

    def look() -> int:
        read.clear()
        for _ in range(5):
            job.check_ended()
        return len(read)

    assert (look(), look()) == (1, 0)
    journal = run_folder.EventLog(folder, order)
    journal.append(Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER))
    assert (look(), job._look().is_ending, look()) == (1, True, 0)
    monkeypatch.setattr(follow, "FULL_LOOK_S", 0.0)
    journal.append(Stopping("once more", StopCause.USER))
    assert look() == 5  # as after a while
    journal.append(JobEnded("7", "CANCELLED"))  # else Slurm would be asked
    journal.append(Ended(State.STOPPED, ENDED_BY_SCHEDULER))
    assert (look(), job.ended) == (1, True)
