"""Cgroups, read from trees of files like /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.process import cgroup

V2 = "31 23 0:26 {top} {mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"


def tree(root: Path, own: str, mountinfo: str) -> str:
    """A host whose processes are in the cgroups `own`."""
    proc = root / "proc" / "self"
    proc.mkdir(parents=True)
    (proc / "cgroup").write_text(own)
    (proc / "mountinfo").write_text(mountinfo)
    return str(root)


def at(mount: str = "/sys/fs/cgroup", top: str = "/") -> str:
    return V2.format(top=top, mount=mount)


@pytest.mark.parametrize(
    ("own", "mountinfo", "expected"),
    [
        pytest.param(
            "0::/user.slice/app.slice\n",
            at(),
            ["sys/fs/cgroup/user.slice/app.slice"],
            id="a user's session",
        ),
        pytest.param(
            "4:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/z\n",
            V1 + at("/sys/fs/cgroup/unified"),
            ["sys/fs/cgroup/unified/z"],
            id="hybrid",
        ),
        pytest.param("4:cpu,cpuacct:/x\n", V1, [], id="version 1 alone"),
        pytest.param("0::/a/b/c\n", at(top="/a/b"), ["sys/fs/cgroup/c"], id="mounted in part"),
        pytest.param("0::/../a\n", at(), [], id="outside the namespace"),
        pytest.param("0::/a:b\n", at("/mnt/c\\040g"), ["mnt/c g/a:b"], id="odd names"),
    ],
)
def test_own_folders(tmp_path: Path, own: str, mountinfo: str, expected: list[str]) -> None:
    """Our cgroup of version 2 is found wherever that is mounted."""
    root = tree(tmp_path, own, mountinfo)

    assert [str(tmp_path / path) for path in expected] == list(cgroup.own_folders(root))


def test_no_hosts_file_system_is_taken_for_cgroups(tmp_path: Path) -> None:
    """Where the mount is hidden under another, a folder is just a folder, and goes again."""
    root = tree(tmp_path, "0::/\n", at())
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)

    assert cgroup.create("run", "a", 0, root).path == ""
    assert list((tmp_path / "sys/fs/cgroup").iterdir()) == []


def test_processes_below_count_and_those_out_of_sight_do_not(tmp_path: Path) -> None:
    """Zero stands for a process of another PID namespace; to signal it would hit ourselves."""
    (tmp_path / "inner").mkdir()
    (tmp_path / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    (tmp_path / "cgroup.procs").write_text("7\n0\n")
    (tmp_path / "inner" / "cgroup.procs").write_text("9\n")

    assert cgroup.Cgroup(str(tmp_path)).pids() == [7, 9]


def test_empty_one_has_no_processes(tmp_path: Path) -> None:
    """What the kernel says counts, not a list read a moment before."""
    (tmp_path / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    (tmp_path / "cgroup.procs").write_text("7\n")
    found = cgroup.Cgroup(str(tmp_path))

    assert (found.pids(), found.empty, found.wait_empty()) == ([], True, True)


def test_full_one_is_not_removed(tmp_path: Path) -> None:
    """Neither is a folder of which nothing is known."""
    (tmp_path / "inner").mkdir()
    cgroup.Cgroup(str(tmp_path)).remove()
    (tmp_path / "cgroup.events").write_text("populated 1\n")
    cgroup.Cgroup(str(tmp_path)).remove()

    assert (tmp_path / "inner").is_dir()


def test_record_cannot_name_another_folder() -> None:
    """A damaged record must not make us kill or remove what is not the run's."""
    name = cgroup.from_record("/sys/fs/cgroup/runner-51fd67977bcb3226", "run", "a", 0).path

    assert name == ""
    assert cgroup.from_record("", "run", "a", 0).path == ""
