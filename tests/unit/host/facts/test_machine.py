"""Cores, folders and commands, read from trees of files that look like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.facts import machine

V2 = "31 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "32 31 0:29 {top} /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def tree(root: Path, files: dict[str, str]) -> str:
    """Write the files below `root` and return it."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_without_quotas_affinity_counts(tmp_path: Path) -> None:
    """A host without cgroups gives what the scheduler allows."""
    assert machine.usable_cores(12, tree(tmp_path, {})) == 12


@pytest.mark.parametrize(
    ("quota", "expected"),
    [
        ("max 100000", 16),
        ("400000 100000", 4),
        ("250000 100000", 2),
        ("50000 100000", 1),
        ("3200000 100000", 16),
        ("nonsense", 16),
    ],
)
def test_a_quota_counts_in_whole_cores(tmp_path: Path, quota: str, expected: int) -> None:
    """Half a core too many would throttle; less than one is still one."""
    files = {
        "proc/self/cgroup": "0::/user.slice\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/user.slice/cpu.max": quota + "\n",
    }

    assert expected == machine.usable_cores(16, tree(tmp_path, files))


def test_the_smallest_quota_up_the_tree_counts(tmp_path: Path) -> None:
    """A slice's quota binds the session below it, and a sibling's binds nobody else."""
    files = {
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-3.scope\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/user.slice/cpu.max": "800000 100000\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/cpu.max": "600000 100000\n",
        "sys/fs/cgroup/user.slice/user-1000.slice/session-3.scope/cpu.max": "max 100000\n",
        "sys/fs/cgroup/user.slice/user-1001.slice/cpu.max": "100000 100000\n",
    }

    assert machine.usable_cores(64, tree(tmp_path, files)) == 6


def test_a_container_with_its_own_namespace_is_at_the_top(tmp_path: Path) -> None:
    """Docker on cgroup 2: our path is /, and the top of the mount carries the quota."""
    files = {
        "proc/self/cgroup": "0::/\n",
        "proc/self/mountinfo": V2,
        "sys/fs/cgroup/cpu.max": "150000 50000\n",
    }

    assert machine.usable_cores(8, tree(tmp_path, files)) == 3


@pytest.mark.parametrize("path", ["/docker/abc", "/docker/abc/job", "/../elsewhere", "/system"])
def test_an_old_container_sees_only_its_own_part(tmp_path: Path, path: str) -> None:
    """Docker on cgroup 1: paths are the host's, the mount begins at the container's cgroup."""
    files = {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}\n1:name=systemd:{path}\n",
        "proc/self/mountinfo": V1.format(top="/docker/abc"),
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
    }

    assert machine.usable_cores(8, tree(tmp_path, files)) == 2


def test_both_hierarchies_may_be_mounted(tmp_path: Path) -> None:
    """A hybrid host keeps the cpu controller in version 1 beside an empty version 2."""
    files = {
        "proc/self/cgroup": "2:cpu,cpuacct:/slurm/job_7\n0::/init.scope\n",
        "proc/self/mountinfo": "22 27 0:21 / /proc rw - proc proc rw\n" + V1.format(top="/") + V2,
        "sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_quota_us": "500000\n",
        "sys/fs/cgroup/cpu,cpuacct/slurm/job_7/cpu.cfs_period_us": "100000\n",
    }

    assert machine.usable_cores(8, tree(tmp_path, files)) == 5


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("/usr/bin/python3\0-u\0train.py\0--token\0s3cret\0", "python3 -u train.py"),
        ("python\0-m\0torch.distributed.run\0--nnodes=2\0", "python -m torch.distributed.run"),
        ("bash\0-c\0export TOKEN=s3cret; sleep 1\0", "bash"),
        ("/opt/worker\0", "worker"),
    ],
)
def test_a_command_is_shown_without_its_arguments(tmp_path: Path, line: str, shown: str) -> None:
    """Program and script say who it is; what follows may be a secret."""
    root = tree(tmp_path, {"proc/5/cmdline": line})

    assert machine.process_command(5, root) == shown


def test_a_hidden_process_has_no_command(tmp_path: Path) -> None:
    """Where /proc hides other users' processes, nothing is known of them."""
    assert machine.process_command(5, str(tmp_path)) == ""


def test_a_kernel_thread_is_shown_by_its_name(tmp_path: Path) -> None:
    """A process without a command line has at least a name."""
    root = tree(tmp_path, {"proc/5/cmdline": "", "proc/5/comm": "nv_queue\n"})

    assert machine.process_command(5, root) == "nv_queue"


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
    assert expected == machine.absolute(path, "/home/ann")


def test_a_folder_that_can_be_made_is_writable(tmp_path: Path) -> None:
    """The nearest folder that is there decides, and nothing is made."""
    assert machine.unwritable_reason(str(tmp_path / "a" / "b")) == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A file is no place for a run, nor is anything below it."""
    (tmp_path / "notes").write_text("")

    assert f"{tmp_path}/notes is a file, not a folder" == machine.unwritable_reason(
        f"{tmp_path}/notes/runs"
    )


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    """A link to a disk that is not mounted is told apart from a folder yet to be made."""
    (tmp_path / "scratch").symlink_to(tmp_path / "gone")

    assert f"{tmp_path}/scratch is a link to nothing" == machine.unwritable_reason(
        f"{tmp_path}/scratch/x"
    )


def test_limits_are_named() -> None:
    """Three soft limits are reported, unlimited as -1."""
    limits = machine.soft_limits()

    assert sorted(limits) == ["memlock", "nofile", "nproc"]
    assert all(value >= -1 for value in limits.values())
