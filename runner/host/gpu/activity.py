"""Whether the GPUs of this host work, or only wait.

NCCL's kernels poll: a collective that others never come to keeps a GPU at 100 %, its ranks' threads
often too, and touches no memory. That is how NVML tells it from work.
"""

from __future__ import annotations

import enum
import functools
import os
import time
from typing import List, Optional, Sequence, Tuple

from runner.host.gpu import nvml, query
from runner.host.process import bounded_child, procfs

SAMPLES, SAMPLE_INTERVAL_S, TIMEOUT_S = 4, 0.5, 8.0
BUSY_PERCENT, IDLE_PERCENT = 90, 5
"""Percent of the time since the sample before in which a kernel ran (nvmlUtilization_t)."""


class GpuActivity(enum.Enum):
    """What the GPUs of a host do."""

    WORKING = "work"
    WAITING = "wait"
    """All are busy all the time, and none touches its memory."""
    IDLE_OR_UNKNOWN = "nothing"
    """Some are idle, or the driver does not tell."""


Sample = Sequence[Optional[Tuple[int, int]]]
"""Of each GPU: percent of the time with a kernel on it, and with memory read or written; None of
one that does not answer."""


def start(visible: Optional[str]) -> Optional[bounded_child.BoundedChild]:
    """Begin to look, in a child since a driver may hang; None where there is none.

    `visible` is the CUDA_VISIBLE_DEVICES of the ranks; what others do on other GPUs is no matter.
    """
    if not any(map(os.path.exists, query.DRIVER_PATHS)):
        return None
    words = visible.split(",") if visible is not None else None
    indices = [int(word) for word in words if word.strip().isdigit()] if words else None
    if visible == "" or (words and not indices):  # none, or by names that we do not know
        return None
    return bounded_child.BoundedChild(functools.partial(_take_samples, indices), TIMEOUT_S)


def result(child: bounded_child.BoundedChild) -> GpuActivity:
    """Return what they did while such a child looked."""
    return classify(child.report().get("samples", []))


def classify(samples: Sequence[Sample]) -> GpuActivity:
    """Return what these samples tell of all GPUs together."""
    columns = zip(*samples)  # noqa: B905 (strict came with 3.10; each has every GPU)
    per_gpu = [[sample for sample in gpu if sample] for gpu in columns if all(gpu)]
    if any(busy > IDLE_PERCENT and used for gpu in per_gpu for busy, used in gpu):
        return GpuActivity.WORKING
    if per_gpu and all(busy >= BUSY_PERCENT for gpu in per_gpu for busy, _ in gpu):
        return GpuActivity.WAITING
    return GpuActivity.IDLE_OR_UNKNOWN


def _take_samples(indices: Optional[Sequence[int]]) -> None:
    procfs.close_fds_except({bounded_child.REPORT_FD})
    library = nvml.Nvml()
    samples: List[Sample] = []
    for _ in range(SAMPLES):
        time.sleep(SAMPLE_INTERVAL_S)
        sampled = range(library.device_count()) if indices is None else indices
        samples.append([_sample_gpu(library, index) for index in sampled])
    bounded_child.report_facts(samples=samples)


def _sample_gpu(library: nvml.Nvml, index: int) -> Optional[Tuple[int, int]]:
    try:
        return library.utilization(index)
    except nvml.NvmlError:  # a lost one, or the driver does not know
        return None
