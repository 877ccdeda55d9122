"""A followed run whose supervisor cannot be reached by its socket."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import pytest

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.agent.follow import FollowedRun
from runner.host.process.file_worker import run_now
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


def test_a_full_buffer_breaks_no_command(tmp_path: Path) -> None:
    """What it takes of a line at first is not said again."""
    order = Order("r1", "n1", 0, str(tmp_path), "/")
    run_socket = run_owner.RunSocket(RunPaths(str(tmp_path), "r1", "n1"))
    listener = run_socket.take()
    assert listener is not None
    confirmed: list[int] = []
    with listener:
        run = FollowedRun(run_socket, order, run_now)
        assert run._socket is not None
        supervisor, _ = listener.accept()
        for number in range(4):
            then = functools.partial(confirmed.append, number)
            run.send_command("stop", then, number=number, reason=LONG)
        assert len(confirmed) < 4
        received = b""
        with supervisor, run._socket:
            while len(confirmed) < 4 or not received.endswith(b"\n"):
                received += supervisor.recv(1 << 20)
                run._flush()
    assert [json.loads(line)["number"] for line in received.splitlines()] == confirmed


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
        run = FollowedRun(run_owner.RunSocket(folder), order, run_now)
        run.check_ended()
        assert supervisor.poll() is None
        run.send_command("stop", reason={"kind": "user", "detail": "^C"})

        def has_ended() -> bool:
            run.check_ended()
            return supervisor.poll() is not None

        try:
            wait_until(has_ended, "the signal")
        finally:
            supervisor.kill()
    assert asked.exists()
