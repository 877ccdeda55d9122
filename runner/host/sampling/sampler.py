"""Sampler: takes samples of the load of this host, and asks its drivers in a child.

Nothing here waits for a driver: a sample is begun, and taken once the child has answered or its
time is up. A child that hung or crashed is replaced, each time after a longer pause.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Optional, Tuple

from runner.core.codec import decode
from runner.core.dataclass import dataclass
from runner.core.model.samples import MAX_LINE, GpuSample, Sample
from runner.host.process.asked_child import AskedChild
from runner.host.sampling import device_child
from runner.host.sampling.load import LoadReader

ANSWER_S = 3.0  # how long a driver may take
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
"""How long after its child hung or crashed the driver is asked again, and at most."""

_POLL_S = 0.01


@dataclass(frozen=True)
class DeviceAnswer:
    """What the child says."""

    gpus: Tuple[GpuSample, ...] = ()
    error: str = ""
    rdma: Optional[Tuple[int, ...]] = None  # bytes received and sent since the boot


class Sampler:
    """Samples of this host; `begin`, then `take` once `is_ready`, or `take` alone."""

    def __init__(self, node: str, attempt: int = 0) -> None:
        """Begin to count; the rates of the first sample are from now on."""
        self._node, self._attempt = node, attempt
        self._load = LoadReader()
        self._devices = DeviceSampler() if device_child.has_devices() else None
        self._rdma: Optional[Tuple[float, Tuple[int, ...]]] = None

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helper, also one that hangs in the kernel."""
        return self._devices.running_pids if self._devices else frozenset()

    def begin(self) -> None:
        """Ask the drivers for the next sample, unless they were."""
        if self._devices is not None:
            self._devices.ask()

    @property
    def is_ready(self) -> bool:
        """Whether `take` returns at once."""
        return self._devices is None or self._devices.is_ready

    def take(self) -> Sample:
        """Return the sample that was begun, or one of now; it waits up to `ANSWER_S`."""
        self.begin()
        while not self.is_ready:
            time.sleep(_POLL_S)
        answer = self._devices.take() if self._devices else DeviceAnswer()
        received, sent = self._rdma_rates(answer.rdma)
        load = self._load.read()
        fields: Dict[str, Any] = load._asdict()
        if received is not None and sent is not None:
            fields["net_received"] = (load.net_received or 0.0) + received
            fields["net_sent"] = (load.net_sent or 0.0) + sent
        fields.update(gpus=answer.gpus, gpu_error=answer.error)
        return Sample(self._node, self._attempt, round(time.time(), 3), **fields)

    def close(self) -> None:
        """End the child."""
        if self._devices is not None:
            self._devices.close()

    def _rdma_rates(
        self, count: Optional[Tuple[int, ...]]
    ) -> Tuple[Optional[float], Optional[float]]:
        if count is None or len(count) != 2:
            return None, None
        last, now = self._rdma, time.monotonic()
        self._rdma = (now, count)
        if last is None or now <= last[0]:
            return None, None
        rates = [max(0, b - a) / (now - last[0]) for a, b in zip(last[1], count)]  # noqa: B905
        return round(rates[0], 1), round(rates[1], 1)


class DeviceSampler:
    """The child that is asked, and its successors; at most one is there at a time."""

    def __init__(self) -> None:
        self._pause_s, self._next_at = FIRST_PAUSE_S, 0.0
        self._child: Optional[AskedChild] = None
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
            self._child = AskedChild(device_child.DeviceReader().answer, ANSWER_S)
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


def to_line(sample: Sample) -> bytes:
    """Return a sample as a line that is no longer than allowed: else without users, or GPUs."""
    line = sample.to_line().encode()
    for shorter in (
        replace(sample, gpus=tuple(replace(gpu, users=()) for gpu in sample.gpus)),
        replace(sample, gpus=(), gpu_error="too many GPUs for one line"),
    ):
        if len(line) <= MAX_LINE:
            break
        line = shorter.to_line().encode()
    return line


def _parse(line: bytes) -> DeviceAnswer:
    try:
        return decode(DeviceAnswer, json.loads(line))
    except ValueError as error:  # a driver that reports nonsense
        return DeviceAnswer(error=f"NVML: {error}"[:200])
