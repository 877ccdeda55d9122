"""Cores, folders, commands and logind's settings, read from trees of files like /proc and /sys."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.wire.facts import System
from runner.host.facts import machine
from runner.host.facts.collect import absolute, unwritable_reason
from runner.host.process import procfs
from runner.host.process.bounded_child import wait_all
from tests.golden.here import write

GIB = 1 << 30
SESSION = "0::/user.slice/user-1000.slice/session-3.scope\n"
SESSION_V1 = "1:name=systemd:/user.slice/session-c2.scope\n0::/\n"
SERVICE = "0::/user.slice/user@1000.service/app.slice\n"


def tree(root: Path, files: dict[str, str]) -> str:
    """Write the files below `root` and return it."""
    write(root, files)
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
    memory = "MemTotal:       24684096 kB\nMemFree:        23536560 kB\n"
    files = {"proc/meminfo": memory, "sys/class/infiniband/mlx5_0/node_type": "1: CA\n"}
    expected = System(memory=24684096 << 10, infiniband=("mlx5_0",))
    assert machine.read_system(tree(tmp_path, files)) == expected


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


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/usr/bin/python3\0-u\0train.py\0--token\0s3cret\0", "python3 -u train.py"),
        ("python\0-m\0torch.distributed.run\0--nnodes=2\0", "python -m torch.distributed.run"),
        ("/usr/bin/curl\0-s\0-H\0Authorization: s3cret\0http://x\0", "curl"),
        ("mc\0https://me:s3cret@store\0", "mc"),
    ],
)
def test_a_command_is_shown_without_its_arguments(tmp_path: Path, line: str, shown: str) -> None:
    """Program and script say who it is; any other word may be a secret."""
    root = tree(tmp_path, {"proc/5/cmdline": line})

    assert procfs.process_command(5, root) == shown


def test_a_kernel_thread_is_shown_by_its_name(tmp_path: Path) -> None:
    """A process without a command line has at least a name."""
    root = tree(tmp_path, {"proc/5/cmdline": "", "proc/5/comm": "nv_queue\n"})

    assert procfs.process_command(5, root) == "nv_queue"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~", "/home/ann"),
        ("~/runs", "/home/ann/runs"),
        ("/data//runs/../x", "/data/x"),
        ("~ann/x", f"{Path.cwd()}/~ann/x"),
    ],
)
def test_only_our_own_home_is_expanded(path: str, expected: str) -> None:
    """`~/` is our home; other people's homes would need a look-up that may hang."""
    assert expected == absolute(path, "/home/ann")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A file is no place for a run, nor is anything below it."""
    (tmp_path / "notes").write_text("")

    assert f"{tmp_path}/notes is a file, not a folder" == unwritable_reason(
        f"{tmp_path}/notes/runs"
    )


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    """A link to a disk that is not mounted is told apart from a folder yet to be made."""
    (tmp_path / "scratch").symlink_to(tmp_path / "gone")

    assert f"{tmp_path}/scratch is a link to nothing" == unwritable_reason(f"{tmp_path}/scratch/x")
