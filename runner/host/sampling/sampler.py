"""Sampler: takes samples of the load of this host, and of its devices.

Nothing here waits for a driver: a sample is begun, and taken once the drivers have answered or
their time is up.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any, Dict, FrozenSet, Optional, Tuple

from runner.core.model.samples import MAX_LINE, Sample
from runner.host.sampling.device_reader import has_devices
from runner.host.sampling.device_sampler import DeviceAnswer, DeviceSampler
from runner.host.sampling.load import LoadReader

_POLL_S = 0.01


class Sampler:
    """Samples of this host; `begin`, then `take` once `is_ready`, or `take` alone."""

    def __init__(self, node: str, attempt: int = 0) -> None:
        """Begin to count; the rates of the first sample are from now on."""
        self._node, self._attempt = node, attempt
        self._load = LoadReader()
        self._devices = DeviceSampler() if has_devices() else None
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
        """Return the sample that was begun, or one of now; drivers have `ANSWER_S`."""
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
