"""Files of a project that are pushed, and files that are not code."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from runner.control.code.worktree import WorkTree, head_commit, scan
from runner.core.errors import ConfigError


@pytest.fixture(autouse=True)
def plain_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nobody's own configuration of git decide."""
    for name in ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"):
        monkeypatch.setenv(name, os.devnull)


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.templateDir=")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def make(folder: Path, *paths: str, **contents: str) -> Path:
    """Make empty files, and folders (which end with "/"); then files with content."""
    folder.mkdir(exist_ok=True, parents=True)
    for path in paths:
        target = folder / path
        (target if path.endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
        if not path.endswith("/"):
            target.touch()
    for name, text in contents.items():
        (folder / name.replace("__", "/").replace("_dot_", ".")).write_text(text)
    return folder


def told(found: WorkTree) -> list[str]:
    """All that is pushed: folders with "/", links with "@"."""
    ends = {stat.S_IFDIR: "/", stat.S_IFLNK: "@", stat.S_IFREG: ""}
    return sorted(path + ends[stat.S_IFMT(each.st_mode)] for path, each in found.entries.items())


def rules(folder: Path, text: str, name: str = ".gitignore") -> None:
    (folder / name).write_text(text)


ODD = (":(glob)", ":!x", "-rf", " sp ", "new\nline", "a\\b", '"q"', "..data", "ta\tb", "\udcff")


def test_all_but_caches_is_pushed(tmp_path: Path) -> None:
    """Also links; no environment, empty folder or pipe, nothing that hides itself."""
    make(tmp_path, "a.py", "d/b.py", "empty/", "__pycache__/x", ".venv/x", ".hg/x", ".svn/x")
    make(tmp_path, "env/pyvenv.cfg", "env/lib/x.py", "cache/x", "deep/er/empty/")
    rules(tmp_path / "cache", "# made by a tool\n*\n")
    make(tmp_path, "ops/run.py", "ops/huge.bin")
    rules(tmp_path / "ops", "*\n!*.py\n")
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "dangling").symlink_to("/nowhere")
    os.mkfifo(tmp_path / "pipe")  # reading it would never end

    there = "a.py d/ d/b.py dangling@ link@ ops/ ops/run.py"
    assert told(scan(tmp_path)) == there.split()


@pytest.mark.parametrize("name", [".gitignore", ".runnerignore"])
@pytest.mark.parametrize(
    ("text", "pushed"),
    [
        ("*.log\n!keep.log\n", "data/ data/c data/data data/keep.log data2"),
        ("\ufeffdata\r\n\r\n", "data2"),
    ],
)
def test_ignore_files_mean_what_git_makes_of_them(
    tmp_path: Path, name: str, text: str, pushed: str
) -> None:
    """Whether there is git or not; a line that means nothing is passed over."""
    make(tmp_path, "data/a.log", "data/b.log/x", "data/c", "data/keep.log", "data/data", "data2")
    rules(tmp_path, text, name)

    assert told(scan(tmp_path)) == sorted([name, *pushed.split()])


def test_links_into_the_tree_work_there(tmp_path: Path) -> None:
    """By an absolute path, too; those that lead to what is not pushed are named."""
    project = make(tmp_path / "project", "conf/a.yaml", "big/data", "bin/")
    rules(project, "big/\n")
    for name, target in {
        "near": "conf",
        "far": f"{project}/conf/a.yaml",
        "bin/through": "../near/a.yaml",
        "bin/up": f"{project}/near",
        "ignored": "big",
        "outside": "/etc/hosts",
    }.items():
        (project / name).symlink_to(target)

    found = scan(project)

    there = {"near": "conf", "far": "conf/a.yaml", "bin/through": "../near/a.yaml"}
    there["bin/up"] = "../near"
    assert {path: found.links[path] for path in there} == there
    assert found.notes[0].endswith("what these lead to: ignored to big, outside to /etc/hosts")


