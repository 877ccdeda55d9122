"""`top` on real hosts: what it shows of GPUs and runs, and that it leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.lab.fake_gpus import FakeGpu, HostGpus
from tests.lab.forkserver import RUNNER_ARGV
from tests.lab.lab import Lab
from tests.lab.launching import Launcher
from tests.lab.terminal import Terminal
from tests.lab.waiting import wait_until

THERMAL = 0x40  # nvmlClocksThrottleReasonHwThermalSlowdown
GB = 10**9
ENTER = "\x1b[?1049h"
LEAVE = "\x1b[?1049l"


class View(Terminal):
    def __init__(self, launcher: Launcher, *words: str) -> None:
        super().__init__([*RUNNER_ARGV, "top", *words], launcher.folder, launcher.env, 20, 100)

    def leave(self) -> str:
        """Return what it says once it has left the terminal as it was."""
        assert self.end() == 0
        assert self.shown.count(ENTER) == self.shown.count(LEAVE) == 1
        assert self.is_as_it_was
        return self.shown.rpartition(LEAVE)[2]


@pytest.fixture
def gpus(lab: Lab, tmp_path: Path) -> Iterator[dict[str, HostGpus]]:
    """Two hosts with two GPUs each, that nobody uses."""
    installed = {name: HostGpus(lab[name], tmp_path) for name in ("node1", "node2")}
    for each in installed.values():
        each.set(FakeGpu(), FakeGpu())
    yield installed
    for each in installed.values():
        each.remove()


@pytest.fixture
def running(on_lab: Launcher) -> Iterator[str]:
    """The id of a run on these two hosts."""
    done = on_lab.run_ranks("sleep=600", "cluster=lab", "detach=true")
    assert done.code == 0, done
    yield done.folder.name
    on_lab("stop", "--run", done.folder.name)


def rank_pid(lab: Lab, name: str) -> int:
    found: list[int] = []

    def is_there() -> bool:
        processes = lab[name].processes("RUNNER_RUN_ID")
        found[:] = [each.pid for each in processes if "sleep=600" in each.cmdline]
        return bool(found)

    wait_until(is_there, f"a rank on {name}")
    return found[-1]


def test_one_look_tells_gpus_whose_they_are_and_runs(
    lab: Lab, on_lab: Launcher, gpus: dict[str, HostGpus], running: str
) -> None:
    """As a table in a pipe, as JSON for a program; what does not answer is named on stderr."""
    mine = ((rank_pid(lab, "node1"), 40 * GB),)
    gpus["node1"].set(FakeGpu(93, 40 * GB, processes=mine), FakeGpu(95, 41 * GB, processes=mine))
    gpus["node2"].set(FakeGpu(97, 60 * GB, temperature_c=91, clock_reasons=THERMAL), FakeGpu())
    lab.write_cluster(on_lab.conf, names=["node1", "node2", "node3"])
    lab["node3"].power_off()
    table = on_lab("top", "lab")
    data = on_lab("top", "lab", "--json")
    one = on_lab("top", "lab", "cluster.only=[node3]", "--once")

    assert table.code == 0, table
    lines = table.out.splitlines()
    assert "2 of 3 nodes answer  3 of 4 GPUs in use" in lines[0]
    assert any(line.startswith("node3: not answering: ") for line in lines)
    assert any("ssh -v" in line for line in lines if line.startswith("    "))
    at = {line.split()[0]: line for line in lines if line}
    assert at["node1"].split()[2:4] == ["94%", "81/172"]
    assert " running " in at[running]
    first = next(number for number, line in enumerate(lines) if line.startswith("node2: "))
    assert lines[first : first + 2] == [
        "node2: GPU 0 hot (91 °C), throttled (thermal), memory in use by no known process",
        "",
    ]
    assert not any(line.endswith(" ") for line in lines)
    assert data.code == 0, data
    assert (one.code, one.out) == (3, ""), one
    told = json.loads(data.out)
    assert told.keys() == {"v", "time", "nodes", "runs", "unreachable"}
    assert told["nodes"].keys() == {"node1", "node2"}
    assert [*told["unreachable"]] == ["node3"]
    first_gpu, _ = told["nodes"]["node1"]["gpus"]
    assert (first_gpu["utilization"], first_gpu["memory_used"]) == (93, 40 * GB)
    (user,) = first_gpu["users"]
    assert (user["pid"], user["run_id"]) == (mine[0][0], running)
    assert told["nodes"]["node1"]["cpu"] is not None, "it needs two samples"
    (run,) = told["runs"]
    assert run["run_id"] == running


@pytest.mark.all
def test_a_view_follows_its_hosts_and_leaves_no_trace(
    lab: Lab, on_lab: Launcher, gpus: dict[str, HostGpus]
) -> None:
    """Hosts that are unplugged, at last all of them, a driver that hangs, and Ctrl-C."""
    with closing(View(on_lab, "lab")) as view:
        view.until("2 of 2 nodes answer  ", "0 of 4 GPUs in use")
        gpus["node1"].set(mode="hang")
        view.until("driver did not answer")
        lab["node2"].unplug()
        view.until("not answering: ", "1 of 2 nodes answer")
        start = len(view.read())
        lab["node1"].unplug()
        view.until("0 of 2 nodes answer", start=start)
        lab["node1"].plug()
        lab["node2"].plug()
        view.until("2 of 2 nodes answer", start=start)
        view.type("\x03")
        view.leave()
    wait_until(lambda: not _agents(lab), "the end of the agents", detail=lambda: _agents(lab))


def _agents(lab: Lab) -> list[str]:
    processes = (each for name in ("node1", "node2") for each in lab[name].processes())
    return [each.cmdline for each in processes if " top " in each.cmdline]
