"""Stacks request: have a run's supervisor dump the Python stacks of its ranks."""

from __future__ import annotations

import json
import time

from runner.core.wire.codec import Frame
from runner.core.wire.paths import DUMP_END, STACKS_LOG
from runner.host.agent.follow import give
from runner.host.agent.server import RequestHandler
from runner.host.process import procfs
from runner.host.process.jobs import pause
from runner.host.ranks import stacks
from runner.host.storage.run_folder import has_ended, read_order
from runner.host.storage.run_owner import RunSocket

POLL_S = 0.2
MARGIN_S = 5.0


class Handler(RequestHandler):
    """Answers with what a supervisor adds to its log: it knows then what its dump disturbs."""

    def on_dump_stacks(self, frame: Frame) -> None:
        """Have the stacks dumped; their text is the answer, empty for a run that has ended."""
        folder = self.context.run_folder(frame)
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
        text = ""
        if not has_ended(folder, order):
            log = folder.stream_log(order.attempt, STACKS_LOG, "out")
            before = len(procfs.read_text(log))
            command = {"command": "dump_stacks", "reason": str(frame.data["reason"])}
            if not give(RunSocket(folder), json.dumps(command).encode() + b"\n"):
                raise ValueError("its supervisor does not answer")
            deadline = time.monotonic() + stacks.DUMP_TIMEOUT_S + MARGIN_S
            while not text.endswith(DUMP_END) and not has_ended(folder, order):
                if time.monotonic() >= deadline:
                    raise ValueError("its supervisor dumped no stacks in time")
                pause(POLL_S)
                text = procfs.read_text(log)[before:]
        self.context.answer(frame, "stacks_dumped", text.encode())
