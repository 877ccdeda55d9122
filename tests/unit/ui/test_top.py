"""The view of `top`: its order, what it says of nodes, and nothing that acts on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from runner.core.model.metrics import RankProgress
from runner.core.model.samples import GpuSample, GpuUser, Sample
from runner.ui.reports.run_table import Row
from runner.ui.top import ClusterView, NodeView, render_view

RUN_ID = "1124-0431-gpt-ab12"
OURS = GpuUser(77, "ada", "/usr/bin/python3", int(40e9), RUN_ID)
BOB = GpuUser(99, "bob", "/opt/fit", int(30e9))
ESCAPE = "\x1b]0;owned\x07\x1b[2J"
RUN = Row(
    run_id=RUN_ID,
    task="char_gpt",
    owner="ada@l",
    state="running",
    age=4075.0,
    nodes=("gpu1",),
    of=1,
    gpus=8,
    attempt=0,
    ended=False,
    progress=RankProgress(0, 28_400, 110_000, 812.4, "samples", 5025.5),
)


def gpu(
    index: int, utilization: int | None = 95, memory_gb: float = 40.0, **more: Any
) -> GpuSample:
    known = GpuSample(index, "NVIDIA H100", utilization, int(memory_gb * 1e9), int(80e9))
    return replace(known, **{"users": (OURS,), "temperature_c": 61.0, **more})


def node(number: int, *unusual: GpuSample) -> NodeView:
    """Return a node that answers, with these GPUs among others that work."""
    gpus = {index: gpu(index, 88 + index) for index in range(8)}
    gpus.update({each.index: each for each in unusual})
    sample = Sample(f"gpu{number}", 0, 1.7e9, 128, 34.2, gpus=tuple(gpus.values()))
    return NodeView(f"gpu{number}", sample, runs=(RUN_ID,))


NODES = (
    node(10),
    NodeView("gpu2", silence="nothing was heard from it for 8 s", hint="ssh -v gpu2"),
    node(4, GpuSample(5, error="GPU is lost")),
    node(5, *(gpu(i, 60, throttled=("power", "thermal"), temperature_c=88.0) for i in range(2))),
    node(6, gpu(7, 99, 70.0, users=(OURS, BOB))),
    node(7, gpu(2, 0, 31.0, users=())),
    node(8),
    node(9, gpu(6, None)),
)


def lines(view: ClusterView, width: int, most: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render_view(view, width, most))
    return captured.get().splitlines()


def test_the_unusual_come_first_and_say_why() -> None:
    """In the order of how much it matters; numbers in names count as numbers."""
    header, titles, *shown = lines(ClusterView("lab", NODES, (RUN,)), 120)
    assert header.startswith("lab  7 of 8 nodes answer  ")
    assert titles.split() == ["NODE", "GPUS", "USE", "GPU", "MEM", "TEMP", "CPU", "RUN"]
    assert shown[:2] == [
        "gpu2   not answering: nothing was heard from it for 8 s",
        "    ssh -v gpu2",
    ]
    rows = shown[2:9]
    assert [row.split()[0] for row in rows] == [f"gpu{n}" for n in (4, 5, 6, 7, 8, 9, 10)]
    assert shown[9:] == [
        "gpu4: GPU 5 error: GPU is lost",
        "gpu5: GPUs 0-1 hot (88 °C), throttled (thermal)",
        "gpu6: GPU 7 used by bob:fit, outside of runs",
        "gpu7: GPU 2 memory in use by no known process",
        "",
        f"{'RUN':18}  STATE    STEP          DONE      LEFT  RATE             AGE       NODES  BY",
        f"{RUN_ID}  running  28400/110000   25%  1 h 23 m  812.4 samples/s  1 h 07 m  gpu1   ada@l",
    ]


def test_a_process_of_which_nothing_is_known_is_called_a_process() -> None:
    """It has just ended, or lives in a container."""
    unknown = GpuUser(99, "", "", int(30e9))
    view = ClusterView("lab", (node(6, gpu(7, 99, 70.0, users=(unknown,))),), (RUN,))
    assert any("GPU 7 used by a process, outside of runs" in line for line in lines(view, 120))


@pytest.mark.parametrize(
    ("width", "titles"),
    [
        (80, "NODE GPUS USE GPU MEM TEMP CPU RUN"),
        (60, "NODE GPUS USE GPU MEM RUN"),
        (50, "NODE GPUS USE RUN"),
        (36, "NODE GPUS USE RUN"),
    ],
)
def test_a_name_and_the_use_of_gpus_are_never_shortened(width: int, titles: str) -> None:
    """Other columns are left out, and at last the run is cut; further runs are counted."""
    several = (replace(node(1), runs=(RUN_ID, "second", "third")), node(10))
    _, header, first, second, *_ = lines(ClusterView("lab", several, (RUN,)), width)
    assert header.split() == titles.split()
    assert first.startswith("gpu1   ████████  92%  ")
    assert second.startswith("gpu10  ████████  92%  ")
    assert first.endswith(f"{RUN_ID} +2" if width > 36 else "…")


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_window(width: int) -> None:
    """Also with wide letters; nodes for which there is no room are counted."""
    wide = GpuUser(1, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 40, "python", 0)
    view = ClusterView("lab", (*NODES, node(1, gpu(0, users=(wide,)))), (RUN,))
    shown = lines(view, width, most=14)
    assert max(map(cell_len, shown)) <= width
    assert len(shown) == 14
    assert [line.split()[0] for line in shown[2:6]] == ["gpu2", "gpu4", "gpu5", "gpu1"]
    assert shown[6] == "and 5 more nodes"
    assert shown[-1].startswith(RUN_ID)


def test_a_cluster_without_gpus_has_no_columns_of_them() -> None:
    bare = NodeView("cpu1", Sample("cpu1", 0, 1.7e9, 2, 50.0))
    assert lines(ClusterView("lab", (bare,)), 80)[1:] == ["NODE  CPU", "cpu1  50%"]


@pytest.mark.promise(12)
def test_nothing_from_a_host_acts_on_the_terminal() -> None:
    bad = GpuUser(1, ESCAPE, ESCAPE * 1000, 0, "")
    sick = node(1, gpu(0, users=(bad,)), GpuSample(1, error=ESCAPE * 1000))
    silent = NodeView(ESCAPE, silence=ESCAPE, hint=ESCAPE, runs=(ESCAPE,))
    row = replace(RUN, run_id=ESCAPE, state=ESCAPE)
    view = ClusterView(ESCAPE, (sick, silent), (row,))
    assert all(line.isprintable() for line in lines(view, 10_000))
