"""Snapshots of the code: hashed in the background, and read as they were hashed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from runner.control.code.snapshot import Snapshot
from runner.core.errors import ConfigError, NotReady
from runner.core.spec import Deploy, Node, Spec, Task
from tests.golden.builders import spec
from tests.unit.control.code.test_worktree import make


@pytest.fixture
def project(tmp_path: Path) -> Path:
    top = make(tmp_path / "project", "sub/", train_dot_py="print()\n", sub__eval_dot_py="x" * 1000)
    (top / "link.py").symlink_to("train.py")
    return top


def asked(target: str = "train.py") -> Spec:
    task = Task(name="train", kind="script", target=target)
    return spec(Node("a", "10.0.0.1"), task=task, deploy=Deploy(enabled=True))


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"y" * 1000, "changed while it was read"),
        (b"x" * 1001, "changed while it was read"),
        (None, "cannot be read: No such file or directory"),
    ],
)
def test_change_after_hashing_is_told(project: Path, content: bytes | None, why: str) -> None:
    """Hosts never get a file that is not what the release is named by."""
    release = Snapshot(asked(), project).release()
    file = release.manifest.files[0]
    (project / file.path).unlink()
    if content is not None:
        (project / file.path).write_bytes(content)

    with pytest.raises(NotReady) as caught:
        list(release.read(file))
    (problem,) = caught.value.problems
    assert problem.message == f"sub/eval.py {why}"
    assert "add /sub/eval.py to .runnerignore" in problem.hint


@pytest.mark.parametrize(
    ("target", "script"),
    [
        ("train.py", ""),
        ("./sub/eval.py", ""),
        ("link.py", ""),
        ("sub", ""),  # Python runs its __main__.py
        ("{top}/sub/eval.py", "sub/eval.py"),
        ("/opt/on/the/hosts.py", ""),
    ],
)
def test_script_is_found_where_the_ranks_run(project: Path, target: str, script: str) -> None:
    """A path of this machine becomes one within the release; one of the hosts stays."""
    target = target.format(top=project)
    code = Snapshot(asked(target), project).code

    assert (code.subdirectory, code.script) == ("", script)


def test_top_folders_that_stay_here_are_noted(project: Path) -> None:
    """Not those of tools, environments and records; nor what is ignored further down."""
    (project / ".runnerignore").write_text("data\nenvironment\nbuild\n")
    for name in ("data", "build", ".cache", "environment", "sub/data"):
        (project / name).mkdir()
        (project / name / "pyvenv.cfg" if name == "environment" else project / name / "x").touch()

    assert Snapshot(asked(), project).notes == ("ignored or empty, so not pushed: data/",)


@pytest.mark.parametrize(
    ("files", "cwd", "target", "folders"),
    [
        ("train.py", "", "train.py", ()),
        ("scripts/run.py pkg/a.py", "", "scripts/run.py", (".",)),
        ("train.py src/pkg/a.py", "", "train.py", ("src",)),
        ("train.py src/__init__.py", "", "train.py", ()),
        ("exp/train.py pkg/a.py src/b.py", "exp", "train.py", ("..", "../src")),
        ("scripts/run.py test.py", "", "scripts/run.py", (".",)),
        ("scripts/run.py random.py src/b.py", "", "scripts/run.py", ("src",)),
        ("scripts/run.py logging/__init__.py", "", "scripts/run.py", ()),
        ("random.py train.py", "", "train.py", ()),
        ("scripts/run.py link.py pkg/a.py", "", "link.py", (".",)),
    ],
)
@pytest.mark.promise(14)
def test_python_looks_into_the_project_first(
    tmp_path: Path, files: str, cwd: str, target: str, folders: tuple[str, ...]
) -> None:
    """Its top and its `src/`, unless that would hide a module of the standard library."""
    (tmp_path / "link.py").symlink_to("scripts/run.py")
    make(tmp_path, *files.split())
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)

    snapshot = Snapshot(asked(target), tmp_path / cwd)

    assert snapshot.code.python_path == folders
    is_hiding = target == "scripts/run.py" and ("random" in files or "logging" in files)
    assert sum("standard library" in note for note in snapshot.notes) == is_hiding


def test_script_that_is_a_link_to_elsewhere_is_refused(project: Path) -> None:
    """It would be a link to nothing on the hosts."""
    (project / "away.py").symlink_to("/opt/here/alone.py")
    with pytest.raises(
        ConfigError, match=r"away\.py is a link to /opt/here/alone\.py, which is not"
    ):
        Snapshot(asked("away.py"), project)
