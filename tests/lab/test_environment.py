"""Environments that hosts prepare for a task: made once, shown, reused, refused with the cure."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.golden.here import write
from tests.lab.lab import Lab, need
from tests.lab.launching import PLAIN_ENTRY, Launcher
from tests.lab.waiting import wait_until

PREPARED = "~/.runner/prepared"
PROGRAM = """
import os, sys
print("python", sys.executable)
print("made of", open(os.environ["RUNNER_PREPARED"] + "/made").read())
"""
FILES = {"show.py": PROGRAM, "names.txt": "ada\n"}
LINES = json.dumps(
    ["echo making", "read name <names.txt", 'echo "$name on $(hostname)" > made', "exit"]
)
BY_LINES = (
    f"cluster.prepare={LINES}",
    "cluster.prepare_inputs=[names.txt]",
    "task.script=show.py",
    PLAIN_ENTRY,
)


@pytest.fixture
def project(on_lab: Launcher) -> Launcher:
    """A user whose program shows its environment, which is made from `names.txt`."""
    write(on_lab.folder, FILES)
    return on_lab


def made(lab: Lab, node: str = "node1") -> list[str]:
    """The environments that are complete on a host."""
    return lab[node].sh(f"cd {PREPARED} 2>/dev/null && ls -d *.made || true").split()


def test_an_environment_is_made_once_for_each_content(project: Launcher, lab: Lab) -> None:
    planned = project.succeed("cluster=lab", *BY_LINES, "dry_run=true")
    assert "environment not made yet on node[1-2]: a launch makes it first" in planned.out
    first = project.succeed("cluster=lab", *BY_LINES)
    assert "making" in first.out
    assert "made of ada on node1" in first.log("node1", 0)
    assert "made of ada on node2" in first.log("node2", 1)
    (project.folder / "show.py").write_text(PROGRAM + "print('changed')\n")
    again = project.succeed("cluster=lab", *BY_LINES)
    assert "changed" in again.log("node1", 0)
    assert "making" not in again.out
    (project.folder / "names.txt").write_text("bob\n")
    other = project.succeed("cluster=lab", *BY_LINES)
    assert "made of bob on node1" in other.log("node1", 0)
    assert len(made(lab)) == 2
    rerun = project.succeed(f"rerun={first.folder}")
    assert "made of ada on node1" in rerun.log("node1", 0)
    project.succeed("clean", "lab", "--older-than", "0s", "--yes")
    assert made(lab) == []


def test_a_spare_has_it_before_it_is_needed(project: Launcher, lab: Lab) -> None:
    project.succeed("cluster=lab4", "task.nnodes=2", "relaunch.max=1", *BY_LINES)
    assert made(lab, "node3") == made(lab, "node1") != []


def test_lines_that_fail_are_refused_with_the_line(project: Launcher, lab: Lab) -> None:
    lines = json.dumps(["echo one", "conda activate x", "touch made"])
    done = project("cluster=lab", *BY_LINES, f"cluster.prepare={lines}")
    assert done.code == 3
    assert "node[1-2]: cluster.prepare ended with 127" in done.err
    assert "line 2 (conda activate x) ended with exit code 127" in done.err
    assert "conda is a shell function" in done.err
    assert made(lab) == []
    late = project(
        "cluster=lab", *BY_LINES, 'cluster.prepare=["sleep 600"]', "cluster.prepare_timeout_s=1"
    )
    assert late.code == 3
    assert "cluster.prepare did not end in time" in late.err
    assert "set cluster.prepare_timeout_s" in late.err


def test_who_makes_an_environment_may_die(project: Launcher, lab: Lab) -> None:
    """Nothing of the lines is left, and the next launch makes it."""
    lines = json.dumps(["echo begun", "sleep 600", "touch made"])
    first = project.start("cluster=lab", *BY_LINES, f"cluster.prepare={lines}")
    first.until_printed("begun", 2)
    first.send()
    assert first.wait().code == 130
    wait_until(lambda: "sleep 600" not in lab["node1"].sh("ps -eo args"), "the lines to end")
    project.succeed("cluster=lab", *BY_LINES)


PYPROJECT = """
[project]
name = "mine"
version = "1"
requires-python = ">=3.8"
dependencies = [%s]
"""
LOCK = """
version = 1
revision = 2
requires-python = ">=3.8"

