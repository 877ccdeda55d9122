"""Snapshots of the code: hashed in the background, and read as they were hashed."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from runner.control.code import code_store, worktree
from runner.control.code.snapshot import Snapshot
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.release import Folder, Symlink, release_hash
from runner.core.model.spec import Deploy, Node, Spec, Task
from tests.golden.builders import SHIPPED, spec


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project."""
    top = tmp_path / "project"
    (top / "sub" / "deeper").mkdir(parents=True)
    (top / "train.py").write_text("print()\n")
    (top / "sub" / "eval.py").write_bytes(b"x" * 1000)
    (top / "link.py").symlink_to("train.py")
    return top


def asked(target: str = "train.py", *, task: Task | None = None, max_mb: int = 200) -> Spec:
    """What a user wants to run."""
    wanted = task or Task("train", "script", target)
    return spec(Node("a", "10.0.0.1"), task=wanted, deploy=Deploy(enabled=True, max_mb=max_mb))


def refused(spec: Spec, here: Path) -> Problem:
    """The one problem the user is told."""
    with pytest.raises(ConfigError) as caught:
        Snapshot.take(spec, here)
    (problem,) = caught.value.problems
    return problem


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


def test_file_is_read_in_chunks(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However large a file, little of it is in memory."""
    monkeypatch.setattr(code_store, "CHUNK", 300)
    snapshot = Snapshot.take(asked(), project)

    chunks = list(snapshot.read(snapshot.manifest.files[0]))

    assert [len(chunk) for chunk in chunks] == [300, 300, 300, 100]
    assert b"".join(chunks) == b"x" * 1000


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"y" * 1000, "changed while it was read"),
        (b"x" * 999, "changed while it was read"),
        (b"x" * 1001, "changed while it was read"),
        (None, "cannot be read: No such file or directory"),
    ],
    ids=["other", "shorter", "longer", "gone"],
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


def test_file_that_vanishes_before_hashing_is_told(project: Path) -> None:
    """An editor may replace a file at any moment."""
    found = worktree.scan(project)
    (project / "train.py").unlink()

    with pytest.raises(NotReady) as caught:
        Snapshot(found, project, "").manifest  # noqa: B018 (it waits)
    assert caught.value.problems[0].message.startswith("train.py cannot be read: No such")


def test_file_that_grows_while_hashed_is_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that is written to belongs to no release."""
    real = os.fstat

    def growing(descriptor: int) -> os.stat_result:
        with (project / "train.py").open("a") as file:
            file.write("more")
        return real(descriptor)

    found = worktree.scan(project)
    monkeypatch.setattr(os, "fstat", growing)

    with pytest.raises(NotReady) as caught:
        Snapshot(found, project, "").code  # noqa: B018 (it waits)
    assert caught.value.problems[0].message == "train.py changed while it was read"


def test_failed_hashing_is_no_empty_release(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the background, nobody launches with nothing."""

    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(os, "readlink", fail)
    snapshot = Snapshot.take(asked(), project)

    for _ in range(2):
        with pytest.raises(MemoryError):
            snapshot.code  # noqa: B018 (it waits)


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


def test_path_through_a_link_is_the_same_place(project: Path) -> None:
    """A home that is a link does not put a script outside of the project."""
    other = project.parent / "other"
    other.symlink_to(project)

    assert Snapshot.take(asked(f"{other}/sub/eval.py"), project).code.script == "sub/eval.py"


def test_folder_within_a_work_tree_is_kept(project: Path) -> None:
    """Ranks begin where the user stands."""
    found = replace(worktree.scan(project), git=False)

    assert Snapshot(found, project / "sub" / "deeper", "").code.subdirectory == "sub/deeper"
    assert Snapshot(found, project, "").code.subdirectory == ""


def test_missing_script_is_told_where_it_is(project: Path) -> None:
    """Standing one folder too high is the usual mistake."""
    problem = refused(asked("eval.py"), project)

    assert (problem.subject, problem.message) == (
        "task.script",
        f"there is no eval.py in {project}",
    )
    assert problem.hint == "there is sub/eval.py"
    assert "relative to the current folder" in refused(asked("nowhere.py"), project).hint


@pytest.mark.parametrize(
    ("target", "is_missing"), [("sub.eval", False), ("train", False), ("trian.main", True)]
)
def test_a_module_that_is_not_pushed_is_told(project: Path, target: str, is_missing: bool) -> None:
    """Before the start: it may be installed on the hosts, or misspelt."""
    spec = replace(asked(), task=Task("t", "module", target))
    notes = Snapshot.take(spec, project).notes

    assert ("task.module: the pushed code has no trian" in " ".join(notes)) == is_missing


def test_ignored_script_is_told(project: Path) -> None:
    """It is here, and would be missing on every host."""
    (project / ".gitignore").write_text("train.py\n")

    problem = refused(asked(), project)

    assert "it is ignored" in problem.message
    assert problem.hint == "a .gitignore or .runnerignore on the way to it leaves it out"


def test_a_folder_is_a_program_only_with_a_main(project: Path) -> None:
    """As for Python itself."""
    (project / "tool").mkdir()
    (project / "tool" / "x.py").touch()
    assert refused(asked("tool"), project).message == "tool is a folder, and has no __main__.py"
    (project / "tool" / "__main__.py").touch()
    assert Snapshot.take(asked("tool"), project).manifest.size >= 0


def test_script_outside_of_the_project_is_told(project: Path) -> None:
    """It would not be pushed."""
    problem = refused(asked("../other.py"), project)

    assert "outside of" in problem.message
    assert "absolute path" in problem.hint


@pytest.mark.parametrize(
    "task", [SHIPPED, Task("m", "module", "no.such"), Task("c", "command", "x")]
)
def test_what_is_no_script_of_the_user_is_not_looked_for(project: Path, task: Task) -> None:
    """A module or a program is the hosts' to find."""
    assert Snapshot.take(asked(task=task), project).code.script == ""


def test_too_much_is_told_with_what_it_is(project: Path) -> None:
    """Before anything is read or anybody is contacted; at the limit is not beyond it."""
    with (project / "weights.bin").open("wb") as file:
        file.truncate(3_000_000 - 1008)
    assert Snapshot.take(asked(max_mb=3), project).manifest.size == 3_000_000

    problem = refused(asked(max_mb=2), project)

    assert problem.subject == "deploy.max_mb"
    assert problem.message == (f"{project} has 3.0 MB to push, more than 2 MB; most of it is:")
    assert problem.hint.split("\n")[0] == "       3.0 MB  weights.bin"
    assert "add it to .runnerignore\n" in problem.hint
    assert problem.hint.endswith("or raise deploy.max_mb")
