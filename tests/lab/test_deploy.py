"""Code pushed to real hosts: intact, once, whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.lab.lab import Host, Lab, LabFactory
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, Launcher
from tests.lab.waiting import wait_until

pytestmark = [pytest.mark.promise(5)]

RELEASES = "~/.runner/releases"
NODES = ("node1", "node2")


def git(folder: Path, *words: str) -> None:
    """Run git as somebody with no configuration of their own."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, env=env, check=True, capture_output=True)


def run_tree(folder: Path) -> list[list[object]]:
    """What `programs/tree.py` says of a folder here."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / "tree.py", folder], capture_output=True, check=True
    )
    rows: list[list[object]] = json.loads(done.stdout)
    return rows


def releases(host: Host) -> list[str]:
    """The names of what is in the store of releases, unfinished ones too."""
    return sorted(host.sh(f"ls -A {RELEASES} 2>/dev/null || true").split())


def whole(host: Host) -> list[str]:
    return [name for name in releases(host) if not name.startswith(".")]


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user who stands in a git repository."""
    shutil.copy(PROGRAMS / "tree.py", on_lab.folder / "tree.py")
    git(on_lab.folder, "init", "-q")
    return on_lab


def awkward(folder: Path) -> None:
    """Fill a repository with everything that breaks copies."""
    (folder / "dir with space").mkdir()
    (folder / "dir with space" / "naïve – 文件.txt").write_text("ü")
    (folder / "--help").mkdir()
    (folder / "--help" / "new\nline").write_text("newline in a name")
    (folder / "run.sh").write_text("#!/bin/sh\necho hi\n")
    (folder / "run.sh").chmod(0o751)
    (folder / "frozen").mkdir()
    (folder / "frozen" / "file").write_text("frozen")
    (folder / "frozen" / "file").chmod(0o444)
    (folder / "empty" / "nested").mkdir(parents=True)
    (folder / "dangling").symlink_to("/no/such//file")
    (folder / "dir link").symlink_to("dir with space", target_is_directory=True)
    (folder / os.fsdecode(b"bytes \xff\xfe")).write_text("no UTF-8")
    (folder / "tracked").write_text("committed")
    (folder / "gone").write_text("removed after the commit")
    (folder / ".gitignore").write_text("*.ckpt\n__pycache__/\n")
    git(folder, "add", "tracked", "gone", "run.sh", ".gitignore")
    git(folder, "commit", "-qm", "first")
    (folder / "tracked").write_text("changed since")
    (folder / "gone").unlink()
    (folder / "model.ckpt").write_text("ignored")
    (folder / "frozen").chmod(0o555)


@pytest.mark.over_openssh
def test_ranks_see_the_tree_as_it_is_here(lab: Lab, project: Launcher, tmp_path: Path) -> None:
    """Every odd file arrives intact on every host; not what git ignores, nor empty folders."""
    awkward(project.folder)
    inner = tmp_path / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "part.py").write_text("part")
    git(inner, "add", ".")
    git(inner, "commit", "-qm", "inner")
    git(project.folder, "submodule", "add", "-q", str(inner), "sub")
    (project.folder / "sub" / "untracked.txt").write_text("in a submodule")
    done = project.succeed("cluster=lab", PLAIN_ENTRY, "task.script=tree.py")
    here = [
        row
        for row in run_tree(project.folder)
        if not re.match(r"(sub/)?\.git(/|$)|runs|empty|model\.ckpt|sub/\.git", str(row[0]))
    ]
    assert {"sub/untracked.txt", "tracked"} <= {str(row[0]) for row in here}
    for rank, node in enumerate(NODES):
        assert json.loads(done.log(node, rank)) == here
    plan = json.loads((done.folder / "plan.json").read_text())
    assert plan["release"] == whole(lab["node1"])[0]
    assert re.fullmatch(r"[0-9a-f]{40}\+", plan["commit"])
    again = project.succeed("deploy", "--cluster", "lab", "--json")
    assert json.loads(again.out)["sent"] == dict.fromkeys(NODES)
    (project.folder / "frozen").chmod(0o755)


