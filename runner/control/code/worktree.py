"""Work tree: the files of the user's project as they are now, without those that are ignored.

In a git work tree, git lists what is tracked or not ignored, submodules included; elsewhere the
ignore files decide, in git's syntax. `.runnerignore` at the top also leaves out tracked files.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from runner.core.errors import ConfigError, Problem

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

IGNORE_FILE = ".runnerignore"
ALL_IGNORE_FILES = (".gitignore", IGNORE_FILE)
MAX_ENTRIES = 200_000
"""More files and folders than a project has: it is probably a folder of data."""

MOST_LISTED = 10
"""The number of files and folders that a message about a large tree names."""

GIT_TIMEOUT_S = 60.0
"""How long one git command may take: the first one in a huge tree reads all of it."""

IGNORED_FOLDERS = (".git", ".hg", ".svn", "__pycache__", ".venv")
"""Folders without code, unless git tracks something in them."""

GITLINK_MODE = "160000"
"""The mode of a submodule in git's index."""

LATEST_RUN = Path("runs", "latest")
"""The link to a record; records have a `.gitignore` each, and so are no code."""

GIT_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
"""What git sets for its hooks, which would lead other git commands astray."""


@dataclass
class WorkTree:
    """The files below `root`: relative paths with "/", each with its `os.lstat`."""

    root: Path  # absolute
    git: bool  # git listed the files
    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, os.stat_result] = field(default_factory=dict)
    folders: dict[str, os.stat_result] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # such as a submodule that is not checked out
    latest_run: str = ""  # the link to a record, which is no part of it

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(status.st_size for status in self.files.values())


def scan(cwd: Path) -> WorkTree:
    """Return the tree that `cwd` belongs to; raise ConfigError if it cannot be listed."""
    repo_root = _git_top(cwd)
    if (repo_root or cwd) in (Path.home(), Path("/")):
        advice = "run git init in" if repo_root else "stand in"
        hint = f"{advice} the project's own folder; or cluster.project=PATH names it on the hosts"
        message = f"{repo_root or cwd} is not a project folder, so it is not pushed"
        raise ConfigError([Problem("deploy", message, hint)])
    tree = WorkTree(repo_root or cwd, git=repo_root is not None)
    paths = _list_git_files(tree, "") if tree.git else _walk(tree, "", ())
    own_patterns = _load_patterns(tree.root / IGNORE_FILE)
    link = cwd.resolve() / LATEST_RUN
    if link.is_symlink():
        tree.latest_run = os.path.relpath(link, tree.root.resolve())
    for count, path in enumerate(path for path in paths if path != tree.latest_run):
        if count == MAX_ENTRIES:
            message = f"{tree.root} has more than {MAX_ENTRIES:,} files and folders to push"
            hint = f"leave out what is not code ({' or '.join(ALL_IGNORE_FILES)})"
            raise ConfigError([Problem("deploy", message, hint)])
        _add_path(tree, path, own_patterns)
    return tree


def why_absent(folder: Path, path: str) -> str:
    """Return which rule ignores a file below a folder, "" for none, or no file."""
    if not (folder / path).exists():
        return ""
    top = _git_top(folder)
    root = (top or folder).resolve()
    name = os.path.relpath(folder.resolve() / path, root)
    if (patterns := _load_patterns(root / IGNORE_FILE)) and patterns.match_file(name):
        return f"{root / IGNORE_FILE} leaves it out"
    if top is None:
        return f"a {' or '.join(ALL_IGNORE_FILES)} on the way to it leaves it out"
    shown = _run_git(root, "check-ignore", "-v", "--", name, ok_codes=(0, 1, 128))
    rule = re.match(r"(.+?):(\d+):", shown)  # none in a submodule
    return f"line {rule[2]} of {rule[1]} leaves it out" if rule else ""


