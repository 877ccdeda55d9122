"""The machine's memory, cores and load, read from trees of files that look like /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.model.hardware import System, TopProcess
from runner.host.facts import machine, system
from tests.unit.host.facts.test_machine import V1, V2, tree

GIB = 1 << 30
MEMINFO = """\
MemTotal:       24684096 kB
MemFree:        23536560 kB
MemAvailable:   24208060 kB
SwapTotal:      12582912 kB
SwapFree:       12480512 kB
"""


def test_all_is_read_at_one_look(tmp_path: Path) -> None:
    """A machine with two NUMA nodes and one InfiniBand device; our cores are at one of them."""
    ours = min(os.sched_getaffinity(0))
    files = {
        "proc/meminfo": MEMINFO,
        "proc/loadavg": "3.25 2.00 1.00 3/512 4711\n",
        "sys/devices/system/cpu/online": "0-3,8\n",
        "sys/devices/system/node/node0/cpulist": "100000-100003\n",
        "sys/devices/system/node/node1/cpulist": f"{ours}\n",
        "sys/devices/system/node/online": "0-1\n",
        "sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
    }
    assert system.read_system(tree(tmp_path, files)) == System(
        cpus=5,
        load=3.25,
        memory=24684096 << 10,
        memory_free=24208060 << 10,
        memory_limit=None,
        swapped=102400 << 10,
        numa_nodes=(1,),
        infiniband=("mlx5_0",),
    )


def test_a_host_that_tells_nothing_is_not_known(tmp_path: Path) -> None:
    """No file of it is needed."""
    assert system.read_system(str(tmp_path)) == System()


@pytest.mark.parametrize(
    ("words", "limit"),
    [(("max", "max"), None), (("34359738368", "max"), 32 * GIB), (("max", "1048576"), 1 << 20)],
)
def test_the_smallest_limit_up_the_tree_counts(
    tmp_path: Path, words: tuple[str, str], limit: int | None
) -> None:
    """Version 2: of our session, or of a slice above it."""
    files = {
        "proc/self/cgroup": "0::/user.slice/session-3.scope\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/user.slice/memory.max": f"{words[0]}\n",
        "sys/fs/cgroup/user.slice/session-3.scope/memory.max": f"{words[1]}\n",
        "sys/fs/cgroup/other.slice/memory.max": "1\n",
    }
    assert system.memory_limit(tree(tmp_path, files)) == limit


def test_version_one_writes_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    """And limits in a file of another name."""
    files = {
        "proc/self/cgroup": "5:memory:/slurm/job_7\n4:cpu,cpuacct:/\n",
        "proc/self/mountinfo": V1.format(top="/"),
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    root = tree(tmp_path, files)
    assert system.memory_limit(root) is None
    job = {"sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{8 * GIB}\n"}
    assert system.memory_limit(tree(tmp_path, job)) == 8 * GIB


def stat(state: str, ticks: int, start: int) -> str:
    """A line of /proc/PID/stat."""
    between = " ".join("0" * 9)
    return f"9 (a) b) {state} 1 {between} {ticks} {ticks} 0 0 20 0 1 0 {start} 0 0\n"


def test_who_keeps_the_cores_busy_is_named(tmp_path: Path) -> None:
    """By cores over its life: not who is old, nor who sleeps, nor ourselves."""
    second = os.sysconf("SC_CLK_TCK")
    root = tree(
        tmp_path,
        {
            "proc/uptime": "1000.00 1.0\n",
            "proc/999999997/stat": stat("R", 100 * second, 0),
            "proc/999999998/stat": stat("R", 100 * second, 900 * second),
            "proc/999999998/cmdline": "python\0train.py\0--token=x\0",
            "proc/999999999/stat": stat("S", 500 * second, 900 * second),
            f"proc/{os.getpid()}/stat": stat("R", 900 * second, 900 * second),
        },
    )
    assert machine.top_process(root) == TopProcess(999999998, 2.0, "", "python train.py")


def test_an_idle_machine_has_nobody(tmp_path: Path) -> None:
    """Somebody always runs a little."""
    files = {"proc/uptime": "1000.00 1.0\n", "proc/5/stat": stat("R", 10, 0), "proc/net/x": ""}
    assert machine.top_process(tree(tmp_path, files)) is None
