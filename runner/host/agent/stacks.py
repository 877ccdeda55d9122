"""What a link does for who wants to see where the ranks of a run are."""

from __future__ import annotations

from typing import List, Tuple

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import validated_paths
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.process import bounded_child
from runner.host.ranks import stacks
from runner.host.storage.run_folder import read_order


class Handler(RequestHandler):
    """Requests for the Python stacks of a run's ranks."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._running: List[Tuple[Frame, bounded_child.BoundedChild]] = []

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        return {"dump_stacks": self._dump_stacks}

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What the children tell."""
        return tuple(pipe for _, child in self._running for pipe in child.pipes)

    def advance(self) -> None:
        """Answer with what they have told."""
        for frame, child in self._running:
            child.advance()
            if child.code is not None:
                result, problem = stacks.result(child)
                if problem:
                    self.context.refuse(frame, problem)
                else:
                    self.context.reply(
                        "stacks_dumped", {"id": frame.data["id"]}, result["text"].encode()
                    )
        self._running = [entry for entry in self._running if entry[1].code is None]

    def close(self) -> None:
        """End them."""
        for _, child in self._running:
            child.kill()

    def _dump_stacks(self, frame: Frame) -> None:
        request = frame.data
        folder = validated_paths(self.context.workdir, request["run_id"], request["node"])
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {request['run_id']} in {self.context.workdir}")
        self._running.append(
            (frame, stacks.start_dump(folder, order, str(request["reason"]), include_text=True))
        )
