"""What a link does for who wants to see where the ranks of a run are."""

from __future__ import annotations

from typing import List, Tuple

from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import folder_of
from runner.host.agent.handler import Duty, Handlers, Wire
from runner.host.process import bounded_child
from runner.host.ranks import stacks
from runner.host.storage.run_folder import read_order


class Dumping(Duty):
    """Requests for the Python stacks of a run's ranks."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._going: List[Tuple[Frame, bounded_child.Child]] = []

    def handlers(self) -> Handlers:
        """Return what answers each kind of request."""
        return {"dump": self._dump}

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What the children tell."""
        return tuple(pipe for _, child in self._going for pipe in child.pipes)

    def advance(self) -> None:
        """Answer with what they have told."""
        for frame, child in self._going:
            child.advance()
            if child.code is not None:
                told, problem = stacks.outcome(child)
                if problem:
                    self.wire.refuse(frame, problem)
                else:
                    self.wire.reply("dumped", {"id": frame.data["id"]}, told["text"].encode())
        self._going = [each for each in self._going if each[1].code is None]

    def close(self) -> None:
        """End them."""
        for _, child in self._going:
            child.kill()

    def _dump(self, frame: Frame) -> None:
        ask = frame.data
        folder = folder_of(self.wire.workdir, ask["run_id"], ask["node"])
        order = read_order(folder)
        if order is None:
            raise ValueError(f"there is no run {ask['run_id']} in {self.wire.workdir}")
        self._going.append((frame, stacks.child(folder, order, str(ask["why"]), show=True)))
