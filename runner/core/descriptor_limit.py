"""Limit of open descriptors (RLIMIT_NOFILE): raised for this process, restored for what it starts.

A supervisor has one per host of the run, a controller up to three; the usual soft limit is 1024.
Programs that use select(2) need a soft limit no higher than that, so they get the one we had.
"""

from __future__ import annotations

import contextlib
import resource
from typing import List, Tuple

_inherited: List[Tuple[int, int]] = []


def raise_to_hard() -> None:
    """Let this process open as many files as it may."""
    _inherited[:] = [inherited()]
    with contextlib.suppress(ValueError, OSError):  # unlimited, but for the kernel
        hard = inherited()[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def inherited() -> Tuple[int, int]:
    """Return the soft and the hard limit that new programs are to have."""
    return _inherited[0] if _inherited else resource.getrlimit(resource.RLIMIT_NOFILE)
