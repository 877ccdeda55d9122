"""An etcd that belongs to a run, as supervisors start and end it; on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from runner.core.model.plan import Sidecar
from runner.core.protocol.events import Ended, ProgramStarted, Stopping
from runner.core.protocol.states import State
from tests.lab.lab import Lab
from tests.lab.supervising import RunStarter

SERVER = """
import socket, sys, time
time.sleep(float(sys.argv[3]))
server = socket.create_server((sys.argv[1], int(sys.argv[2])))
print("serving", flush=True)
taken = []
while True:
    taken.append(server.accept())
"""
CLIENT = """
import socket, sys
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print("connected", flush=True)
sys.stdin.read()
"""


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def serving(addr: str = "127.0.0.1", after: float = 0.0, node: str = "here") -> Sidecar:
    """A server that listens there, after so many seconds."""
    port = free_port()
    argv = (sys.executable, "-c", SERVER, addr, str(port), str(after))
    return Sidecar("server", node, addr, port, argv)


def test_the_program_starts_once_the_service_listens(start: RunStarter) -> None:
    """And both end, the service last; its folder goes, its log stays."""
    run = start("print=up", sidecar=serving(after=1.0))
    assert run.bodies(ProgramStarted) == []
    assert run.wait_ended() == Ended(State.SUCCEEDED)
    (log,) = Path(run.folder.attempt_folder(0)).glob("server.out")
    assert log.read_text() == "serving\n"
    assert not Path(run.folder.sidecar_folder("server")).exists()
    assert run.processes() == []


def test_a_service_that_others_use_outlives_the_program_beside_it(
    lab: Lab, start: RunStarter
) -> None:
    """Until the last of them has hung up."""
    service = serving(lab.address)
    run = start("wait=go", sidecar=service)
    run.wait_started()
    argv = [sys.executable, "-c", CLIENT, service.addr, str(service.port)]
    client = lab["node1"].popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline().strip() == "connected"
    Path(run.folder.work, "go").touch()
    run.until(lambda: any(event.to_line().find('"program_exited"') > 0 for event in run.events()))
    seen_until = time.monotonic() + 1
    while time.monotonic() < seen_until:  # it goes on listening
        socket.create_connection((service.addr, service.port)).close()
    assert run.bodies(Ended) == []
    client.communicate(timeout=10)
    assert run.wait_ended() == Ended(State.SUCCEEDED)


def test_a_service_that_ends_too_early_ends_the_run(start: RunStarter) -> None:
    """Its last words are the reason."""
    words = "print('half of it'); raise SystemExit('no room in here')"
    service = Sidecar("server", "here", "127.0.0.1", free_port(), (sys.executable, "-c", words))
    run = start("print=up", sidecar=service)
    assert run.wait_ended().state is State.FAILED
    assert run.bodies(ProgramStarted) == []
    (stopping,) = run.bodies(Stopping)
    assert stopping.reason == "the server of the run exited with 1: no room in here"


def test_a_service_that_cannot_be_started_ends_the_run(start: RunStarter) -> None:
    """It is not there."""
    service = Sidecar("server", "here", "127.0.0.1", free_port(), ("/nowhere/server",))
    run = start("print=up", sidecar=service)
    assert run.wait_ended().state is State.FAILED
    (stopping,) = run.bodies(Stopping)
    assert stopping.reason == "cannot start /nowhere/server: No such file or directory"


def test_a_run_that_still_waits_for_its_service_can_be_stopped(start: RunStarter) -> None:
    """The node that is to run it has not begun."""
    run = start("print=up", sidecar=serving(node="elsewhere"), grace_s=60.0)
    run.send_command("stop")
    assert run.wait_ended(5).state is State.STOPPED
    assert run.bodies(ProgramStarted) == []


def test_the_death_of_the_supervisor_takes_the_service_along(start: RunStarter) -> None:
    """And what it kept."""
    run = start("print=up", "sleep=600", sidecar=serving())
    run.wait_started()
    os.kill(run.supervisor(), signal.SIGKILL)
    assert run.wait_ended().state is State.FAILED
    assert run.processes() == []
    assert not Path(run.folder.sidecar_folder("server")).exists()