[[package]]
name = "mine"
version = "1"
source = { virtual = "." }
"""
WITH_LIB = """
dependencies = [{ name = "lib" }]

[package.metadata]
requires-dist = [{ name = "lib"%s }]

[[package]]
name = "lib"
version = "1.0"
source = { %s }
"""
BY_PATH = PYPROJECT % '"lib"' + '[tool.uv.sources]\nlib = { path = "libs/lib", editable = true }\n'
WHEEL = (
    'wheels = [{ url = "https://files.pythonhosted.org/lib-1.0-py3-none-any.whl", '
    f'hash = "sha256:{"0" * 64}" }}]\n'
)
IN_INDEX = 'registry = "https://pypi.org/simple"'
LACKS = {
    "uv": ({}, "install uv there"),
    "a lock": ({"uv.lock": ""}, "from where you start the run: `uv lock`"),
    "a lock of today": ({"pyproject.toml": PYPROJECT % '"lib"'}, "uv.lock is out of date"),
    "a dependency by path": (
        {
            "pyproject.toml": BY_PATH,
            "uv.lock": LOCK + WITH_LIB % (', editable = "libs/lib"', 'editable = "libs/lib"'),
        },
        "cluster.prepare_inputs=[libs/mine]",
    ),
    "a network": (
        {
            "pyproject.toml": PYPROJECT % '"lib"',
            "uv.lock": LOCK + WITH_LIB % ("", IN_INDEX) + WHEEL,
        },
        "this host does not reach the index",
    ),
}


@pytest.fixture
def with_uv(project: Launcher) -> tuple[str, ...]:
    """The words of a launch with uv on the hosts' PATH, of a project with a lock."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    need("" if uv else "uv is not installed here")
    folder = project.folder.parent / "bin"
    folder.mkdir()
    shutil.copy(str(uv), folder / "uv")
    show = "import sys; print(sys.prefix)\n"
    files = {"pyproject.toml": PYPROJECT % "", "uv.lock": LOCK, "show.py": show}
    write(project.folder, files)
    setup = json.dumps([f'export PATH="{folder}:$PATH" UV_HTTP_RETRIES=0'])
    uv_words = ("cluster.environment=uv", "cluster.python=python3", f"cluster.setup={setup}")
    return ("cluster=lab", *uv_words, "task.script=show.py", PLAIN_ENTRY)


def test_uv_makes_the_interpreter_of_the_task(project: Launcher, with_uv: tuple[str, ...]) -> None:
    """A shipped task, and a check without one, have it as well."""
    done = project.succeed(*with_uv)
    plan = json.loads((done.folder / "plan.json").read_text())
    python = plan["nodes"][0]["command"][0]
    assert done.log("node1", 0).strip() == python.removesuffix("/bin/python")
    planned = project.succeed(*with_uv, "dry_run=true")
    assert python in planned.out
    assert "not made yet" not in planned.out
    shipped = project.succeed(*with_uv[:-2], "task=env", PLAIN_ENTRY)
    assert f"no torch in {python}" in shipped.err
    found = project("check", "lab", *with_uv[1:-2])
    assert python.removesuffix("/.venv/bin/python") in found.out


@pytest.mark.parametrize("lacking", LACKS)
def test_what_uv_lacks_is_named_with_its_cure(
    project: Launcher, with_uv: tuple[str, ...], lacking: str
) -> None:
    files, cure = LACKS[lacking]
    for name, text in files.items():
        (project.folder / name).write_text(text)
        if not text:
            (project.folder / name).unlink()
    done = project(*with_uv, *(["cluster.setup=[]"] if lacking == "uv" else []))
    assert done.code == 3, done
    assert cure in done.err
