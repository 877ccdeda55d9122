"""GPU activity, for the hang watchdog: whether GPUs work, or only wait in a collective.

NCCL's kernels poll: a collective that other ranks never join keeps a GPU at 100 %, and often the
rank's threads, but accesses no memory. That is how NVML can tell it from work.
"""

from __future__ import annotations

import enum
import time
from typing import List, Optional, Sequence, Tuple

from runner.host.gpu import nvml, query
from runner.host.process import bounded_child, procfs

SAMPLES = 4
SAMPLE_INTERVAL_S = 0.5
TIMEOUT_S = 8.0
BUSY_PERCENT = 90
IDLE_PERCENT = 5
"""Percent of the time since the last sample in which a kernel ran (nvmlUtilization_t)."""


class GpuActivity(enum.Enum):
    """The activity of all GPUs of a host."""

    WORKING = "work"
    WAITING = "wait"  # all are busy all the time, and none accesses its memory
    IDLE_OR_UNKNOWN = "nothing"  # some are idle, or the driver does not say


# For each GPU that answers: percent of time with a kernel running, and with memory accessed.
Sample = Sequence[Optional[Tuple[int, int]]]


def start(visible: Optional[str]) -> Optional[bounded_child.BoundedChild]:
    """Start sampling in a child; return None where there is nothing to sample.

    `visible` is the CUDA_VISIBLE_DEVICES of the ranks; other GPUs do not count.
    """
    indices = None
    if visible is not None:
        indices = [int(word) for word in visible.split(",") if word.strip().isdigit()]
    if not query.has_driver() or indices == []:  # no GPU, or only names we cannot map
        return None
    return bounded_child.BoundedChild(lambda: _take_samples(indices), TIMEOUT_S)


def result(child: bounded_child.BoundedChild) -> GpuActivity:
    """Return the activity during the time of the samples."""
    return classify(child.report().get("samples", []))


def classify(samples: Sequence[Sample]) -> GpuActivity:
    """Return the activity of all GPUs together."""
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
        samples.append([*map(library.utilization, sampled)])
    bounded_child.report_facts(samples=samples)
