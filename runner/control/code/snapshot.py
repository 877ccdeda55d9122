"""Snapshot of the project: hashed while hosts are being connected, read once for all of them."""

from __future__ import annotations

import hashlib
import os
import posixpath
import shlex
import stat
import sys
import threading
from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath

from runner.control.code import worktree
from runner.control.code.pool import CHUNK, Release, file_error
from runner.core.errors import ConfigError, Problem
from runner.core.spec import Spec, Task
from runner.core.wire.files import Entry, Manifest
from runner.core.wire.plan import CodeRef

MB = 1_000_000
UNUSED_MODULES = ("test", "this", "antigravity", "idlelib", "turtledemo")
"""Modules of the standard library that no program misses."""

MOST_LISTED = 10  # the number of files and folders that a message about a large tree names


class Snapshot:
    """The project as it is now, hashed in the background.

    The problems that show without reading files are raised at once, as ConfigError; the others by
    `release` and `code`, as NotReady: they wait until all files are hashed.
    """

    def __init__(self, spec: Spec, cwd: Path) -> None:
        tree = worktree.scan(cwd)
        if sum(tree.sizes.values()) > spec.deploy.max_mb * MB:
            raise ConfigError([_too_large_problem(tree, spec.deploy.max_mb)])
        folder = _relative_to_root(cwd, tree.root)
        self._subdirectory = "" if folder == "." else folder
        if spec.pushes_code and self._subdirectory and folder not in tree.entries:
            message = f"{cwd} is ignored or empty, so it is not pushed; ranks cannot work there"
            hint = f"stand in another folder of {tree.root}"
            raise ConfigError([Problem("deploy", message, hint)])
        self._tree = tree
        self._cwd = cwd
        self._commit = ""
        self._release: Release  # once all is hashed, or
        self._error: BaseException | None = None
        self.notes = (*tree.notes, *self.choose_task(spec))
        self._thread = threading.Thread(target=self._hash, daemon=True, name="hash")
        self._thread.start()

    def choose_task(self, spec: Spec) -> list[str]:
        """Have ranks run this task; return notes, or raise ConfigError if it is not in there."""
        self._script = _resolve_script(self._tree, self._cwd, spec) if spec.pushes_code else ""
        tree = self._tree
        self._python_path, notes = python_path(tree.root, tree.entries, self._cwd, spec.task)
        return notes

    @property
    def code(self) -> CodeRef:
        return CodeRef(
            release=self.release().name,
            subdirectory=self._subdirectory,
            script=self._script,
            commit=self._commit,
            python_path=self._python_path,
        )

    def release(self, lacking: Sequence[str] = ()) -> Release:
        """Return what is pushed; raise NotReady if a file could not be read, or changed."""
        del lacking
        self._thread.join()
        if self._error:
            raise self._error
        return self._release

    def _hash(self) -> None:
        tree = self._tree
        try:
            self._commit = worktree.head_commit(tree)
            manifest = Manifest(tuple(map(self._hash_entry, sorted(tree.entries))))
            self._release = Release(manifest, manifest.encode(), tree.root)
        except OSError as error:
            path = os.path.relpath(os.fsdecode(error.filename or tree.root), tree.root)
            self._error = file_error(path, str(error.strerror))
        except BaseException as error:  # noqa: BLE001 (re-raised by the first use)
            self._error = error

    def _hash_entry(self, path: str) -> Entry:
        tree = self._tree
        mode = tree.entries[path].st_mode
        mode = stat.S_IFMT(mode) | mode & 0o777
        if not stat.S_ISREG(mode):
            return Entry(path, mode, content=tree.links.get(path, ""))
        with (tree.root / path).open("rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            digest = hashlib.sha256()
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
            after = os.fstat(stream.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise file_error(path)
        return Entry(path, mode, after.st_size, digest.hexdigest())


def python_path(
    root: Path, paths: Collection[str], cwd: Path, task: Task
) -> tuple[tuple[str, ...], list[str]]:
    """Return which folders come first on Python's path, relative to `cwd`, and notes about others.

    They are the top of the project, which has these `paths`, and the current folder, each with its
    `src/`: an older copy of a package, installed on a host, is not what runs then. A `src/` that is
    a package itself is imported by its name.
    """
    folders: list[str] = []
    notes: list[str] = []
    here = _relative_to_root(cwd, root)
    first = ""  # where Python looks first by itself
    if task.kind == "module":
        first = here
    elif task.kind == "script":
        first = _relative_to_root((cwd / task.target).resolve().parent, root)
    places = dict.fromkeys((here, posixpath.normpath(f"{here}/src"), ".", "src"))
    places.pop(first, None)
    for place in places:
        prefix = "" if place == "." else f"{place}/"
        is_absent = place != "." and place not in paths
        if is_absent or (place.endswith("src") and f"{prefix}__init__.py" in paths):
            continue
        modules = sorted(sys.stdlib_module_names.difference(UNUSED_MODULES))
        files = [f"{prefix}{module}{end}" for module in modules for end in (".py", "/__init__.py")]
        hiding = [file for file in files if file in paths]
        if hiding:
            message = f"{hiding[0]} would hide a module of Python's standard library"
            name = "the top folder" if place == "." else place
            notes.append(f"{name} is not on the path of ranks: {message}")
        else:
            folders.append(posixpath.relpath(place, here))
    return tuple(folders), notes


def _too_large_problem(tree: worktree.WorkTree, max_mb: int) -> Problem:
    largest: Counter[str] = Counter()
    for path, size in tree.sizes.items():
        name, is_below, _ = path.partition("/")
        largest[name + is_below] += size
    listed = [
        f"{size / MB:10.1f} MB  {name}" for name, size in largest.most_common(MOST_LISTED) if size
    ]
    untracked = ".gitignore (if git does not track it) or " if tree.git else ""
    hints = [
        *listed,
        f"leave out what is not code: add it to {untracked}{worktree.IGNORE_FILE}",
        "ranks do not see ignored files: put data on the hosts, and use absolute paths",
        "or raise deploy.max_mb",
    ]
    message = (
        f"{tree.root} has {largest.total() / MB:.1f} MB to push, "
        f"more than {max_mb} MB; most of it is:"
    )
    return Problem("deploy.max_mb", message, "\n".join(hints))


def _resolve_script(tree: worktree.WorkTree, cwd: Path, spec: Spec) -> str:
    """Return the script relative to the ranks' current folder; "" for one that is on the hosts.

    Raise ConfigError if it is in the project, but not in what is pushed.
    """
    if spec.task.kind != "script":
        return ""
    given = spec.task.target
    path = Path(given if given.startswith("/") else cwd / given)
    name = _relative_to_root(path, tree.root)
    if name.startswith("../"):
        if given.startswith("/"):
            return ""
        message = f"{given} is outside of {tree.root}, which is what is pushed"
        hint = "name it by an absolute path if it is on the hosts; or set cluster.project=."
        raise ConfigError([Problem("task.script", message, hint)])
    if name in tree.leading_out:
        message = f"{given} is a link to {tree.links[name]}, which is not pushed"
        raise ConfigError([Problem("task.script", message, "put the file itself there")])
    if name in tree.entries:
        return os.path.relpath(tree.root / name, cwd) if given.startswith("/") else ""
    if not path.exists():
        hint = "the path is relative to the current folder"
        candidates = [f for f in tree.sizes if PurePosixPath(f).name == path.name]
        if candidates:
            paths = [os.path.relpath(tree.root / path, cwd) for path in candidates[:3]]
            hint = f"there is {', '.join(paths)}"
        raise ConfigError([Problem("task.script", f"there is no {given} in {cwd}", hint)])
    message = f"{given} is here, but it is ignored, so it is not pushed to the hosts"
    hint = f"`git check-ignore -v {shlex.quote(given)}` names the rule, if it is one of git's; "
    hint += f"{worktree.IGNORE_FILE}, environments and caches are left out, too"
    raise ConfigError([Problem("task.script", message, hint)])


def _relative_to_root(path: Path, root: Path) -> str:
    """Return a path relative to the top of the tree, with links resolved."""
    parent = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return Path(os.path.relpath(parent, root.resolve())).as_posix()
