"""Stacks request: dump the Python stacks of a run's ranks."""

from __future__ import annotations

import functools
from typing import Dict

from runner.core.model.plan import Order
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.host.agent.job_queue import JobSteps
from runner.host.agent.run_lookup import find_run
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.ranks import stacks
from runner.host.storage.run_folder import read_order


class Handler(RequestHandler):
    """Dumps stacks in children, several at a time."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._requests: Dict[int, Frame] = {}

    def on_dump_stacks(self, frame: Frame) -> JobSteps:
        """Start a dump; its text is the answer."""
        folder = yield from find_run(self.context, frame)
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
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