def head_commit(tree: WorkTree) -> str:
    """Return the commit that is checked out, "+" added when code differs; "" without git."""
    if not tree.git:
        return ""
    status_args = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    try:
        head = _run_git(tree.root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        changes = filter(None, _run_git(tree.root, *status_args).split("\0"))
        return head + "+" * any(line[3:] != tree.latest_run for line in changes)
    except ConfigError:
        return ""


def largest(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the largest files and folders at the top, or the file that makes up most of one."""
    folders: dict[str, dict[str, int]] = defaultdict(dict)
    for path, size in sizes.items():
        folders[path.partition("/")[0]][path] = size
    entries = []
    for name, files in folders.items():
        total = sum(files.values())
        path = max(files, key=files.__getitem__)
        entries.append((path if files[path] * 2 > total else f"{name}/", total))
    return sorted(entries, key=lambda entry: (-entry[1], entry[0]))[:MOST_LISTED]


def _add_path(tree: WorkTree, path: str, ignored: GitIgnoreSpec | None) -> None:
    """Add one path that is not ignored, and the folders above it."""
    try:
        status = os.lstat(tree.root / path)
    except (FileNotFoundError, NotADirectoryError):  # tracked by git, and removed here
        return
    except OSError as error:
        raise _unreadable_error(path, error) from error
    if ignored and ignored.match_file(f"{path}/" if stat.S_ISDIR(status.st_mode) else path):
        return
    parents: dict[str, os.stat_result] = {}
    for parent in map(str, PurePosixPath(path).parents):
        if parent == "." or parent in tree.folders:
            break
        parents[parent] = os.lstat(tree.root / parent)
        if not stat.S_ISDIR(parents[parent].st_mode):  # a tracked folder is a link now
            return
    kinds = {stat.S_IFREG: tree.files, stat.S_IFLNK: tree.links, stat.S_IFDIR: tree.folders}
    kind = kinds.get(stat.S_IFMT(status.st_mode))
    if kind is None:
        tree.notes.append(f"{path} is not a file, folder or link; it is not pushed")
        return
    kind[path] = status
    tree.folders.update(parents)


def _unreadable_error(path: str, error: OSError) -> ConfigError:
    message = f"{path} cannot be read: {error.strerror}"
    return ConfigError([Problem("deploy", message, f"leave it out: add /{path} to {IGNORE_FILE}")])


# With git


def _git_top(cwd: Path) -> Path | None:
    if not any((folder / ".git").exists() for folder in (cwd, *cwd.parents)):
        return None
    return Path(_run_git(cwd, "rev-parse", "--show-toplevel").rstrip("\n"))


def _run_git(folder: Path, *args: str, ok_codes: tuple[int, ...] = (0,)) -> str:
    """Return the output of a git command, as `os.fsdecode` returns it; raise ConfigError."""
    hint = "cluster.project=PATH runs code that is on the hosts already"
    env = {name: value for name, value in os.environ.items() if name not in GIT_VARIABLES}
    try:
        result = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
            env={**env, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError as error:
        message = f"{folder} is a git work tree, and there is no git on PATH to list its files"
        raise ConfigError([Problem("deploy", message, f"install git; or {hint}")]) from error
    except subprocess.TimeoutExpired as error:
        message = f"git {args[0]} in {folder} did not answer within {GIT_TIMEOUT_S:.0f} s"
        raise ConfigError([Problem("deploy", message, hint)]) from error
    if result.returncode not in ok_codes:
        stderr = os.fsdecode(result.stderr).strip()
        raise ConfigError([Problem("deploy", f"git {args[0]} in {folder} failed", stderr)])
    return os.fsdecode(result.stdout)


def _list_git_files(tree: WorkTree, prefix: str) -> Iterator[str]:
    """Yield the files of the repository at `prefix` ("" or "sub/"), and of those within it."""
    root = tree.root / prefix
    listed: set[str] = set()
    nested: list[str] = []
    for line in filter(None, _run_git(root, "ls-files", "-z", "--stage").split("\0")):
        info, _, path = line.partition("\t")
        (nested.append if info.startswith(GITLINK_MODE) else listed.add)(path)
    untracked = _run_git(root, "ls-files", "-zo", "--exclude-standard").split("\0")
    for path in _without_environments(untracked):
        if path.endswith("/"):  # a repository within, not a submodule
            nested.append(path.rstrip("/"))
        else:
            listed.add(path)
    yield from (prefix + path for path in listed)
    for path in nested:
        yield prefix + path
        if (root / path).is_symlink() or not (root / path).is_dir():
            continue
        if (root / path / ".git").exists():
            yield from _list_git_files(tree, f"{prefix}{path}/")
        else:
            message = "is not checked out and is pushed as an empty folder"
            remedy = "git submodule update --init"
            tree.notes.append(f"the submodule {prefix}{path} {message} ({remedy})")


def _without_environments(untracked: Iterable[str]) -> Iterator[str]:
    """Leave out virtual environments and caches that no ignore file names."""
    paths = [path for path in untracked if path]
    environments = {path.rpartition("/")[0] for path in paths if path.endswith("/pyvenv.cfg")}
    for path in paths:
        is_ignored = not set(IGNORED_FOLDERS).isdisjoint(path.split("/"))
        if not is_ignored and environments.isdisjoint(map(str, PurePosixPath(path).parents)):
            yield path


# Without git


def _walk(
    tree: WorkTree, folder: str, specs: tuple[tuple[str, GitIgnoreSpec], ...]
) -> Iterator[str]:
    """Yield what is below `folder` and not ignored; `specs` are the ignore files above it."""
    for name in ALL_IGNORE_FILES:
        if spec := _load_patterns(tree.root / folder / name):
            specs = (*specs, (f"{folder}/" if folder else "", spec))
    try:
        with os.scandir(tree.root / folder) as iterator:
            entries = sorted(iterator, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable_error(folder or str(tree.root), error) from error
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if _is_ignored(f"{path}/" if is_folder else path, specs):
            continue
        if is_folder and (entry.name in IGNORED_FOLDERS or is_no_code(tree.root / path)):
            continue
        yield path
        if is_folder:
            yield from _walk(tree, path, specs)


def _is_ignored(path: str, specs: tuple[tuple[str, GitIgnoreSpec], ...]) -> bool:
    """Return whether the nearest ignore file with a matching rule ignores a path."""
    for base, spec in reversed(specs):
        verdict = spec.check_file(path.removeprefix(base)).include
        if verdict is not None:
            return verdict
    return False


def is_no_code(folder: Path) -> bool:
    """Return whether a folder is an environment, or ignores all of it as caches and records do."""
    try:
        if (folder / "pyvenv.cfg").is_file():
            return True
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return False
    return next((line.strip() for line in lines if line and line[0] != "#"), "") == "*"


def _load_patterns(file: Path) -> GitIgnoreSpec | None:
    try:
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError:
        return None
    # Imported here, because git reads the files of a git work tree itself.
    from pathspec import GitIgnoreSpec  # noqa: PLC0415

    def is_pattern(line: str) -> bool:  # git skips invalid ones
        try:
            GitIgnoreSpec.from_lines([line])
        except (ValueError, re.error):
            return False
        return True

    return GitIgnoreSpec.from_lines(line for line in text.split("\n") if is_pattern(line))
