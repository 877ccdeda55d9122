"""Sampler: the load of this host as the kernel counts it, and of its GPUs.

Of the host only files of /proc that the kernel answers from its own memory, so that nothing waits
for a disk. A cgroup makes no difference: it is the load of the whole machine.
"""

from __future__ import annotations

import os
import time
from typing import Dict, FrozenSet, Optional, Tuple

from runner.core.model.samples import Sample
from runner.host.gpu import query
from runner.host.process import procfs
from runner.host.sampling.gpus import GpuAnswer, GpuChild


class Sampler:
    """Takes samples; the CPU's is the mean since the sample before, or since it was made."""

    def __init__(self, node: str, attempt: int = 0, root: str = "/") -> None:
        self._node = node
        self._attempt = attempt
        self._root = root
        self._gpus = GpuChild() if query.has_driver() else None
        self._counted = self._count()

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helper, also one that hangs in the kernel."""
        return self._gpus.pids if self._gpus else frozenset()

    def poll(self) -> Optional[Sample]:
        """Return a sample of now; None while the driver is asked, who has `ANSWER_S`."""
        answer = self._gpus.poll() if self._gpus else GpuAnswer()
        if answer is None:
            return None
        busy_before, ticks_before = self._counted
        self._counted = self._count()
        busy, ticks = self._counted
        cpu = None
        if ticks > ticks_before:
            share = (busy - busy_before) / (ticks - ticks_before)
            cpu = round(100 * min(1.0, max(0.0, share)), 1)
        memory: Dict[str, int] = {}
        for line in self._read("proc/meminfo").splitlines()[:8]:
            name, size = line.split()[:2]
            memory[name] = int(size) << 10
        total = memory.get("MemTotal:", 0)
        free = memory.get("MemAvailable:")  # what programs can still get without swapping
        return Sample(
            self._node,
            self._attempt,
            round(time.time(), 3),
            cores=os.cpu_count(),
            cpu=cpu,
            memory_used=None if free is None else max(0, total - free),
            memory_total=total or None,
            gpus=answer.gpus,
            gpu_error=answer.error,
        )

    def close(self) -> None:
        """End the helper."""
        if self._gpus is not None:
            self._gpus.close()

    def _count(self) -> Tuple[int, int]:
        """Return the ticks of all cores since the boot: those at work, and all."""
        words = self._read("proc/stat").partition("\n")[0].split()
        ticks = [int(word) for word in words[1:9]]  # guests are part of user and nice
        idle = sum(ticks[3:5])  # waiting for a disk is no work
        return sum(ticks) - idle, sum(ticks)

    def _read(self, path: str) -> str:
        return procfs.read_text(os.path.join(self._root, path))
