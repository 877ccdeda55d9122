"""Strange and slow file systems below the hosts' work folders."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

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
