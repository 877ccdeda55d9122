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

SAMPLES, PAUSE_S, LIMIT_S = 4, 0.5, 8.0
BUSY, IDLE = 90, 5
"""Percent of the time since the sample before in which a kernel ran (nvmlUtilization_t)."""


class Doing(enum.Enum):
    """What the GPUs of a host do."""

    WORK = "work"
    WAIT = "wait"
    """All are busy all the time, and none touches its memory."""
    NOTHING = "nothing"
    """Some are idle, or the driver does not tell."""


Sample = Sequence[Optional[Tuple[int, int]]]
"""Of each GPU: percent of the time with a kernel on it, and with memory read or written; None of
one that does not answer."""


def start(visible: Optional[str]) -> Optional[bounded_child.Child]:
    """Begin to look, in a child since a driver may hang; None where there is none.

    `visible` is the CUDA_VISIBLE_DEVICES of the ranks; what others do on other GPUs is no matter.
    """
    if not any(map(os.path.exists, query.SIGNS)):
        return None
    words = visible.split(",") if visible is not None else None
    chosen = [int(word) for word in words if word.strip().isdigit()] if words else None
    if visible == "" or (words and not chosen):  # none, or by names that we do not know
        return None
    return bounded_child.Child(functools.partial(_look, chosen), LIMIT_S)


def result(child: bounded_child.Child) -> Doing:
    """Return what they did while such a child looked."""
    return judged(child.told().get("samples", []))


def judged(samples: Sequence[Sample]) -> Doing:
    """Return what these samples tell of all GPUs together."""
    columns = zip(*samples)  # noqa: B905 (strict came with 3.10; each has every GPU)
    of_each = [[each for each in gpu if each] for gpu in columns if all(gpu)]
    if any(busy > IDLE and used for gpu in of_each for busy, used in gpu):
        return Doing.WORK
    if of_each and all(busy >= BUSY for gpu in of_each for busy, _ in gpu):
        return Doing.WAIT
    return Doing.NOTHING


def _look(chosen: Optional[Sequence[int]]) -> None:
    procfs.close_all_but({bounded_child.REPORT})
    library = nvml.Nvml()
    samples: List[Sample] = []
    for _ in range(SAMPLES):
        time.sleep(PAUSE_S)
        wanted = range(library.count()) if chosen is None else chosen
        samples.append([_sample(library, index) for index in wanted])
    bounded_child.tell(samples=samples)


def _sample(library: nvml.Nvml, index: int) -> Optional[Tuple[int, int]]:
    try:
        return library.utilization(index)
    except nvml.NvmlError:  # a lost one, or the driver does not know
        return None
