"""A followed run whose supervisor cannot be reached by its socket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.agent.follow import FollowedRun
from runner.host.process.jobs import Jobs
from runner.host.storage import run_folder, run_owner
from tests.lab.waiting import wait_until

LONG = {"kind": "other", "detail": "x" * 200_000}

SUPERVISOR = """
import os, signal, sys
def stop(*_):
    os.mkdir(sys.argv[1])
    os._exit(0)
signal.signal(signal.SIGTERM, stop)
print(flush=True)
signal.pause()
"""


@pytest.mark.promise(2)
def test_supervisor_out_of_reach_is_asked_by_a_signal_to_stop(tmp_path: Path) -> None:
    """In another network namespace: it gives its ranks their grace, as for any stop."""
    order = Order("r1", "n1", 0, str(tmp_path), "/", grace_s=60.0)
    folder = RunPaths(str(tmp_path), "r1", "n1")
    programs = dict.fromkeys(("shim", "rank_facts", "sitecustomize"), "")
    run_folder.create_run_folder(folder, order, programs, {})
    asked = tmp_path / "asked"
    argv = [sys.executable, "-c", SUPERVISOR, str(asked)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout
        supervisor.stdout.readline()
        run_owner.record(folder, [supervisor.pid])
        run = FollowedRun(run_owner.RunSocket(folder), order)
        jobs = Jobs()
        watch = jobs.start(run.watch)
        stop = jobs.start(lambda: run.send("stop", reason={"kind": "user", "detail": "^C"}))
        try:
            wait_until(lambda: supervisor.poll() is not None, "the signal")
        finally:
            supervisor.kill()
        watch.join(60)
        stop.join(60)
    assert asked.exists()
    assert run.ended
