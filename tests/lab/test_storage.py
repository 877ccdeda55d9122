"""Strange and slow file systems below the hosts' work folders."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.lab import Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, Launcher
from tests.lab.test_programs import write_task

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
        pytest.param("torchrun", id="torchrun"),
        pytest.param("launch", id="launch", marks=[pytest.mark.all]),
    ],
)
def test_workdir_may_be_on_a_mount_that_executes_nothing(
    entry: str, on_lab: Launcher, noexec_workdir: str
) -> None:
    """Nothing of ours there is executed, and Python reads the program."""
    (on_lab.folder / "train.py").write_text("import os\nprint('rank', os.environ['RANK'])\n")
    task = ("task.script=train.py", f"task.entry={entry}", f"cluster.workdir={noexec_workdir}")
    done = on_lab("cluster=lab", "cluster.only=[node1,node2]", *task)
    assert done.code == 0, done
    for rank, node in enumerate(("node1", "node2")):
        assert done.log(node, rank) == f"rank {rank}\n"
        assert any(event["kind"] == "rank_exited" for event in done.events if event["node"] == node)


@pytest.mark.promise(11)
def test_host_with_a_slow_disk_answers_while_it_copies(on_lab: Launcher, tmp_path: Path) -> None:
    """Whatever file its agent touches between two requests takes 5 ms; `lost_s` is 5 s."""
    for number in range(900):
        (on_lab.folder / f"part{number}.py").write_text(f"x = {number}\n")
    where = ("cluster=lab", "cluster.only=[node1,node2]")
    assert on_lab("deploy", *where).code == 0
    slow_python = tmp_path / "slow-python"
    calls = "openat,fchmod,lstat,newfstatat,mkdir,rename,unlink,link,fsync"
    delay = f"-e trace={calls} -e inject={calls}:delay_enter=5000"
    slow_python.write_text(
        f'#!/bin/sh\n[ "$(hostname)" = node2 ] || exec {sys.executable} "$@"\n'
        f'exec strace -f -qq -o /dev/null {delay} {sys.executable} "$@"\n'
    )
    slow_python.chmod(0o755)
    slow = f"cluster.host_python={slow_python}"
    done = on_lab(*where, slow, "lost_s=5", *on_lab.rank_overrides("print=ran"))
    assert done.code == 0, done
    assert done.out.count("ran") == 2, done
    assert "nothing was heard" not in done.err, done
    started = {e["node"]: e["wall"] for e in done.events if e["kind"] == "program_started"}
    assert started["node2"] - started["node1"] > 5, done  # the copy took longer than `lost_s`


@pytest.mark.promise(5)
def test_hosts_with_one_home_have_the_plan_on_it_once(
    lab_factory: LabFactory, launcher: Launcher
) -> None:
    """Each node's folder has it; the disk has it once, and `clean` removes all of it."""
    with lab_factory(n=3, shared_home=True) as lab:
        lab.write_cluster(launcher.conf)
        done = launcher("cluster=lab", PLAIN_ENTRY, *launcher.rank_overrides("print=ran"))
        assert done.code == 0, done
        runs = f"~/.runner/runs/{done.folder.name}"
        for name in ("plan.json", "config.yaml", "run.json"):
            listed = lab["node1"].sh(f"stat -c %i {runs}/*/{name}").split()
            assert (len(listed), len(set(listed))) == (3, 1), (name, listed)
        cleaned = launcher("clean", "--cluster", "lab", "--older-than", "0s")
        assert cleaned.code == 0, cleaned
        assert lab["node1"].sh("ls ~/.runner/runs") == ""


@pytest.mark.promise(8)
def test_program_of_the_code_that_cannot_be_executed_is_refused(
    on_lab: Launcher, noexec_workdir: str
) -> None:
    """By the launch and by the check, with the key and what to write instead."""
    program = on_lab.folder / "work.sh"
    program.write_text("#!/bin/sh\necho ran\n")
    program.chmod(0o755)
    where = ("cluster=lab", "cluster.only=[node1,node2]", f"cluster.workdir={noexec_workdir}")
    write_task(on_lab, "mine", command=["./work.sh"], entry="plain")
    refused = on_lab(*where, "task=mine")
    assert refused.code == 3, refused
    assert "node[1-2]: task.command: ./work.sh cannot be executed" in refused.err, refused
    assert 'task.command=[bash,"./work.sh"]' in refused.err, refused
    checked = on_lab("check", *where, "task=mine")
    assert "./work.sh cannot be executed" in checked.out, checked
    done = on_lab(*where, PLAIN_ENTRY, 'task.command=[bash,"./work.sh"]')
    assert (done.code, done.log("node2", 1)) == (0, "ran\n"), done
