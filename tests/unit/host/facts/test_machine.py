"""Cores, folders, commands and logind's settings, read from trees of files like /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.wire.facts import System
from runner.host.facts import machine
from runner.host.process.bounded_child import wait_all

GIB = 1 << 30
SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SESSION_V1 = "1:name=systemd:/user.slice/session-c2.scope\n0::/\n"
SERVICE = "0::/user.slice/user@1000.service/app.slice\n"
MEMINFO = """\
MemTotal:       24684096 kB
MemFree:        23536560 kB
MemAvailable:   24208060 kB
"""


def tree(root: Path, files: dict[str, str]) -> str:
    """Write the files below `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 16),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("nonsense", 16),
    ],
)
def test_a_quota_counts_in_whole_cores(tmp_path: Path, quota: str, expected: int) -> None:
    """Half a core too many would throttle; less than one is still one."""
    files = {
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/fs/cgroup/user.slice/cpu.max": quota + "\n",
    }

    assert expected == machine.usable_cores(16, tree(tmp_path, files))


@pytest.mark.parametrize("path", ["/docker/abc/job", "/../elsewhere"])
def test_an_old_container_sees_only_its_own_part(tmp_path: Path, path: str) -> None:
    """Docker on cgroup 1: paths are the host's, the mount begins at the container's cgroup."""
    files = {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
    }

    assert machine.usable_cores(8, tree(tmp_path, files)) == 2


def test_all_is_read_at_one_look(tmp_path: Path) -> None:
    """A machine with one InfiniBand device."""
    files = {
        "proc/meminfo": MEMINFO,
        "sys/class/infiniband/mlx5_0/node_type": "1: CA\n",
    }
    assert machine.read_system(tree(tmp_path, files)) == System(
        memory=24684096 << 10,
        memory_limit=None,
        infiniband=("mlx5_0",),
    )


@pytest.mark.parametrize(
    ("words", "limit"),
    [(("max", "max"), None), (("34359738368", "1048576"), 1 << 20)],
)
def test_the_smallest_limit_up_the_tree_counts(
    tmp_path: Path, words: tuple[str, str], limit: int | None
) -> None:
    """Version 2: of our session, or of a slice above it."""
    files = {
        "proc/self/cgroup": "0::/user.slice/session-3.scope\n",
        "sys/fs/cgroup/user.slice/memory.max": f"{words[0]}\n",
        "sys/fs/cgroup/user.slice/session-3.scope/memory.max": f"{words[1]}\n",
        "sys/fs/cgroup/other.slice/memory.max": "1\n",
    }
    assert machine.memory_limit(tree(tmp_path, files)) == limit


def test_version_one_writes_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    """And limits in a file of another name."""
    files = {
        "proc/self/cgroup": "5:memory:/slurm/job_7\n4:cpu,cpuacct:/\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    root = tree(tmp_path, files)
    assert machine.memory_limit(root) is None
    job = {"sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes": f"{8 * GIB}\n"}
    assert machine.memory_limit(tree(tmp_path, job)) == 8 * GIB


@pytest.mark.parametrize(
    ("own", "answer", "expected"),
    [
        pytest.param(SESSION, 'b true|as 0|as 1 "root"', "KillUserProcesses=yes", id="session"),
        pytest.param(SESSION_V1, "b true|as 0|as 0", "KillUserProcesses=yes", id="version 1"),
        pytest.param(SERVICE, "b true|as 0|as 0", "", id="user service"),
        pytest.param("", "b true|as 0|as 0", "", id="no cgroups"),
        pytest.param(SESSION, 'b true|as 0|as 2 "root" "ann"', "", id="excluded"),
        pytest.param(SESSION, 'b true|as 1 "bob"|as 0', "", id="only another"),
        pytest.param(SESSION, 'b false|as 2 "bob" "ann"|as 0', "KillOnlyUsers=ann", id="only us"),
        pytest.param(SESSION, "b false|as 0|as 0", "", id="off"),
        pytest.param(SESSION, "", "", id="no logind"),
    ],
)
def test_what_logind_kills_at_logout_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, answer: str, expected: str
) -> None:
    """Its defaults are those of the distribution, and stand in no file."""
    lines = answer.replace("|", "\n")
    busctl = tmp_path / "busctl"
    busctl.write_text(f"#!/bin/sh\necho '{lines}'\ntest '{answer}'\n")
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    child = machine.ask_logind(tree(tmp_path, {"proc/self/cgroup": own}))
    wait_all([child] if child else [])
    assert machine.logind_kill_setting("ann", child) == expected
