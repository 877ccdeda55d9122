"""Cores, routes, folders, commands and logind's settings, read from trees of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.core.wire.facts import Route
from runner.host.facts import interfaces, machine
from runner.host.facts.collect import unwritable_reason
from runner.host.process import procfs
from runner.host.process.bounded_child import wait_all
from tests.golden.here import write

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


def test_an_old_container_sees_only_its_own_part(tmp_path: Path) -> None:
    """Docker on cgroup 1: paths are the host's, the mount begins at the container's cgroup."""
    files = {
        "proc/self/cgroup": "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "200000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }

    assert machine.usable_cores(8, tree(tmp_path, files)) == 2


@pytest.mark.parametrize(
    ("own", "answer", "expected"),
    [
        pytest.param(SESSION, 'b true|as 0|as 1 "root"', "KillUserProcesses=yes", id="session"),
        pytest.param(SESSION_V1, "b true|as 0|as 0", "KillUserProcesses=yes", id="version 1"),
        pytest.param(SERVICE, "b true|as 0|as 0", "", id="user service"),
        pytest.param(SESSION, 'b true|as 0|as 2 "root" "ann"', "", id="excluded"),
        pytest.param(SESSION, 'b true|as 1 "bob"|as 0', "", id="only another"),
        pytest.param(SESSION, 'b false|as 2 "bob" "ann"|as 0', "KillOnlyUsers=ann", id="only us"),
        pytest.param(SESSION, "b false|as 0|as 0", "", id="off"),
    ],
)
def test_what_logind_kills_at_logout_is_what_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, answer: str, expected: str
) -> None:
    """Its defaults are those of the distribution, and stand in no file."""
    lines = answer.replace("|", "\n")
    busctl = tmp_path / "busctl"
    busctl.write_text(f"#!/bin/sh\necho '{lines}'\n")
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
        ("", "nv_queue"),
    ],
)
def test_a_command_is_shown_without_its_arguments(tmp_path: Path, line: str, shown: str) -> None:
    """Program and script say who it is, or the kernel; any other word may be a secret."""
    root = tree(tmp_path, {"proc/5/cmdline": line, "proc/5/comm": "nv_queue\n"})

    assert procfs.process_command(5, root) == shown


def test_folders_in_which_nothing_can_be_written_are_named(tmp_path: Path) -> None:
    """A link to a disk that is not mounted is told apart from a folder yet to be made."""
    (tmp_path / "notes").write_text("")
    (tmp_path / "scratch").symlink_to(tmp_path / "gone")
    for path, problem in (("notes", "a file, not a folder"), ("scratch", "a link to nothing")):
        assert unwritable_reason(f"{tmp_path}/{path}/x") == f"{tmp_path}/{path} is {problem}"


ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0
eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0
* 0000C80A 00000000 0201 0 0 0 0000FFFF 0 0 0
"""
ROUTES_6 = """\
{net} 40 {none} 00 {none} 00000100 00000001 00000000 00000001 eth0
{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200 lo
{own} 80 {none} 00 {none} 00000000 00000003 00000000 80200001 eth0
""".format(net="fd" + "0" * 30, own="fd" + "0" * 29 + "7", none="0" * 32)


def test_routes_that_lead_somewhere(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": ROUTES_6})
    assert [*interfaces.read_routes(f"{tmp_path}/")] == [
        Route("0.0.0.0/0", "eth0", 100),
        Route("10.0.0.0/24", "eth0"),
        Route("fd00::/64", "eth0", 256),
    ]
