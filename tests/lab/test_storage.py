"""Strange and slow file systems below the hosts' work folders."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher

NOEXEC = "/run/noexec"


@pytest.fixture
def noexec_workdir(lab: Lab) -> Iterator[str]:
    """A workdir on a mount on which two hosts execute no file."""
    hosts = lab["node1"], lab["node2"]
    for host in hosts:
        host.sh(
            f"mkdir {NOEXEC} && mount -t tmpfs -o noexec,mode=1777 noexec {NOEXEC}", user="root"
        )
    yield f"{NOEXEC}/runs"
    for host in hosts:
        host.sh(f"umount --lazy {NOEXEC} && rmdir {NOEXEC}", user="root")


@pytest.mark.promise(3)
@pytest.mark.parametrize(
    "entry",
    [
        pytest.param("plain", id="plain"),
        pytest.param("torchrun", id="torchrun", marks=[pytest.mark.all]),
    ],
)
def test_workdir_may_be_on_a_mount_that_executes_nothing(
    entry: str, on_lab: Launcher, noexec_workdir: str
) -> None:
    """Nothing of ours there is executed, and Python reads the program."""
    (on_lab.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    task = ("task.script=train.py", f"task.entry={entry}", f"cluster.workdir={noexec_workdir}")
    done = on_lab("cluster=lab", *task)
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        assert done.log(node, rank) == f"rank {rank}\n"
        assert any(event["kind"] == "rank_exited" for event in done.events if event["node"] == node)


@pytest.mark.all
@pytest.mark.slow
@pytest.mark.promise(11)
def test_host_with_a_slow_disk_answers_while_it_copies(on_lab: Launcher, tmp_path: Path) -> None:
    """Each call on a file takes its agent 15 ms, so that the copy takes longer than `lost_s`."""
    for number in range(1200):
        (on_lab.folder / f"part{number}.py").write_text(f"x = {number}\n")
    assert on_lab("deploy", "cluster=lab").code == 0
    slow_python = tmp_path / "slow-python"
    calls = "openat,fchmod,lstat,newfstatat,mkdir,rename,unlink,link,fsync"
    delay = f"-e trace={calls} -e inject={calls}:delay_enter=15000"
    slow_python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = node2 ] || exec {sys.executable} "$@"\n'
        f'exec strace -f -qq -o /dev/null {delay} {sys.executable} "$@"\n'
    )
    slow_python.chmod(0o755)
    slow = f"cluster.host_python={slow_python}"
    done = on_lab("cluster=lab", slow, *on_lab.rank_overrides("print=ran"))
    assert done.code == 0, done
    assert done.out.count("ran") == 2, done
    assert "nothing was heard" not in done.err, done
    started = {e["node"]: e["wall"] for e in done.events if e["kind"] == "program_started"}
    assert started["node2"] - started["node1"] > 15, done


@pytest.mark.promise(5)
def test_hosts_with_one_home_have_the_release_on_it_once(
    lab_factory: LabFactory, launcher: Launcher
) -> None:
    """One host receives the release for all, and `clean` leaves nothing."""
    with lab_factory(n=3, shared_home=True) as lab:
        lab.write_cluster(launcher.conf)
        (launcher.folder / "data").write_bytes(os.urandom(3_000_000))
        (launcher.folder / "show.py").write_text("import os; print(os.path.getsize('data'))")
        deployed = launcher("deploy", "--cluster", "lab", "--json")
        assert deployed.code == 0, deployed
        sent = [size or 0 for size in json.loads(deployed.out)["sent"].values()]
        assert [size > 2_000_000 for size in sorted(sent)] == [False, False, True]
        assert len(lab["node1"].sh("ls ~/.runner/releases").split()) == 1
        done = launcher("cluster=lab", PLAIN_ENTRY, "task.script=show.py")
        assert (done.code, done.out.count("3000000")) == (0, 3), done
        cleaned = launcher("clean", "--cluster", "lab", "--older-than", "0s", "--json")
        assert cleaned.code == 0, cleaned
        told = json.loads(cleaned.out).values()
        assert [len(said["runs"]) for said in told] == [1, 1, 1]
        assert sum(len(said["releases"]) for said in told) == 1
        assert lab["node1"].sh("ls ~/.runner/pool") == ""
        assert lab["node1"].sh("ls ~/.runner/runs") == ""
