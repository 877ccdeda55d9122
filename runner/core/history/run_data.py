"""Run data: the record of a run on the controller's machine, read into plain data.

Times are in seconds since 1970, by the clocks of those who wrote them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, NamedTuple, Optional, Tuple

from runner.core.model.plan import Plan
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import Event

MAX_POINTS = 2000
"""Points of a series, at most: longer ones are reduced, so that peaks stay."""


class LoadFigure(NamedTuple):
    """A figure of samples: how it is called, and where it is in a sample."""

    title: str
    name: str
    is_gpu: bool
    unit: str


LOAD_FIGURES = (
    LoadFigure("GPU utilization", "utilization", True, "%"),
    LoadFigure("GPU memory", "memory_used", True, "B"),
    LoadFigure("GPU power", "power_w", True, "W"),
    LoadFigure("GPU temperature", "temperature_c", True, "°C"),
    LoadFigure("CPU", "cpu", False, "%"),
    LoadFigure("memory", "memory_used", False, "B"),
)
"""What pages and exports show of samples."""


@dataclass(frozen=True)
class Series:
    """A figure by steps or by times; a value is None where it is no number."""

    at: Tuple[float, ...] = ()
    values: Tuple[Optional[float], ...] = ()


@dataclass(frozen=True)
class Metric:
    """A figure that ranks print ("loss", "rate", or a name of theirs): of the lowest that does."""

    name: str
    unit: str = ""
    rank: int = 0
    last: Optional[float] = None  # at its last step
    least: Optional[float] = None
    most: Optional[float] = None
    by_attempt: Mapping[int, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class GpuLoad:
    """The samples of one GPU; series by the name of the field of `GpuSample`."""

    index: int
    series: Mapping[str, Series] = field(default_factory=dict)


@dataclass(frozen=True)
class NodeLoad:
    """The samples of one node in all attempts; series by the name of the field of `Sample`."""

    node: str
    series: Mapping[str, Series] = field(default_factory=dict)
    gpus: Tuple[GpuLoad, ...] = ()


@dataclass(frozen=True)
class LogTail:
    """The end of a log: `text` has the last lines, `size` is in bytes."""

    node: str
    attempt: int
    source: str  # "rank_3", or "program"
    stream: str  # "out" or "err"
    text: str
    size: int


@dataclass(frozen=True)
class RunData:
    """The record of one run, large on purpose: all that tables, exports and pages are made of.

    `problems` are what of it could not be read, one line each; nothing of these raises.
    """

    run_id: str
    folder: str  # its record on this machine
    cluster: str = ""
    task: str = ""
    launched_by: str = ""
    launched_at: Optional[float] = None
    ended_at: Optional[float] = None  # None while it is on, or if that is not known
    verdict: Optional[Verdict] = None  # None while it is on, or if that is not known
    diagnosis: Optional[Diagnosis] = None
    plans: Tuple[Plan, ...] = ()  # of its attempts on record, the last one at the end
    config: Mapping[str, Any] = field(default_factory=dict)  # nested, as composed
    events: Tuple[Event, ...] = ()  # by time
    metrics: Tuple[Metric, ...] = ()
    step: Optional[int] = None  # the last of the lowest rank
    steps: Optional[int] = None  # in all
    loads: Tuple[NodeLoad, ...] = ()
    logs: Tuple[LogTail, ...] = ()
    problems: Tuple[str, ...] = ()

    @property
    def gpu_count(self) -> int:
        """The number of GPUs that the last attempt uses."""
        return sum(len(node.gpus) for node in self.plans[-1].nodes) if self.plans else 0

    @property
    def seconds(self) -> Optional[float]:
        """How long it took in all; None while it is on."""
        if self.launched_at is None or self.ended_at is None:
            return None
        return max(0.0, self.ended_at - self.launched_at)
