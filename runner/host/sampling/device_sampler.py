"""Device sampler: asks the drivers in a child process, and replaces one that hangs.

Nothing here waits for a driver. A child that hung or crashed is replaced, each time after a longer
pause.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import FrozenSet, Optional, Tuple

from runner.core.codec import decode
from runner.core.model.samples import GpuSample
from runner.host.process.worker_process import WorkerProcess
from runner.host.sampling.device_reader import DeviceReader

ANSWER_S = 3.0  # how long a driver may take
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""How long after its child hung or crashed the driver is asked again, and at most."""


@dataclass(frozen=True)
class DeviceAnswer:
    """What the child says."""

    gpus: Tuple[GpuSample, ...] = ()
    error: str = ""
    rdma: Optional[Tuple[int, ...]] = None  # bytes received and sent since the boot


class DeviceSampler:
    """The child that is asked, and its successors; at most one is there at a time."""

    def __init__(self) -> None:
        self._pause_s, self._next_at = FIRST_PAUSE_S, 0.0
        self._child: Optional[WorkerProcess] = None
        self._answer: Optional[DeviceAnswer] = None  # to the last question
        self._problem = ""

    @property
    def running_pids(self) -> FrozenSet[int]:
        """The child, as long as it is there."""
        return self._child.running_pids if self._child else frozenset()

    def ask(self) -> None:
        """Ask the child, if there is none a new one; or note why nobody can be asked."""
        if self._answer is not None or (self._child and self._child.is_asked):
            return
        if self._child is None or self._child.problem:
            if time.monotonic() < self._next_at or self.running_pids:
                self._answer = DeviceAnswer(error=self._problem)
                return
            self._child = WorkerProcess(DeviceReader().answer, ANSWER_S)
        self._child.ask()
        self._note_problem()

    @property
    def is_ready(self) -> bool:
        """Whether the answer is there, or why there is none."""
        if self._answer is None and self._child is not None:
            line = self._child.poll()
            if line is not None:
                self._answer = _parse(line)
                self._pause_s = FIRST_PAUSE_S
            self._note_problem()
        return self._answer is not None

    def take(self) -> DeviceAnswer:
        """Return the answer, once."""
        answer, self._answer = self._answer, None
        return answer or DeviceAnswer(error=self._problem)

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.close()

    def _note_problem(self) -> None:
        if self._child is not None and self._child.problem and self._answer is None:
            who = "the driver" if self._child.is_late else "the process that asks the driver"
            self._problem = f"{who} {self._child.problem}"
            self._answer = DeviceAnswer(error=self._problem)
            self._next_at = time.monotonic() + self._pause_s
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)


def _parse(line: bytes) -> DeviceAnswer:
    try:
        return decode(DeviceAnswer, json.loads(line))
    except ValueError as error:  # a driver that reports nonsense
        return DeviceAnswer(error=f"NVML: {error}"[:200])
