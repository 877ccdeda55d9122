"""What of the folder a user stands in is pushed: its files as they are now, less what is ignored.

In a git work tree git itself says what is tracked or not ignored, submodules included; elsewhere
the ignore files do, in git's grammar. `.runnerignore` at the top leaves out what git tracks, too.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from pathspec import GitIgnoreSpec

from runner.core.errors import ConfigError, Problem

OURS = ".runnerignore"
IGNORE_FILES = (".gitignore", OURS)
MANY = 200_000
"""Files and folders that no project has, but a folder of data may."""

GIT_S = 60.0
"""How long one question to git may take: the first one in a huge tree reads all of it."""

NEVER = (".git", ".hg", ".svn", "__pycache__", ".venv")
"""Folders that are nobody's code, unless git tracks something in them."""

GITLINK = "160000"
"""The mode of a submodule in git's index."""


@dataclass
class Tree:
    """What was found below `root`: relative paths with "/", each with its `os.lstat`.

    Attributes:
        root: The top, absolute.
        git: Whether git said what belongs to it.
        files: Regular files.
        links: Symbolic links.
        folders: All folders that are to be there, also empty ones.
        notes: What the user should hear, such as a submodule that is not checked out.
    """

    root: Path
    git: bool
    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, os.stat_result] = field(default_factory=dict)
    folders: dict[str, os.stat_result] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(found.st_size for found in self.files.values())


def survey(here: Path, leave_out: Path | None = None) -> Tree:
    """Return the tree that `here` belongs to.

    Args:
        here: The folder the user stands in.
        leave_out: A folder that is no part of it: the record of the run.

    Raises:
        ConfigError: It cannot be listed.
    """
    top = _git_top(here)
    if (top or here) in (Path.home(), Path("/")):  # with all keys and mail that are there
        own = "run git init in" if top else "stand in"
        hint = f"{own} the project's own folder; or cluster.project=PATH names it on the hosts"
        what = f"{top or here} is no project's folder to push"
        raise ConfigError([Problem("deploy", what, hint)])
    tree = Tree(top or here, git=top is not None)
    found = _ask_git(tree, "") if tree.git else _walk(tree, "", ())
    ours = _patterns(tree.root / OURS)
    outside = _below(leave_out, tree.root)
    for count, path in enumerate(found):
        if count == MANY:
            what = f"{tree.root} has more than {MANY:,} files and folders to push"
            hint = f"leave out what is no code ({' or '.join(IGNORE_FILES)})"
            raise ConfigError([Problem("deploy", what, hint)])
        hidden = outside is not None and PurePosixPath(path).is_relative_to(outside)
        if not hidden:
            _take(tree, path, ours)
    return tree


def who_ignores(tree: Tree, path: str) -> str:
    """Return where to look for the line that leaves a path out."""
    ours = _patterns(tree.root / OURS)
    if ours and ours.match_file(path):
        return f"{tree.root / OURS} leaves it out"
    if tree.git:
        root, name = shlex.quote(str(tree.root)), shlex.quote(path)
        return f"this says why: git -C {root} check-ignore -v {name}"
    return f"a {' or '.join(IGNORE_FILES)} on the way to it leaves it out"


def commit(root: Path) -> str:
    """Return the commit checked out at `root`, "+" added when files differ; "" without git."""
    try:
        head = _git(root, "rev-parse", "--verify", "--quiet", "HEAD").strip()
        return head + ("+" if _git(root, "status", "--porcelain").strip() else "")
    except ConfigError:
        return ""


def largest(sizes: Mapping[str, int], count: int = 10) -> list[tuple[str, int]]:
    """Return the files and folders that are most of a tree, largest first, none within another.

    A folder stands for what is in it, unless one thing in it is most of it.
    """
    totals: dict[str, int] = {}
    children: dict[str, set[str]] = {}
    for path, size in sizes.items():
        totals[path] = size
        child = path
        for parent in map(str, PurePosixPath(path).parents):
            totals[parent] = totals.get(parent, 0) + size
            children.setdefault(parent, set()).add(child)
            child = parent
    shown, queue = [], list(children.get(".", ()))
    while queue:
        path = queue.pop()
        biggest = max((totals[child] for child in children.get(path, ())), default=0)
        if biggest * 2 > totals[path]:
            queue += children[path]
        else:
            shown.append((path + ("/" if path in children else ""), totals[path]))
    return sorted(shown, key=lambda each: (-each[1], each[0]))[:count]


