"""Stacks request: dump the Python stacks of a run's ranks."""

from __future__ import annotations

import functools
import json
import time
from typing import Dict, Generator

from runner.core.model.plan import Order
from runner.core.outcome.stacks import DUMP_END
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import STACKS_LOG, RunPaths
from runner.host.agent.request_queue import RequestSteps
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.process import procfs
from runner.host.process.event_loop import pause
from runner.host.ranks import stacks
from runner.host.storage.run_folder import has_ended, read_order
from runner.host.storage.run_list import is_in_job
from runner.host.supervisor.command_file import append_command

POLL_S, JOB_MARGIN_S = 0.2, 5.0


class Handler(RequestHandler):
    """Dumps stacks in children, several at a time."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._requests: Dict[int, Frame] = {}

    def on_dump_stacks(self, frame: Frame) -> RequestSteps:
        """Start a dump; its text is the answer."""
        folder = self.context.run_folder(frame)
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
        if is_in_job(folder):
            text = yield from _dump_in_job(folder, order, str(frame.data["reason"]))
            self.context.answer(frame, "stacks_dumped", text.encode())
        else:
            yield functools.partial(self._start, frame, folder, order)

    def _start(self, frame: Frame, folder: RunPaths, order: Order) -> None:
        child = stacks.start_dump(folder, order, str(frame.data["reason"]), include_text=True)
        self.children[frame.data["id"]], self._requests[frame.data["id"]] = child, frame

    def advance(self) -> None:
        """Answer with the dumps that are complete."""
        for request_id, frame in [*self._requests.items()]:
            child = self.children[request_id]
            child.advance()
            if child.code is not None:
                del self.children[request_id], self._requests[request_id]
                result, problem = stacks.result(child)
                if problem:
                    self.context.refuse(frame, problem)
                else:
                    self.context.answer(frame, "stacks_dumped", result["text"].encode())


def _dump_in_job(folder: RunPaths, order: Order, reason: str) -> Generator[None, None, str]:
    """Have the supervisor of a job's node dump the stacks to its log; return what that adds."""
    from runner.host.slurm.job_folder import command_file  # noqa: PLC0415 (most have no Slurm)

    if has_ended(folder, order):
        return ""
    log = folder.stream_log(order.attempt, STACKS_LOG, "out")
    before = len(procfs.read_text(log))
    message = {"command": "dump_stacks", "reason": reason}
    append_command(command_file(order), json.dumps(message).encode() + b"\n")
    deadline = time.monotonic() + stacks.DUMP_TIMEOUT_S + JOB_MARGIN_S
    while time.monotonic() < deadline:
        yield from pause(POLL_S)
        text = procfs.read_text(log)[before:]
        if text.endswith(DUMP_END):
            return text
    raise ValueError("its supervisor dumped no stacks in time")
