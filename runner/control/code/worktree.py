"""Work tree: the files of the user's project as they are now, without those that are ignored.

Git chooses them, with an empty repository where there is none. `.runnerignore` also leaves out
tracked files.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from runner.core.errors import ConfigError, Problem, reason_of
from runner.core.wire.text import join_some

IGNORE_FILE = ".runnerignore"
GIT_TIMEOUT_S = 60.0
"""How long one git command may take: the first one in a huge tree reads all of it."""

NO_CODE = (".hg", ".svn", "__pycache__", ".venv")
"""Folders without code, unless git tracks something in them."""

NO_DATA = re.compile(r"\..*|__pycache__|node_modules|.*\.egg-info|build|dist")
"""Folders that no program opens by itself."""

LATEST_RUN = "runs/latest"
"""The link to a record; records have a `.gitignore` each, and so are no code."""

LFS_HEAD = b"version https://git-lfs.github.com/spec/"
LFS_SIZES = range(100, 250)
"""What the pointer to a file begins with that git-lfs has not fetched, and how large it may be."""

HEAD = 4096  # how much of a file is read to see what it is
GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""What git sets for its hooks, which would lead other git commands astray."""


@dataclass
class WorkTree:
    """The files, folders and links below `root`, by relative paths with "/"."""

    root: Path  # absolute
    git: bool  # it is a repository
    entries: dict[str, os.stat_result] = field(default_factory=dict)  # by `os.lstat`
    links: dict[str, str] = field(default_factory=dict)  # where they lead on hosts
    leading_out: list[str] = field(default_factory=list)  # links to what is not pushed
    notes: list[str] = field(default_factory=list)  # such as a submodule that is not checked out

    @property
    def sizes(self) -> dict[str, int]:
        entries = self.entries.items()
        return {path: entry.st_size for path, entry in entries if stat.S_ISREG(entry.st_mode)}


def scan(cwd: Path) -> WorkTree:
    """Return the tree that `cwd` belongs to; raise ConfigError if it cannot be listed."""
    top = _git_top(cwd)
    tree = WorkTree(top or cwd, git=top is not None)
    root = tree.root
    if root in (Path.home(), Path("/")):
        advice = "run git init in" if top else "stand in"
        hint = f"{advice} the project's own folder; or cluster.project=PATH names it on the hosts"
        message = f"{root} is not a project folder, so it is not pushed"
        raise ConfigError([Problem("deploy", message, hint)])
    if top:
        paths = dict.fromkeys(_list_files(tree, ""))
    else:
        with _empty_repository() as empty:
            options = [f"--git-dir={empty}/.git", f"--work-tree={root}"]
            paths = dict.fromkeys(_list_files(tree, "", options))
    for path in _left_out(root, [*paths]):
        del paths[path]
    for path in paths:
        _add(tree, path)
    _add_notes(tree)
    return tree


def project_name(cwd: Path) -> str:
    """Return the name of the top folder of a project."""
    return (_git_top(cwd) or cwd).name


def why_absent(folder: Path, path: str) -> str:
    """Return why a file below a folder is not pushed, "" if it is not there."""
    return f"git or {IGNORE_FILE} leaves it out" if (folder / path).exists() else ""