def test_pointer_of_git_lfs_is_named(tmp_path: Path) -> None:
    """Ranks would fail on what looks like a damaged file."""
    head = "version https://git-lfs.github.com/spec/v1\n"
    pointer = f"{head}oid sha256:{'a' * 64}\nsize 123456789\n"
    make(tmp_path, weights_dot_pt=pointer, notes_dot_txt=head * 20)

    (note,) = scan(tmp_path).notes
    assert note.endswith("has not fetched their contents (git lfs pull): weights.pt")


def test_git_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it nobody could say which files are ignored."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"deploy: there is no git on PATH.*\n *install git"):
        scan(make(tmp_path, "a.py"))


def test_no_record_is_code(tmp_path: Path) -> None:
    """Each has an ignore file of its own; nor is the link to the last one, which may dangle."""
    project = make(tmp_path, "a.py", "runs/tb/events", "plans/plan.json")
    git(project, "init", "-q")
    git(project, "add", ".")
    git(project, "commit", "-qm", "x")
    before = scan(project)
    commit = head_commit(before)
    assert len(commit) == 40
    for folder in ("runs/first", "runs/.objects"):
        make(project / folder, "logs/n1/rank_0.out", "plan.json", _dot_gitignore="*\n")
    (project / "runs/latest").symlink_to("removed")

    found = scan(project)

    assert told(found) == told(before)
    assert head_commit(found) == commit


def test_home_is_never_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All keys and mails of somebody are no project, also when their home is a work tree."""
    monkeypatch.setenv("HOME", str(tmp_path))
    make(tmp_path, ".ssh/id_ed25519", "project/a.py")
    git(tmp_path, "init", "-q")
    with pytest.raises(ConfigError, match="so it is not pushed\n.*cluster.project=PATH"):
        scan(tmp_path / "project")


def test_git_says_what_belongs_to_it(tmp_path: Path) -> None:
    """Tracked or not ignored, as it is now, from the top of the work tree; no empty folders.

    `.runnerignore` leaves out what is tracked, too: a data set in the repository need not travel.
    """
    make(tmp_path, "tracked", "tracked.log", "gone", "file", "d/deep/x", "ignored/x", "was/x")
    make(tmp_path, "data/x", "data/y/z")
    git(tmp_path, "init", "-q")
    rules(tmp_path, "*.log\nignored/\n.env\n")
    rules(tmp_path, "/data/\n", ".runnerignore")
    git(tmp_path, "add", "-f", ".")
    git(tmp_path, "rm", "-q", "--cached", "ignored/x")
    make(tmp_path, "new", "new.log", "empty/in/", ".env", "__pycache__/")
    (tmp_path / "gone").unlink()
    (tmp_path / "file").unlink()
    (tmp_path / "was").rename(tmp_path / "ignored/was")
    (tmp_path / "was").symlink_to("ignored/was")
    make(tmp_path, "file/now", *(f"odd/{name}" for name in ODD))

    found = scan(tmp_path / "d" / "deep")

    assert found.git
    assert found.root == tmp_path
    there = ".gitignore .runnerignore d/ d/deep/ d/deep/x file/ file/now new tracked tracked.log"
    odd = [f"odd/{name}" for name in ODD]
    assert told(found) == sorted([*there.split(), "was@", "odd/", *odd])


def test_repositories_within_belong_to_it(tmp_path: Path) -> None:
    """Submodules and clones with what they themselves track; their own ignore files count."""
    make(tmp_path, "a.py", "sub/lib.py", "bare/", "clone/b.py", "clone/c.log")
    for each in (tmp_path, tmp_path / "sub", tmp_path / "clone"):
        git(each, "init", "-q")
    rules(tmp_path / "clone", "*.log\n")
    for name in ("sub", "bare", "gone"):
        git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},{name}")

    found = scan(tmp_path)

    there = "a.py bare/ sub/ sub/lib.py clone/ clone/.gitignore clone/b.py"
    assert told(found) == sorted(there.split())
    assert [note.split(" is not")[0] for note in found.notes] == ["the submodule bare"]