@pytest.mark.promise(13)
def test_a_full_disk_leaves_earlier_releases_and_no_half_one(
    lab_factory: LabFactory, launcher: Launcher
) -> None:
    """It is said which host has no room; the others are as they were; nothing is started."""
    with lab_factory(n=2, home_mb=120) as lab:
        lab.write_cluster(launcher.conf)
        (launcher.folder / "small").write_text("small")
        assert launcher("deploy", "--cluster", "lab").code == 0
        before = whole(lab["node2"])
        for number in range(8):
            (launcher.folder / f"big{number}").write_bytes(os.urandom(10_000_000))
        lab["node2"].sh("dd if=/dev/zero of=$HOME/hog bs=1M count=60 2>/dev/null")
        done = launcher("deploy", "--cluster", "lab")
        assert done.code == 3, done
        assert re.search(r"error: node2: could not store the code: No space left", done.err), done
        assert "cluster.workdir" in done.err
        assert [name for name in releases(lab["node2"]) if name != ".store"] == before


def test_a_killed_controller_leaves_no_half_release(lab: Lab, project: Launcher) -> None:
    """The hosts are as before, and the next deploy completes."""
    (project.folder / "small").write_text("small")
    assert project("deploy", "--cluster", "lab").code == 0
    hosts = [lab[node] for node in NODES]
    before = whole(hosts[0])
    (project.folder / "big").write_bytes(os.urandom(100_000_000))
    pushing = project.start("deploy", "--cluster", "lab")

    def is_tidy(host: Host) -> bool:
        return not [name for name in releases(host) if name.startswith(".new-")]

    pushing.until(lambda: not any(is_tidy(host) for host in hosts), "the push to begin")
    pushing.kill()
    for host in hosts:
        wait_until(partial(is_tidy, host), f"{host.name} to tidy up")
        assert whole(host) == before
    (project.folder / "big").write_text("small enough")
    assert project("deploy", "--cluster", "lab").code == 0
    assert all(len(whole(host)) == 2 for host in hosts)


def test_what_cannot_be_pushed_is_said_before_anything_is_contacted(project: Launcher) -> None:
    """Too much, an ignored script, a script that is not there: exit 2, and no host is asked."""
    (project.folder / "data").mkdir()
    (project.folder / "data" / "a.bin").write_bytes(b"0" * 2_000_000)
    (project.folder / "data" / "b.bin").write_bytes(b"0" * 2_000_000)
    (project.folder / ".gitignore").write_text("ignored.py\n")
    (project.folder / "ignored.py").write_text("")
    lost = ("cluster=lab", "cluster.nodes.node1.host=192.0.2.1")
    too_much = project(*lost, "task.script=tree.py", "deploy.max_mb=1")
    ignored = project(*lost, "task.script=ignored.py")
    absent = project(*lost, "task.script=tre.py")
    for done in (too_much, ignored, absent):
        assert done.code == 2, done
        assert "192.0.2.1" not in done.err
    assert "4.0 MB  data/" in too_much.err
    assert ".runnerignore" in too_much.err
    assert "deploy.max_mb" in too_much.err
    assert "ignored.py is here, but it is ignored" in ignored.err
    assert "there is no tre.py" in absent.err
    (project.folder / ".runnerignore").write_text("/data/\n")
    assert (
        project("cluster=lab", "task.script=tree.py", "deploy.max_mb=1", "dry_run=true").code == 0
    )


@pytest.mark.promise(14)
def test_pushed_code_is_what_runs(lab: Lab, project: Launcher) -> None:
    """Not an older copy that the hosts have; its ranks know which code that is."""
    (project.folder / "src/pkg").mkdir(parents=True)
    (project.folder / "src/pkg/__init__.py").write_text("age = 'new'\n")
    (project.folder / "beside.py").write_text("")
    (project.folder / "scripts").mkdir()
    (project.folder / "scripts/run.py").write_text(
        "import os, beside, pkg\n"
        "print(pkg.age, os.environ['RUNNER_RELEASE'], os.environ['RUNNER_COMMIT'])\n"
    )
    git(project.folder, "add", ".")
    git(project.folder, "commit", "-qm", "first")
    for node in NODES:
        lab[node].sh("mkdir -p old/pkg && echo 'age = \"old\"' >old/pkg/__init__.py")
    old = "cluster.setup=['export PYTHONPATH=$HOME/old']"

    done = project.succeed("cluster=lab", PLAIN_ENTRY, "task.script=scripts/run.py", old)

    plan = json.loads((done.folder / "plan.json").read_text())
    assert re.fullmatch("[0-9a-f]{40}", plan["commit"])
    for rank, node in enumerate(NODES):
        assert done.log(node, rank).split() == ["new", plan["release"], plan["commit"]]
