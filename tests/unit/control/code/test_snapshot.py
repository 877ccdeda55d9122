"""Snapshots of the code: hashed in the background, and read as they were hashed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runner.control.code.snapshot import Snapshot
from runner.core.errors import NotReady
from runner.core.spec import Deploy, Node, Spec, Task
from runner.core.wire.files import Folder, Symlink, release_hash
from tests.golden.builders import spec


@pytest.fixture
def project(tmp_path: Path) -> Path:
    top = tmp_path / "project"
    (top / "sub" / "deeper").mkdir(parents=True)
    (top / "train.py").write_text("print()\n")
    (top / "sub" / "eval.py").write_bytes(b"x" * 1000)
    (top / "link.py").symlink_to("train.py")
    return top


def asked(target: str = "train.py") -> Spec:
    task = Task(name="train", kind="script", target=target)
    return spec(Node("a", "10.0.0.1"), task=task, deploy=Deploy(enabled=True))


def test_manifest_is_what_is_there(project: Path) -> None:
    """Every file with its size and permissions, every folder, every link to the letter."""
    (project / "train.py").chmod(0o750)
    (project / "sub/eval.py").chmod(0o644)
    (project / "sub").chmod(0o700)

    manifest = Snapshot.take(asked(), project).manifest

    assert manifest.links == (Symlink("link.py", "train.py"),)
    assert manifest.folders[0] == Folder("sub", 0o700)
    assert [(file.path, file.mode, file.size) for file in manifest.files] == [
        ("sub/eval.py", 0o644, 1000),
        ("train.py", 0o750, 8),
    ]
    assert not list(manifest.problems())


def test_same_code_is_the_same_release(project: Path) -> None:
    """Times do not count, content does."""
    first = Snapshot.take(asked(), project)
    assert first.manifest.files  # it is read by now
    os.utime(project / "train.py", (0, 0))
    second = Snapshot.take(asked(), project)
    assert first.code == second.code
    assert first.code.release == release_hash(first.encoded)

    (project / "train.py").write_text("print(1)")
    assert Snapshot.take(asked(), project).code.release != first.code.release


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"y" * 1000, "changed while it was read"),
        (b"x" * 1001, "changed while it was read"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["other", "longer", "gone"],
)
def test_change_after_hashing_is_told(project: Path, content: bytes | None, why: str) -> None:
    """Hosts never get a file that is not what the release is named by."""
    snapshot = Snapshot.take(asked(), project)
    file = snapshot.manifest.files[0]
    (project / file.path).unlink()
    if content is not None:
        (project / file.path).write_bytes(content)

    with pytest.raises(NotReady) as caught:
        list(snapshot.read(file))
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
    (project / "sub" / "__main__.py").touch()

    code = Snapshot.take(asked(target), project).code

    assert (code.subdirectory, code.script) == ("", script)


def test_top_folders_that_stay_here_are_noted(project: Path) -> None:
    """Not those of tools, environments and records; nor what is ignored further down."""
    (project / ".runnerignore").write_text("data\nenvironment\nbuild\ndeeper\n")
    for name in ("data", "build", ".cache", "environment", "sub/data"):
        (project / name).mkdir()
        (project / name / "pyvenv.cfg" if name == "environment" else project / name / "x").touch()

    assert Snapshot.take(asked(), project).notes == ("ignored or empty, so not pushed: data/",)
