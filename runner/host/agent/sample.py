"""Sample request: the load of this host, and of its GPUs, at this moment."""

from __future__ import annotations

import threading
from typing import Optional

from runner.core.wire.codec import Frame, encode
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.process.jobs import pause
from runner.host.sampling import Sampler

POLL_S = 0.02


class Handler(RequestHandler):
    """Takes samples; the CPU's is the mean since the sample before of this conversation."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._sampler: Optional[Sampler] = None  # its child ends with us

    def on_sample(self, frame: Frame) -> None:
        """Answer once the drivers have said theirs."""
        with self._lock:
            self._sampler = self._sampler or Sampler(frame.data["node"])
            sample = self._sampler.poll()
            while sample is None:
                pause(POLL_S)
                sample = self._sampler.poll()
        self.context.answer(frame, "sampled", sample=encode(sample))
