"""Stacks request: dump the Python stacks of a run's ranks."""

from __future__ import annotations

from typing import List, Tuple

from runner.core.protocol.frames import Frame
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.process.bounded_child import BoundedChild
from runner.host.ranks import stacks
from runner.host.storage.run_folder import read_order


class Handler(RequestHandler):
    """Dumps stacks in children, several at a time."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._running: List[Tuple[Frame, BoundedChild]] = []

    def on_dump_stacks(self, frame: Frame) -> None:
        """Start a dump; its text is the answer."""
        folder = self.context.run_folder(frame)
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {frame.data['run_id']} in {self.context.workdir}")
        child = stacks.start_dump(folder, order, str(frame.data["reason"]), include_text=True)
        self._running.append((frame, child))

    @property
    def pipes(self) -> Tuple[int, ...]:
        """The pipes of the children."""
        return tuple(pipe for _, child in self._running for pipe in child.pipes)

    def advance(self) -> None:
        """Answer with the dumps that are complete."""
        for frame, child in self._running:
            child.advance()
            if child.code is None:
                continue
            result, problem = stacks.result(child)
            if problem:
                self.context.refuse(frame, problem)
            else:
                self.context.answer(frame, "stacks_dumped", result["text"].encode())
        self._running = [entry for entry in self._running if entry[1].code is None]

    def close(self) -> None:
        """End the children."""
        for _, child in self._running:
            child.kill()
