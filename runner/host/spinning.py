"""Whether the GPUs of this host do nothing but wait.

NCCL's kernels poll: a collective that others never come to keeps a GPU at 100 %, its ranks' threads
often too, and touches no memory. That is how NVML tells it from work.
"""

from __future__ import annotations

import os
import time
from typing import List, Optional, Sequence, Tuple

from runner.host import gpus, nvml, probes

SAMPLES, PAUSE_S, LIMIT_S = 4, 0.5, 8.0
BUSY, IDLE = 90, 5
"""Percent of the time since the sample before in which a kernel ran (nvmlUtilization_t)."""

Sample = Sequence[Tuple[int, int]]
"""Of each GPU: percent of the time with a kernel on it, and with memory read or written."""


def start() -> Optional[probes.Child]:
    """Begin to look, in a child since a driver may hang; None where there is none."""
    if not any(map(os.path.exists, gpus.SIGNS)):
        return None
    return probes.Child(_look, LIMIT_S)


def result(child: probes.Child) -> bool:
    """Return whether they only wait; False where the driver did not tell."""
    told: List[Sample] = child.told().get("samples", [])
    return len(told) == SAMPLES and only_wait(told)


def only_wait(samples: Sequence[Sample]) -> bool:
    """Whether some GPU is busy without touching memory all the time, and no other one works."""
    of_each = list(zip(*samples))  # noqa: B905 (strict came with 3.10; each has every GPU)
    waiting = [gpu for gpu in of_each if all(busy >= BUSY and not used for busy, used in gpu)]
    working = [gpu for gpu in of_each if any(busy > IDLE and used for busy, used in gpu)]
    return bool(waiting) and not working


def _look() -> None:
    library = nvml.Nvml()
    samples: List[Sample] = []
    for _ in range(SAMPLES):
        time.sleep(PAUSE_S)
        samples.append([_sample(library, index) for index in range(library.count())])
    probes.tell(samples=samples)


def _sample(library: nvml.Nvml, index: int) -> Tuple[int, int]:
    try:
        return library.utilization(index)
    except nvml.NvmlError:  # a lost one does nothing
        return 0, 0
