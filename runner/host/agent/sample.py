"""Sample request: the load of this host, and of its GPUs, at this moment."""

from __future__ import annotations

from typing import List, Optional

from runner.core.wire.codec import Frame, encode
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.sampling import Sampler


class Handler(RequestHandler):
    """Takes samples; the CPU's is the mean since the sample before of this conversation."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._sampler: Optional[Sampler] = None
        self._asked: List[Frame] = []

    @property
    def busy(self) -> bool:
        """Whether a driver is being asked."""
        return bool(self._asked)

    def on_sample(self, frame: Frame) -> None:
        """Begin a sample; it is the answer once the drivers have said theirs."""
        self._sampler = self._sampler or Sampler(frame.data["node"])
        self._asked.append(frame)
        self.advance()

    def advance(self) -> None:
        """Answer with the sample once it is complete."""
        sample = self._sampler.poll() if self._sampler and self._asked else None
        while sample is not None and self._asked:
            self.context.answer(self._asked.pop(), "sampled", sample=encode(sample))

    def close(self) -> None:
        """End the sampler, and its child."""
        if self._sampler is not None:
            self._sampler.close()
