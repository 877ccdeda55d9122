"""Snapshot of the project: hashed while hosts are being connected, read once for all of them."""

from __future__ import annotations

import copy
import hashlib
import os
import posixpath
import stat
import sys
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath

from runner.control.code import worktree
from runner.control.code.pool import CHUNK, CodeKeeper, CodePool, read_verified
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.spec import Spec, Task
from runner.core.wire.facts import Facts
from runner.core.wire.files import Entry, Manifest, release_hash
from runner.core.wire.plan import CodeRef

MB = 1_000_000
UNUSED_MODULES = ("test", "this", "antigravity", "idlelib", "turtledemo")
"""Modules of the standard library that no program misses."""

MOST_LISTED = 10
"""The number of files and folders that a message about a large tree names."""


class Snapshot:
    """The project as it is now, to be pushed as a release.

    `take` finds the problems that show without reading files; the others are raised by the first
    use of `manifest` or `code`, which wait until all files are hashed.
    """

    def __init__(self, source_tree: worktree.WorkTree, cwd: Path, script: str, task: Task) -> None:
        folder = _relative_to_root(cwd, source_tree.root)
        self._folder = "" if folder == "." else folder
        folders, notes = python_path(source_tree.root, source_tree.entries, cwd, task)
        self.notes = (*source_tree.notes, *notes)
        self._python_path = folders
        self._pool: CodePool | None = None
        self._source_tree = source_tree
        self._script = script
        self._manifest = Manifest()
        self._encoded = b""
        self._commit = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._hash, daemon=True, name="hash")
        self._thread.start()

    @staticmethod
    def take(spec: Spec, cwd: Path) -> Snapshot:
        """Begin a snapshot of the project of `cwd`; may raise ConfigError."""
        source_tree = worktree.scan(cwd)
        if sum(source_tree.sizes.values()) > spec.deploy.max_mb * MB:
            raise ConfigError([_too_large_problem(source_tree, spec.deploy.max_mb)])
        if not spec.pushes_code:
            return Snapshot(source_tree, cwd, "", spec.task)
        subdirectory = _relative_to_root(cwd, source_tree.root)
        if subdirectory != "." and subdirectory not in source_tree.entries:
            message = f"{cwd} is ignored or empty, so it is not pushed; ranks cannot work there"
            hint = f"stand in another folder of {source_tree.root}"
            raise ConfigError([Problem("deploy", message, hint)])
        script = _resolve_script(source_tree, cwd, spec)
        return Snapshot(source_tree, cwd, script, spec.task)

    def for_task(self, spec: Spec, cwd: Path) -> Snapshot:
        """Return the same snapshot for another task; raise ConfigError if that is not in it."""
        self._wait()
        other = copy.copy(self)
        other._script = _resolve_script(self._source_tree, cwd, spec)  # noqa: SLF001 (a copy)
        folders, _ = python_path(self._source_tree.root, self._source_tree.entries, cwd, spec.task)
        other._python_path = folders  # noqa: SLF001
        return other

    @property
    def manifest(self) -> Manifest:
        """The files of the release; raises NotReady if one could not be read, or changed."""
        self._wait()
        return self._manifest

    @property
    def encoded(self) -> bytes:
        """The manifest as bytes."""
        self._wait()
        return self._encoded

    @property
    def code(self) -> CodeRef:
        """The reference to it in a plan."""
        self._wait()
        return CodeRef(
            release=release_hash(self._encoded),
            subdirectory=self._folder,
            script=self._script,
            commit=self._commit,
            python_path=self._python_path,
        )

    @property
    def paths(self) -> Collection[str]:
        """What is pushed, by paths relative to the top."""
        return self._source_tree.entries

    def keep(self, pool: CodePool) -> CodeKeeper:
        """Begin to copy it into a pool, from where it is read later: files may change here."""
        self._pool = pool
        return CodeKeeper(pool, self)

    def content(self) -> Snapshot:
        """Return this snapshot, which can be read."""
        return self

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot:
        """Return this snapshot, for the hosts that lack it."""
        del facts
        return self

    def read(self, file: Entry) -> Iterator[bytes]:
        """Yield a file in chunks; raise NotReady if it has changed since it was hashed."""
        path = self._source_tree.root / file.path
        if self._pool and (kept := self._pool.content_path(file)).exists():
            path = kept
        try:
            yield from read_verified(path, file)
        except OSError as error:
            raise _file_error(file.path, f"cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise _file_error(file.path) from error

    def _wait(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error

    def _hash(self) -> None:
        tree = self._source_tree
        try:
            self._commit = worktree.head_commit(tree)
            self._manifest = Manifest(tuple(map(self._hash_entry, sorted(tree.entries))))
            self._encoded = self._manifest.encode()
        except OSError as error:
            path = os.path.relpath(os.fsdecode(error.filename or tree.root), tree.root)
            self._error = _file_error(path, f"cannot be read: {error.strerror}")
        except BaseException as error:  # noqa: BLE001 (re-raised by the first use)
            self._error = error

    def _hash_entry(self, path: str) -> Entry:
        tree = self._source_tree
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
            raise _file_error(path)
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


def _file_error(path: str, problem: str = "") -> NotReady:
    message = f"{path} {problem or 'changed while it was read'}"
    remedy = "fix that" if problem else "start again"
    hint = f"{remedy}, or leave it out: add /{path} to {worktree.IGNORE_FILE}"
    return NotReady([Problem("deploy", message, hint)])


def _too_large_problem(source_tree: worktree.WorkTree, max_mb: int) -> Problem:
    largest: Counter[str] = Counter()
    for path, size in source_tree.sizes.items():
        name, is_below, _ = path.partition("/")
        largest[name + is_below] += size
    listed = [
        f"{size / MB:10.1f} MB  {name}" for name, size in largest.most_common(MOST_LISTED) if size
    ]
    untracked = ".gitignore (if git does not track it) or " if source_tree.git else ""
    hints = [
        *listed,
        f"leave out what is not code: add it to {untracked}{worktree.IGNORE_FILE}",
        "ranks do not see ignored files: put data on the hosts, and use absolute paths",
        "or raise deploy.max_mb",
    ]
    message = (
        f"{source_tree.root} has {largest.total() / MB:.1f} MB to push, "
        f"more than {max_mb} MB; most of it is:"
    )
    return Problem("deploy.max_mb", message, "\n".join(hints))


def _resolve_script(source_tree: worktree.WorkTree, cwd: Path, spec: Spec) -> str:
    """Return the script relative to the ranks' current folder; "" for one that is on the hosts.

    Raise ConfigError if it is in the project, but not in what is pushed.
    """
    if spec.task.kind != "script":
        return ""
    given = spec.task.target
    path = Path(given if given.startswith("/") else cwd / given)
    name = _relative_to_root(path, source_tree.root)
    if name.startswith("../"):
        if given.startswith("/"):
            return ""
        message = f"{given} is outside of {source_tree.root}, which is what is pushed"
        hint = "name it by an absolute path if it is on the hosts; or set cluster.project=."
        raise ConfigError([Problem("task.script", message, hint)])
    if name in source_tree.leading_out:
        message = f"{given} is a link to {source_tree.links[name]}, which is not pushed"
        raise ConfigError([Problem("task.script", message, "put the file itself there")])
    if name in source_tree.entries:
        return os.path.relpath(source_tree.root / name, cwd) if given.startswith("/") else ""
    if not path.exists():
        hint = "the path is relative to the current folder"
        candidates = [f for f in source_tree.sizes if PurePosixPath(f).name == path.name]
        if candidates:
            paths = [os.path.relpath(source_tree.root / path, cwd) for path in candidates[:3]]
            hint = f"there is {', '.join(paths)}"
        raise ConfigError([Problem("task.script", f"there is no {given} in {cwd}", hint)])
    message = f"{given} is here, but it is ignored, so it is not pushed to the hosts"
    hint = worktree.why_absent(source_tree.root, name) or "it is in an environment or a cache"
    raise ConfigError([Problem("task.script", message, hint)])


def _relative_to_root(path: Path, root: Path) -> str:
    """Return a path relative to the top of the tree, with links resolved."""
    parent = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return Path(os.path.relpath(parent, root.resolve())).as_posix()
