"""An agent whose disk hangs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from runner.core.wire.codec import MAGIC, Frame, FrameDecoder, encode
from runner.core.wire.facts import FactsRequest
from tests.lab.waiting import PATIENCE

AGENT = """
from runner.host.agent import server
server.LEAVE_TIMEOUT_S = 0.2
server.main(server.HostCode({}))
"""


class Agent:
    """A real one, spoken to by its pipes."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
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


@pytest.mark.promise(11)
def test_a_disk_that_hangs_holds_up_no_ping_and_keeps_no_agent_alive(tmp_path: Path) -> None:
    """Of another request, the answer comes as well."""
    folder = tmp_path / "runs/r1/n1"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "order.json")
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", AGENT]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe) as process:
        try:
            agent = Agent(process)
            request = FactsRequest("n1", workdir=str(tmp_path), skip_launch_facts=True)
            agent.ask(1, "facts", request=encode(request))
            agent.answer("facts")
            agent.ask(2, "run", run_id="r1", node="n1")
            waited_s = 0.0
            while waited_s < 0.3:
                agent.ask(3, "ping")
                waited_s = agent.answer("pong").data["disk_wait_s"]
            agent.ask(4, "mark_relaunch_pending", run_id="r1", node="n1")
            assert agent.answer("relaunch_pending").data["id"] == 4
            agent.leave()
            assert process.wait(20 * PATIENCE) == 0
        finally:
            process.kill()