def _below(path: Path | None, root: Path) -> str | None:
    if path is None:
        return None
    real = path.resolve()
    return (
        real.relative_to(root.resolve()).as_posix() if real.is_relative_to(root.resolve()) else None
    )


def _take(tree: Tree, path: str, ignored: GitIgnoreSpec | None) -> None:
    """Note one path that is not ignored, and the folders above it."""
    try:
        found = os.lstat(tree.root / path)
    except (FileNotFoundError, NotADirectoryError):  # tracked by git, and removed here
        return
    except OSError as error:
        raise _unreadable(path, error) from error
    if ignored and ignored.match_file(f"{path}/" if stat.S_ISDIR(found.st_mode) else path):
        return
    above: dict[str, os.stat_result] = {}
    for parent in map(str, PurePosixPath(path).parents):
        if parent == "." or parent in tree.folders:
            break
        above[parent] = os.lstat(tree.root / parent)
        if not stat.S_ISDIR(above[parent].st_mode):  # a tracked folder is a link now
            return
    if stat.S_ISREG(found.st_mode):
        tree.files[path] = found
    elif stat.S_ISLNK(found.st_mode):
        tree.links[path] = found
    elif stat.S_ISDIR(found.st_mode):
        tree.folders[path] = found
    else:
        tree.notes.append(f"{path} is no file, folder or link; it is not pushed")
        return
    tree.folders.update(above)


def _unreadable(path: str, error: OSError) -> ConfigError:
    what = f"{path} cannot be read: {error.strerror}"
    return ConfigError([Problem("deploy", what, f"leave it out: add /{path} to {OURS}")])


# With git


def _git_top(here: Path) -> Path | None:
    if not any((folder / ".git").exists() for folder in (here, *here.parents)):
        return None
    return Path(_git(here, "rev-parse", "--show-toplevel").rstrip("\n"))


def _git(folder: Path, *words: str, stdin: str | None = None, codes: tuple[int, ...] = (0,)) -> str:
    """Return what git says, names as `os.fsdecode` returns them.

    Raises:
        ConfigError: There is no git, or it refuses.
    """
    hint = "cluster.project=PATH runs code that is on the hosts already"
    try:
        done = subprocess.run(  # noqa: S603
            ["git", "-C", str(folder), *words],
            input=None if stdin is None else os.fsencode(stdin),
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=GIT_S,
            check=False,
            env={**_outside_of_git(), "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0"},
        )
    except FileNotFoundError as error:
        what = f"{folder} is a git work tree, and there is no git on PATH to say what belongs to it"
        raise ConfigError([Problem("deploy", what, f"install git; or {hint}")]) from error
    except subprocess.TimeoutExpired as error:
        what = f"git {words[0]} in {folder} did not answer within {GIT_S:.0f} s"
        raise ConfigError([Problem("deploy", what, hint)]) from error
    if done.returncode not in codes:
        said = os.fsdecode(done.stderr).strip()
        raise ConfigError([Problem("deploy", f"git {words[0]} in {folder} failed", said)])
    return os.fsdecode(done.stdout)


def _outside_of_git() -> dict[str, str]:
    """Return our environment less what git tells its hooks: it means one repository, not ours."""
    told = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR")
    return {name: value for name, value in os.environ.items() if name not in told}


def _ask_git(tree: Tree, prefix: str) -> Iterator[str]:
    """Yield what belongs to the repository at `prefix` ("" or "sub/"), and to those within it."""
    root = tree.root / prefix
    listed: set[str] = set()
    inner: list[str] = []
    for line in filter(None, _git(root, "ls-files", "-z", "--stage").split("\0")):
        about, _, path = line.partition("\t")
        (inner.append if about.startswith(GITLINK) else listed.add)(path)
    untracked = _git(root, "ls-files", "-zo", "--exclude-standard").split("\0")
    for path in _code_of_somebody(untracked):
        if path.endswith("/"):  # a repository of its own that is no submodule
            inner.append(path.rstrip("/"))
        else:
            listed.add(path)
    yield from (prefix + path for path in listed)
    for path in inner:
        yield prefix + path
        if (root / path).is_symlink() or not (root / path).is_dir():
            continue
        if (root / path / ".git").exists():
            yield from _ask_git(tree, f"{prefix}{path}/")
        else:
            tree.notes.append(
                f"the submodule {prefix}{path} is not checked out and is pushed as an empty folder "
                "(git submodule update --init)"
            )
    yield from (prefix + path for path in _bare_folders(root, listed, set(inner)))


