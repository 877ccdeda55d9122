"""Results: how ranks and nodes ended, as the events of a run report it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

from runner.core.protocol.events import Event


@dataclass(frozen=True)
class TimedEvent:
    """An event, and when it happened on the controller's monotonic clock (seconds)."""

    at: float
    event: Event


@dataclass(frozen=True)
class RankResult:
    """How one rank ended.

    Attributes:
        node: Its node.
        code: Its exit code; like `signal`, None if its end was not seen.
        signal: The signal that ended it.
        max_rss: Its peak memory in bytes.
        started: Whether it was seen to start.
        traceback: What torch's `@record` wrote about its end, "" for nothing.
        exception: The exception that its log ends with, "" for none.
    """

    node: str
    code: Optional[int] = None
    signal: Optional[int] = None
    max_rss: int = 0
    started: bool = False
    traceback: str = ""
    exception: str = ""


@dataclass(frozen=True)
class NodeResult:
    """How the launcher process of one node ended, and what was left of the run there.

    Attributes:
        code: The exit code of the launcher process (torchrun).
        signal: The signal that ended it.
        end_verified: Whether the host proved, by a look at its processes, that nothing is left.
        killed: How many processes had to be killed.
        survivors: Processes that could not be killed.
        end_reason: Why the node ended its part, if it gave a reason.
    """

    code: Optional[int] = None
    signal: Optional[int] = None
    end_verified: bool = False
    killed: int = 0
    survivors: Tuple[int, ...] = ()
    end_reason: str = ""


@dataclass(frozen=True)
class Failure:
    """One thing that went wrong; `rank` is None if it was not a rank that failed."""

    node: str
    rank: Optional[int]
    reason: str
