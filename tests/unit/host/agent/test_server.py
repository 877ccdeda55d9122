"""The agent: where a disk hangs, and commands of `exec`."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from runner.core.wire.codec import INITIAL_CREDIT, MAGIC, Frame, FrameDecoder, encode
from runner.core.wire.container import Container
from runner.core.wire.facts import FactsRequest, Prepare
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.agent.exec import CommandRun
from runner.host.agent.stream import Credit
from runner.host.storage import run_folder
from tests.lab.waiting import PATIENCE, wait_until

AGENT = """
from runner.host.agent import server
server.LEAVE_TIMEOUT_S = 0.2
server.main({}, b"", "")
"""


class Agent:
    """A real one, spoken to by its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.facts: dict[str, Any] = {}
        self._input: IO[bytes] = process.stdin
        self._output = process.stdout.fileno()
        self._decoder = FrameDecoder()
        self._frames: list[Frame] = []
        assert os.read(self._output, len(MAGIC)) == MAGIC

    def ask(self, number: int, kind: str, **data: object) -> None:
        self._input.write(Frame(kind, {"id": number, **data}).pack())
        self._input.flush()

    def answer(self, kind: str) -> Frame:
        """Return the next frame of a kind."""
        while True:
            for frame in self._frames:
                if frame.kind == kind:
                    self._frames.remove(frame)
                    return frame
            chunk = os.read(self._output, 1 << 16)
            assert chunk, f"no {kind}"
            self._frames += self._decoder.feed(chunk)

    def leave(self) -> None:
        self._input.close()


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Agent]:
    """It has reported its facts, with those of an environment to make, and ends by itself."""
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", AGENT]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as process:
        try:
            agent = Agent(process)
            request = FactsRequest("n1", workdir=str(tmp_path), skip_launch_facts=True)
            agent.ask(1, "facts", request=encode(replace(request, prepare=Prepare(("true",)))))
            agent.facts = agent.answer("facts").data["facts"]
            yield agent
            agent.leave()
            assert process.wait(20 * PATIENCE) == 0
        finally:
            process.kill()


@pytest.mark.promise(11)
def test_a_disk_that_hangs_holds_up_no_ping_and_keeps_no_agent_alive(
    agent: Agent, tmp_path: Path
) -> None:
    """Of another request, the answer comes as well."""
    folder = tmp_path / "runs/r1/n1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "order.json")
    agent.ask(2, "run", run_id="r1", node="n1")
    waited_s = 0.0
    while waited_s < 0.3:
        agent.ask(3, "ping")
        waited_s = agent.answer("pong").data["disk_wait_s"]
    agent.ask(4, "mark_relaunch_pending", run_id="r1", node="n1")
    assert agent.answer("relaunch_pending").data["id"] == 4


@pytest.mark.promise(2)
def test_a_command_that_has_not_begun_is_interrupted_too(agent: Agent, tmp_path: Path) -> None:
    """Another process makes the environment: it is waited for no longer."""
    folder = agent.facts["environment"]
    (tmp_path / "prepared").mkdir(mode=0o700)
    with Path(f"{folder}.log").open("ab") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        agent.ask(2, "prepare", limit_s=600.0, files=[], secrets={})
        agent.answer("in_progress")
        agent.ask(3, "kill")
        assert agent.answer("refused").data == {"id": 2, "reason": "interrupted"}


@pytest.mark.promise(12)
def test_a_run_is_ended_by_the_order_that_its_host_has(agent: Agent, tmp_path: Path) -> None:
    """The controller may have had another from a second host: no program in that is started."""
    order = Order("r1", "n1", 0, str(tmp_path), "/")
    folder = RunPaths(str(tmp_path), "r1", "n1")
    programs = dict.fromkeys(("shim", "rank_facts", "sitecustomize"), "")
    run_folder.create_run_folder(folder, order, programs, {})
    started = tmp_path / "started"
    engine = ("/bin/sh", "-c", f"touch {started}")
    agent.ask(2, "follow", order=encode(replace(order, container=Container("docker", engine))))
    agent.answer("following")
    wait_until(lambda: run_folder.has_ended(folder, order), "its end")
    assert not started.exists()


def test_a_program_that_cannot_be_started_is_refused() -> None:
    """It has left nothing; that is not said of a command whose supervising process was killed."""
    command = CommandRun(["/none"], dict(os.environ), 30)
    report = command.pass_on(Credit(), lambda *_, **__: None)
    assert report == {"refused": "/none: No such file or directory"}


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.mark.promise(4)
def test_output_waits_for_credit_and_a_kill_does_not() -> None:
    """A command whose output nobody shows waits; it can be ended all the same."""
    before = descriptors()
    credit = Credit()
    sizes: list[int] = []

    def send(kind: str, data: bytes, *, file: str, offset: int) -> None:
        assert (kind, file, offset) == ("data", "out", 0)
        sizes.append(len(data))

    command = CommandRun(["yes"], dict(os.environ), 60)
    reports: list[dict[str, Any]] = []
    passing = threading.Thread(target=lambda: reports.append(command.pass_on(credit, send)))
    passing.start()
    wait_until(lambda: sum(sizes) == INITIAL_CREDIT, "the credit to be used")
    credit.grant(1000)
    wait_until(lambda: sum(sizes) == INITIAL_CREDIT + 1000, "the rest of the credit")
    command.kill()
    passing.join(60)
    assert reports[0]["code"] == -9
    assert descriptors() <= before  # another test's thread may end meanwhile
