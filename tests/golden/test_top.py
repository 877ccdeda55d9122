"""The views of `ps` and `top`: what has room, and nothing that acts on a terminal."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from runner.core.wire.facts import GpuProcess
from runner.core.wire.run_info import GpuSample, Sample
from runner.ui.reports.run_table import Row, render
from runner.ui.top import ClusterView, NodeView, render_view
from tests.golden.conftest import Check

RUN_ID = "1124-0431-gpt-ab12"
OURS = GpuProcess(77, int(40e9), "ada", "/usr/bin/python3", RUN_ID)
BOB = GpuProcess(99, int(30e9), "bob", "/opt/fit")
ESCAPE = "\x1b]0;owned\x07\x1b[2J"


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


WIDE = GpuProcess(1, 0, "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 40, "python")
UNKNOWN = GpuProcess(99, int(30e9))
SEVERAL = (replace(node(1), runs=(RUN_ID, "second", "third")), node(10))
BARE = NodeView("cpu1", Sample("cpu1", 0, 1.7e9, 2, 50.0))
VIEWS: dict[str, tuple[tuple[NodeView, ...], int, int | None]] = {
    "the unusual first, and why": (NODES, 120, None),
    "a process of which nothing is known": ((node(6, gpu(7, users=(UNKNOWN,))),), 120, None),
    "without GPUs": ((BARE,), 80, None),
    **{f"{width} columns": (SEVERAL, width, None) for width in (80, 60, 50, 36)},
    "wide letters, 14 rows": ((*NODES, node(1, gpu(0, users=(WIDE,)))), 80, 14),
}


def lines(view: ClusterView, width: int, most: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(render_view(view, width, most))
    return captured.get().splitlines()


def test_the_view_of_a_cluster(check_screen: Check) -> None:
    """A name and the use of GPUs are never shortened; what has no room is counted."""
    page = []
    for title, (nodes, width, most) in VIEWS.items():
        shown = lines(ClusterView("lab", nodes, () if nodes == (BARE,) else (RUN,)), width, most)
        assert max(map(cell_len, shown)) <= width, title
        assert most in (None, len(shown))
        page += [f"== {title}", *shown, ""]
    text = "\n".join(page)
    check_screen("top.txt", re.sub(r"\d\d:\d\d:\d\d", "HH:MM:SS", text))


@pytest.mark.promise(12)
def test_nothing_from_a_host_acts_on_the_terminal() -> None:
    bad = GpuProcess(1, 0, ESCAPE, ESCAPE * 1000)
    sick = node(1, gpu(0, users=(bad,)), GpuSample(1, error=ESCAPE * 1000))
    silent = NodeView(ESCAPE, silence=ESCAPE, hint=ESCAPE, runs=(ESCAPE,))
    row = replace(RUN, run_id=ESCAPE, state=ESCAPE)
    view = ClusterView(ESCAPE, (sick, silent), (row,))
    assert all(line.isprintable() for line in lines(view, 10_000))


WIDTHS = (80, 160)
PLACE: dict[str, Any] = {"nodes": ("gpu1", "gpu2"), "of": 2, "gpus": 0, "attempt": 0}
FIRST = Row(
    "1124-0431-char_gpt-ab12", "char_gpt", "ada@laptop", "running", 75.0, **PLACE, ended=False
)
SECOND = Row("1124-0401-ddp-9x9x", "ddp", "ada@laptop", "running", 4000.0, **PLACE, ended=False)
RUN = replace(
    FIRST,
    run_id=RUN_ID,
    owner="ada@l",
    age=4075.0,
    nodes=("gpu1",),
    of=1,
    gpus=8,
)
ENDED = replace(SECOND, state="succeeded", ended=True, folder="/srv/vision")
ELASTIC = replace(
    FIRST,
    run_id="1123-2359-elastic-q1q1",
    task="elastic",
    owner="grace@station",
    state="running, 2 of 2-4 nodes",
    gpus=16,
    attempt=2,
    folder="/srv/projects/speech-recognition",
)
LONG = replace(
    FIRST,
    run_id="1124-0431-a-task-with-a-name-of-forty-characters-zz99",
    task="a_task_with_a_name_of_forty_characters",
    owner="somebody@workstation.department.example.org",
    state="running, 19 of 16-24 nodes",
    nodes=tuple(f"gpu{number:02}" for number in (*range(1, 17), 18, 20, 22)),
    of=24,
    gpus=152,
    folder="/srv/projects/with-a-long-name/and-a-long-name-in-it/and-one-more-for-good-measure",
)
HERE = replace(FIRST, folder=str(Path.cwd()))
TABLES = {
    "of two runs": (FIRST, SECOND),
    "of several folders": (FIRST, ENDED, ELASTIC),
    "of this folder": (HERE, SECOND),
    "of this folder and others": (HERE, SECOND, ELASTIC),
    "of ended runs from one other folder": (ENDED, replace(ENDED, run_id="1124-0400-ddp-1a1a")),
    "with long names": (LONG, SECOND),
}


def shown(runs: Sequence[Row], width: int) -> str:
    return render(runs, {}, {}, all_=True, width=width, reader="ada@laptop")


@pytest.mark.parametrize("width", WIDTHS)
def test_the_table_of_runs(
    width: int, check_screen: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What has no room beside the rest is on a second line of its run."""
    monkeypatch.setenv("HOME", "/srv/projects")
    parts = [f"{title}\n{shown(runs, width)}\n" for title, runs in TABLES.items()]
    check_screen(f"ps-{width}.txt", "\n".join(parts))


def test_the_runs_of_months_are_counted() -> None:
    """The youngest come first; one that is on is shown however old it is."""
    runs = [replace(ENDED, run_id=f"run-{number}") for number in range(22)]
    runs[21] = replace(runs[21], ended=False)
    lines = render(runs, {}, {}, all_=True).splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("run-")]
    assert shown == [f"run-{n}" for n in (*range(20), 21)]
    assert lines[-1] == "1 older run not shown: --json has all"
