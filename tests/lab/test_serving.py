"""An etcd that belongs to a run, as supervisors start and end it; on this machine."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from runner.core.model.plan import Sidecar
from runner.core.protocol.events import Ended, ProgramStarted, Stopping
from runner.core.protocol.states import State
from tests.lab.supervising import RunStarter

pytestmark = [pytest.mark.all]

SERVER = """
import socket, sys, time
time.sleep(float(sys.argv[3]))
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("serving", flush=True)
taken = []
while True:
    taken.append(server.accept())
"""


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_the_program_starts_once_the_service_listens(start: RunStarter) -> None:
    """And both end, the service last; its folder goes, its log stays."""
    port = free_port()
    argv = (sys.executable, "-c", SERVER, "127.0.0.1", str(port), "1.0")
    run = start("print=up", sidecar=Sidecar("server", "here", "127.0.0.1", port, argv))
    assert run.wait_ended() == Ended(State.SUCCEEDED)
    (log,) = Path(run.folder.attempt_folder(0)).glob("server.out")
    assert log.read_text() == "serving\n"
    (started,) = (event for event in run.events() if isinstance(event.body, ProgramStarted))
    assert started.wall >= log.stat().st_mtime
    assert not Path(run.folder.sidecar_folder("server")).exists()
    assert run.processes() == []


def test_a_service_that_ends_too_early_ends_the_run(start: RunStarter) -> None:
    """Its last words are the reason."""
    words = "print('half of it'); raise SystemExit('no room in here')"
    service = Sidecar("server", "here", "127.0.0.1", free_port(), (sys.executable, "-c", words))
    run = start("print=up", sidecar=service)
    assert run.wait_ended().state is State.FAILED
    assert run.bodies(ProgramStarted) == []
    (stopping,) = run.bodies(Stopping)
    assert stopping.reason == "the server of the run exited with 1: no room in here"
