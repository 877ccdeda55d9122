"""Cluster view: what is known at one moment of the hosts of a cluster, and of the runs on them."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.core.codec import encode
from runner.core.model.samples import GpuSample, Sample
from runner.ui.reports.run_table import Row

VIEW_VERSION = 1
IN_USE_SHARE = 0.01
"""Of its memory: the driver itself takes less, and a process on the GPU takes more."""


class HostState(enum.Enum):
    """Whether a host can be asked."""

    CONNECTING = "connecting"
    ANSWERING = "answering"
    SILENT = "not answering"
    UNRECORDED = "no sample on record yet"  # of a node that is not asked itself


@dataclass(frozen=True)
class NodeView:
    """What is known of one node."""

    name: str
    state: HostState = HostState.CONNECTING
    reason: str = ""  # why it does not answer
    samples: tuple[Sample, ...] = ()  # the last ones, the newest last
    runs: tuple[str, ...] = ()  # the active ones that it takes part in

    @property
    def sample(self) -> Sample | None:
        """The newest sample, if it is one of now."""
        return self.samples[-1] if self.samples and self.state is HostState.ANSWERING else None


@dataclass(frozen=True)
class ClusterView:
    """What is known of all nodes."""

    title: str  # the cluster's name, or the run's id
    wall: float  # in seconds since 1970
    nodes: tuple[NodeView, ...] = ()
    runs: tuple[Row, ...] = ()  # the active ones, the youngest first
    notes: tuple[str, ...] = ()  # what is not shown, and why

    @property
    def answering(self) -> list[NodeView]:
        """The nodes whose hosts answer."""
        return [node for node in self.nodes if node.sample]

    @property
    def silent(self) -> dict[str, str]:
        """Why the others do not, by node."""
        return {n.name: n.reason for n in self.nodes if n.state is HostState.SILENT}

    def as_data(self) -> Mapping[str, Any]:
        """Return all of it as data for a program."""
        return {
            "v": VIEW_VERSION,
            "time": round(self.wall, 3),
            "nodes": {node.name: encode(node.sample) for node in self.answering},
            "runs": [encode(row) for row in self.runs],
            "unreachable": self.silent,
            "notes": list(self.notes),
        }


def is_in_use(gpu: GpuSample) -> bool:
    """Return whether somebody uses a GPU: a process, its memory or its time says so."""
    return bool(gpu.users or gpu.utilization or memory_share(gpu) > IN_USE_SHARE)


def memory_share(gpu: GpuSample) -> float:
    """Return the share of a GPU's memory that is in use, 0 if it is not known."""
    return (gpu.memory_used or 0) / gpu.memory_total if gpu.memory_total else 0.0


def mean_utilization(gpus: tuple[GpuSample, ...]) -> float | None:
    """Return the mean utilisation of the GPUs that tell theirs, None if none does."""
    known = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    return sum(known) / len(known) if known else None