def _code_of_somebody(untracked: Iterable[str]) -> Iterator[str]:
    """Leave out virtual environments and caches that nobody told git to ignore."""
    paths = [path for path in untracked if path]
    environments = {path.rpartition("/")[0] for path in paths if path.endswith("/pyvenv.cfg")}
    for path in paths:
        above = [str(parent) for parent in PurePosixPath(path).parents]
        if not environments.intersection(above) and not set(NEVER).intersection(path.split("/")):
            yield path


def _bare_folders(root: Path, listed: set[str], inner: set[str]) -> Iterator[str]:
    """Yield the folders that git has no word for, since nothing in them is listed or ignored."""
    known = {"."} | {str(parent) for path in listed for parent in PurePosixPath(path).parents}
    todo = _reached(root, known)
    while todo:
        found = {
            child
            for folder in todo
            for child in _subfolders(root, folder)
            if child not in known and child not in inner
        }
        if not found:
            return
        asked = "\0".join(f"./{path}" for path in found)  # a bare ":(x" would be git's magic
        answer = _git(root, "check-ignore", "-z", "--stdin", stdin=asked, codes=(0, 1))
        todo = found - {path.removeprefix("./") for path in answer.split("\0")}
        known |= found
        yield from todo


def _reached(root: Path, folders: set[str]) -> set[str]:
    """Return those that are no symbolic link by now, nor below one: git looks into no link."""
    reached = {"."}
    for folder in sorted(folders - reached):  # parents first
        above = folder.rpartition("/")[0] or "."
        if above in reached and not os.path.islink(f"{root}/{folder}"):  # noqa: PTH114 (many)
            reached.add(folder)
    return reached


def _subfolders(root: Path, folder: str) -> list[str]:
    try:
        with os.scandir(root / folder) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    paths = [PurePosixPath(folder, name) for name in names if name not in (".git", "__pycache__")]
    return [str(path) for path in paths if not _hides_itself(root / path)]


# Without git


def _walk(tree: Tree, folder: str, specs: tuple[tuple[str, GitIgnoreSpec], ...]) -> Iterator[str]:
    """Yield what is below `folder` and not ignored; `specs` are the ignore files above it."""
    for name in IGNORE_FILES:
        if spec := _patterns(tree.root / folder / name):
            specs = (*specs, (f"{folder}/" if folder else "", spec))
    try:
        with os.scandir(tree.root / folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError as error:
        raise _unreadable(folder or str(tree.root), error) from error
    for entry in entries:
        path = f"{folder}/{entry.name}" if folder else entry.name
        is_folder = entry.is_dir(follow_symlinks=False)
        if (is_folder and entry.name in NEVER) or _ignored(
            f"{path}/" if is_folder else path, specs
        ):
            continue
        if is_folder and _hides_itself(tree.root / path):
            continue
        yield path
        if is_folder:
            yield from _walk(tree, path, specs)


def _ignored(path: str, specs: tuple[tuple[str, GitIgnoreSpec], ...]) -> bool:
    """Ask the ignore files from the nearest one up: the first that has a word for it decides."""
    for base, spec in reversed(specs):
        verdict = spec.check_file(path.removeprefix(base)).include
        if verdict is not None:
            return verdict
    return False


def _hides_itself(folder: Path) -> bool:
    """Whether a folder is a virtual environment, or has an ignore file for all that is in it.

    So do caches of many tools, and our own `runs`.
    """
    if (folder / "pyvenv.cfg").is_file():
        return True
    try:
        lines = (folder / ".gitignore").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return False
    return next((line.strip() for line in lines if line and line[0] != "#"), "") == "*"


def _patterns(file: Path) -> GitIgnoreSpec | None:
    try:
        text = file.read_text(encoding="utf-8-sig", errors="surrogateescape")
    except OSError:
        return None
    return GitIgnoreSpec.from_lines(line for line in text.split("\n") if _is_pattern(line))


def _is_pattern(line: str) -> bool:
    """Whether a line can be understood; git passes over one that cannot."""
    try:
        GitIgnoreSpec.from_lines([line])
    except (ValueError, re.error):
        return False
    return True