def head_commit(tree: WorkTree) -> str:
    """Return the commit that is checked out, "+" added when code differs; "" without git."""
    if not tree.git:
        return ""
    status_args = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    try:
        head = _run_git(tree.root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        changes = filter(None, _run_git(tree.root, *status_args).split("\0"))
        return head + "+" * any(not PurePosixPath(line[3:]).match(LATEST_RUN) for line in changes)
    except ConfigError:
        return ""


def _add(tree: WorkTree, path: str) -> None:
    try:
        status = os.lstat(tree.root / path)
    except (FileNotFoundError, NotADirectoryError):  # tracked by git, and removed here
        return
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        hint = f"leave it out: add /{path} to {IGNORE_FILE}"
        raise ConfigError([Problem("deploy", message, hint)]) from error
    parents: dict[str, os.stat_result] = {}
    for parent in map(str, PurePosixPath(path).parents):
        if parent == ".":
            break
        parents[parent] = tree.entries.get(parent) or os.lstat(tree.root / parent)
        if not stat.S_ISDIR(parents[parent].st_mode):  # a tracked folder is a link now
            return
    if stat.S_ISLNK(status.st_mode):
        if PurePosixPath(path).match(LATEST_RUN):
            return
        tree.links[path] = _target(tree.root, path)
    if stat.S_IFMT(status.st_mode) in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
        tree.entries[path] = status
        tree.entries.update(parents)


def _target(root: Path, path: str) -> str:
    """Return where a link leads: by a relative path, if that is in the tree."""
    target = os.readlink(root / path)  # noqa: PTH115 (a Path would lose slashes)
    for top in (root, root.resolve()):
        if PurePosixPath(os.path.normpath(target)).is_relative_to(top):
            return os.path.relpath(target, (top / path).parent)
    return target


def _add_notes(tree: WorkTree) -> None:
    """Note links that lead to what is not pushed, pointers of git-lfs, and folders that stay."""
    top = tree.root.resolve()
    for path in tree.links:
        place = os.path.relpath(os.path.realpath(tree.root / path), top)
        if place != "." and place not in tree.entries:
            tree.leading_out.append(path)
    if tree.leading_out:
        named = join_some([f"{path} to {tree.links[path]}" for path in tree.leading_out])
        tree.notes.append(f"links are pushed, but not what these lead to: {named}")
    pointers = []
    for path, size in tree.sizes.items():
        if size in LFS_SIZES and _head(tree.root / path).startswith(LFS_HEAD):
            pointers.append(path)
    if pointers:
        message = "pushed as pointers, since git-lfs has not fetched their contents"
        tree.notes.append(f"{message} (git lfs pull): {join_some(pointers)}")
    data = []
    for entry in sorted(tree.root.iterdir()):
        if not entry.is_dir() or entry.name in tree.entries or NO_DATA.fullmatch(entry.name):
            continue
        ignores_itself = b"*" in _head(entry / ".gitignore").split(b"\n")  # as caches and records
        if not ignores_itself and not (entry / "pyvenv.cfg").is_file():
            data.append(f"{entry.name}/")
    if data:
        tree.notes.append(f"ignored or empty, so not pushed: {join_some(data)}")


def _head(path: Path) -> bytes:
    """Return the beginning of a file, nothing of one that cannot be read: its hashing tells why."""
    try:
        with path.open("rb") as file:
            return file.read(HEAD)
    except OSError:
        return b""


# Git


def _git_top(cwd: Path) -> Path | None:
    if not any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        return None
    return Path(_run_git(cwd, "rev-parse", "--show-toplevel").rstrip("\n"))


@contextmanager
def _empty_repository() -> Iterator[Path]:
    """Yield an empty folder with an empty repository."""
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="runner-git-")))
            for name in ("objects", "refs"):
                (folder / ".git" / name).mkdir(parents=True)
            (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
        except OSError as error:
            hint = "free some room there, or set TMPDIR"
            raise ConfigError([Problem(tempfile.gettempdir(), reason_of(error), hint)]) from error
        yield folder


def _run_git(
    folder: Path,
    command: str,
    *args: str,
    options: Sequence[str] = (),
    stdin: str = "",
    ok_codes: tuple[int, ...] = (0,),
) -> str:
    """Return the output of a git command, as `os.fsdecode` returns it; raise ConfigError."""
    hint = "cluster.project=PATH runs code that is on the hosts already"
    env = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    try:
        result = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *options, command, *args],
            input=os.fsencode(stdin),
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            env={**env, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError as error:
        message = f"there is no git on PATH, by whose rules the files of {folder} are chosen"
        raise ConfigError([Problem("deploy", message, f"install git; or {hint}")]) from error
    except subprocess.TimeoutExpired as error:
        message = f"git {command} in {folder} did not answer within {GIT_TIMEOUT_S:.0f} s"
        raise ConfigError([Problem("deploy", message, hint)]) from error
    if result.returncode not in ok_codes:
        stderr = os.fsdecode(result.stderr).strip()
        raise ConfigError([Problem("deploy", f"git {command} in {folder} failed", stderr)])
    return os.fsdecode(result.stdout)


def _list_files(tree: WorkTree, prefix: str, options: Sequence[str] = ()) -> Iterator[str]:
    """Yield the files of the repository at `prefix` ("" or "sub/"), and of those within it."""
    root = tree.root / prefix
    args = ["-z", "-co", "--exclude-standard", *(f"--exclude={name}/" for name in NO_CODE)]
    listed = _run_git(root, "ls-files", *args, options=options).split("\0")
    paths = [path.rstrip("/") for path in listed if path]  # a repository within ends with a slash
    environments = {path.rpartition("/")[0] for path in paths if path.endswith("/pyvenv.cfg")}
    for path in paths:
        if not environments.isdisjoint(map(str, PurePosixPath(path).parents)):
            continue
        yield prefix + path
        folder = root / path
        if not folder.is_dir() or folder.is_symlink():
            continue
        if (folder / ".git").exists():
            yield from _list_files(tree, f"{prefix}{path}/")
        elif not any(folder.iterdir()):
            message = "is not checked out and is pushed as an empty folder"
            remedy = "git submodule update --init"
            tree.notes.append(f"the submodule {prefix}{path} {message} ({remedy})")


def _left_out(root: Path, paths: Sequence[str]) -> list[str]:
    """Return the paths that `.runnerignore` leaves out, by git in a folder without other rules."""
    if not (root / IGNORE_FILE).is_file():
        return []
    with _empty_repository() as empty:
        shown = _run_git(
            empty,
            "check-ignore",
            "-z",
            "--stdin",
            "--no-index",
            options=["-c", f"core.excludesFile={root / IGNORE_FILE}"],
            stdin="\0".join(paths),
            ok_codes=(0, 1),
        )
    return [path for path in shown.split("\0") if path]
