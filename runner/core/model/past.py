"""The attempts of a run that ended and were followed by another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class PastAttempt:
    """One attempt that failed.

    Attributes:
        attempt: Which start of the run it was, from 0.
        nodes: Where it ran, in rank order.
        reason: Why it ended.
        seconds: How long it took.
        unverified: Nodes that did not show that nothing of it is left there.
    """

    attempt: int
    nodes: Tuple[str, ...]
    reason: str
    seconds: float = 0.0
    unverified: Tuple[str, ...] = ()
