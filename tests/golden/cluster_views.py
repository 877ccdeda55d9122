"""Views of clusters as `top` has them: hosts with eight GPUs each, of which some are unusual."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from runner.core.model.metrics import RankProgress
from runner.core.model.samples import GpuSample, GpuUser, Sample
from runner.ui.reports.run_table import Row
from runner.ui.top.cluster_view import ClusterView, HostState, NodeView

RUN_ID = "1124-0431-char_gpt-ab12"
WALL = 1.7e9  # 22:13:20 UTC
OURS = GpuUser(77, "ada", "/usr/bin/python3", int(40e9), RUN_ID)
BOB = GpuUser(99, "bob", "/opt/fit", int(30e9))


def gpu(
    index: int, utilization: int | None = 95, memory_gb: float = 40.0, **more: Any
) -> GpuSample:
    fields: dict[str, Any] = {
        "users": (OURS,),
        "power_w": 650.0,
        "power_limit_w": 700.0,
        "temperature_c": 61.0,
    }
    known = GpuSample(index, "NVIDIA H100", utilization, int(memory_gb * 1e9), int(80e9))
    return replace(known, **{**fields, **more})


def node(number: int, *unusual: GpuSample, runs: tuple[str, ...] = (RUN_ID,)) -> NodeView:
    """Return a node that answers, with these GPUs among others that work."""
    gpus = {index: gpu(index, 88 + index) for index in range(8)}
    gpus.update({each.index: each for each in unusual})
    name = f"gpu{number}"
    sample = Sample(
        *(name, 0, WALL, 128, 34.2, int(402e9), int(1082e9), 1.25e9, 34e6, 1.1e6, 0.0),
        gpus=tuple(gpus.values()),
    )
    return NodeView(name, HostState.ANSWERING, samples=(sample,) * 4, runs=runs)


def nodes() -> dict[str, NodeView]:
    """Return a node of every kind, by what is unusual about it."""
    free = [gpu(index, 0, 0.3, users=(), power_w=70.0, temperature_c=33.0) for index in range(8)]
    heat: dict[str, Any] = {"throttled": ("power", "thermal"), "temperature_c": 88.0}
    lost = GpuSample(5, error="GPU is lost")
    return {
        "usual": node(10),
        "silent": NodeView("gpu2", HostState.SILENT, "nothing was heard from it for 8 s"),
        "connecting": NodeView("gpu3"),
        "broken": node(4, lost),
        "hot": node(5, gpu(0, 60, **heat), gpu(1, 61, **heat)),
        "foreign": node(6, gpu(7, 99, 70.0, users=(OURS, BOB))),
        "unowned": node(7, gpu(2, 0, 31.0, users=())),
        "idle": node(8, gpu(3, 1)),
        "capped": node(9, gpu(0, throttled=("power",))),
        "free": node(11, *free, runs=()),
        "untold": node(12, gpu(6, None)),
    }


def runs(count: int = 12) -> tuple[Row, ...]:
    """Return two runs on so many nodes."""
    place: dict[str, Any] = {
        "nodes": tuple(f"gpu{n}" for n in range(1, count + 1)),
        "of": count,
        "gpus": 8 * count,
    }
    progress = RankProgress(0, 28_400, 110_000, 812.4, "samples", 5025.5)
    told = Row(
        *(RUN_ID, "char_gpt", "ada@laptop", "running", 4075.0),
        **place,
        attempt=0,
        ended=False,
        progress=progress,
    )
    other = replace(told, run_id="1124-0540-ddp-9x9x", task="ddp", age=3.0, state="starting")
    return told, replace(other, progress=None, nodes=("gpu11",), of=1, gpus=8)


def view() -> ClusterView:
    return ClusterView("lab", WALL, tuple(nodes().values()), runs())
