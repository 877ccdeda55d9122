"""Anomalies: what is unusual about a node, so that it is shown before the others, and said.

One sample is no proof that a GPU is idle: all recent ones must agree.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter

from runner.core.model.samples import GpuSample
from runner.core.text import format_ranges
from runner.ui.layout import group_names
from runner.ui.top.cells import clean, user_text
from runner.ui.top.cluster_view import HostState, NodeView, memory_share

HOT_C = 85.0
IDLE_PERCENT, WORKING_PERCENT = 10, 50
"""A GPU of a run below the one is idle while another one of that run is above the other."""

UNOWNED_SHARE = 0.05  # of a GPU's memory, in use without a process
MIN_SAMPLES = 3  # before a GPU is called idle


class Severity(enum.IntEnum):
    """How much an anomaly matters; the smaller, the more."""

    SILENT = 0
    BROKEN = 1
    THROTTLED = 2
    HOT = 3
    FOREIGN = 4
    IDLE = 5
    POWER_CAPPED = 6  # as any GPU is that works hard
    NONE = 9


@dataclass(frozen=True)
class Anomaly:
    """One thing that is unusual about some GPUs of a node, or about the node."""

    severity: Severity
    text: str
    gpus: tuple[int, ...] = ()


Rule = Callable[[GpuSample], str]


def _broken(gpu: GpuSample) -> str:
    return f"error: {clean(gpu.error)}" if gpu.error else ""


def _throttled(gpu: GpuSample) -> str:
    reasons = [clean(reason) for reason in gpu.throttled[:3] if reason != "power"]
    return f"throttled ({', '.join(reasons)})" if reasons else ""


def _hot(gpu: GpuSample) -> str:
    return "hot" if gpu.temperature_c is not None and gpu.temperature_c >= HOT_C else ""


def _foreign(gpu: GpuSample) -> str:
    foreign = [user for user in gpu.users if not user.run_id]
    if foreign:
        return f"used by {user_text(foreign[0].user, foreign[0].command)}, outside of runs"
    if not gpu.users and memory_share(gpu) > UNOWNED_SHARE:
        return "memory in use by no known process"
    return ""


def _power_capped(gpu: GpuSample) -> str:
    return "power-limited" if "power" in gpu.throttled else ""


RULES: tuple[tuple[Severity, Rule], ...] = (
    (Severity.BROKEN, _broken),
    (Severity.THROTTLED, _throttled),
    (Severity.HOT, _hot),
    (Severity.FOREIGN, _foreign),
    (Severity.POWER_CAPPED, _power_capped),
)


def find_anomalies(nodes: Sequence[NodeView]) -> dict[str, list[Anomaly]]:
    """Return what is unusual about each node, what matters most first."""
    runs = _working_runs(nodes)
    return {node.name: sorted(_of_node(node, runs), key=attrgetter("severity")) for node in nodes}


def describe_anomalies(anomalies: Sequence[Anomaly]) -> str:
    """Return them in words: "GPUs 0-1 throttled (thermal), hot; GPU 3 idle in RUN"."""
    groups = group_names((anomaly.text, anomaly.gpus) for anomaly in anomalies)
    prefixes = {gpus: f"{format_ranges(gpus, 'GPU')} " if gpus else "" for gpus in groups}
    return "; ".join(f"{prefixes[gpus]}{', '.join(texts)}" for gpus, texts in groups.items())


def severity_of(anomalies: Sequence[Anomaly]) -> Severity:
    """Return how much the first of them matters."""
    return anomalies[0].severity if anomalies else Severity.NONE


def _of_node(node: NodeView, working: Iterable[str]) -> Iterator[Anomaly]:
    if node.state is HostState.SILENT:
        yield Anomaly(Severity.SILENT, f"not answering: {clean(node.reason)}")
    sample = node.sample
    if sample is None:
        return
    if sample.gpu_error:
        yield Anomaly(Severity.BROKEN, clean(sample.gpu_error))
    for severity, rule in RULES:
        yield from _grouped(severity, ((gpu, rule(gpu)) for gpu in sample.gpus))
    yield from _grouped(Severity.IDLE, ((gpu, _idle(node, gpu, working)) for gpu in sample.gpus))


def _grouped(severity: Severity, found: Iterable[tuple[GpuSample, str]]) -> Iterator[Anomaly]:
    """Yield an anomaly for each text, with all GPUs that have it."""
    texts = group_names((str(gpu.index), text) for gpu, text in found if text)
    for text, indices in texts.items():
        yield Anomaly(severity, text, tuple(map(int, indices)))


def _idle(node: NodeView, gpu: GpuSample, working: Iterable[str]) -> str:
    recent = [_utilization(sample.gpus, gpu.index) for sample in node.samples]
    known = [percent for percent in recent if percent is not None]
    if len(known) < MIN_SAMPLES or max(known) >= IDLE_PERCENT:
        return ""
    runs = [user.run_id for user in gpu.users if user.run_id in working]
    return f"idle in {clean(runs[0])}" if runs else ""


def _utilization(gpus: Iterable[GpuSample], index: int) -> int | None:
    return next((gpu.utilization for gpu in gpus if gpu.index == index), None)


def _working_runs(nodes: Iterable[NodeView]) -> set[str]:
    """Return the runs of which some GPU works."""
    return {
        user.run_id
        for node in nodes
        for gpu in (node.sample.gpus if node.sample else ())
        if (gpu.utilization or 0) >= WORKING_PERCENT
        for user in gpu.users
        if user.run_id
    }
