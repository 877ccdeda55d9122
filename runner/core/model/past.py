"""The attempts of a run that ended and were followed by another."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple


@dataclass(frozen=True)
class Past:
    """One attempt that failed.

    Attributes:
        attempt: Which start of the run it was, from 0.
        nodes: Where it ran, in rank order.
        why: Why it ended.
        seconds: How long it took.
        unproven: Nodes that did not show that nothing of it is left there.
    """

    attempt: int
    nodes: Tuple[str, ...]
    why: str
    seconds: float = 0.0
    unproven: Tuple[str, ...] = ()
