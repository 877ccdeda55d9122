"""Snapshot of the project: hashed while hosts are being connected, read once for all of them."""

from __future__ import annotations

import copy
import hashlib
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from runner.control.code import worktree
from runner.control.code.code_store import CHUNK, CodeKeeper, CodeStore, read_verified
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.spec import Spec
from runner.core.wire.facts import Facts
from runner.core.wire.files import File, Folder, Manifest, Symlink, release_hash
from runner.core.wire.plan import CodeRef
from runner.core.wire.text import join_some

MB = 1_000_000
MIN_LISTED_DIVISOR = 200
"""Entries smaller than this fraction of the whole are not listed."""

NO_DATA = re.compile(r"\..*|__pycache__|node_modules|.*\.egg-info|build|dist")
"""Folders that no program opens by itself."""


class Snapshot:
    """The project as it is now, to be pushed as a release.

    `take` finds the problems that show without reading files; the others are raised by the first
    use of `manifest` or `code`, which wait until all files are hashed.
    """

    def __init__(self, source_tree: worktree.WorkTree, cwd: Path, script: str) -> None:
        self.notes = tuple(source_tree.notes)
        self._store: CodeStore | None = None
        self._source_tree = source_tree
        self._cwd = cwd
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
        if source_tree.size > spec.deploy.max_mb * MB:
            raise ConfigError([_too_large_problem(source_tree, spec.deploy.max_mb)])
        if not spec.pushes_code:
            return Snapshot(source_tree, cwd, "")
        subdirectory = _relative_to_root(cwd, source_tree.root)
        if subdirectory != "." and subdirectory not in source_tree.folders:
            message = f"{cwd} is ignored or empty, so it is not pushed; ranks cannot work there"
            hint = f"stand in another folder of {source_tree.root}"
            raise ConfigError([Problem("deploy", message, hint)])
        _note_unpushed_folders(source_tree)
        return Snapshot(source_tree, cwd, _resolve_script(source_tree, cwd, spec))

    def for_task(self, spec: Spec, cwd: Path) -> Snapshot:
        """Return the same snapshot for another task; raise ConfigError if that is not in it."""
        self._wait()
        other = copy.copy(self)
        other._script = _resolve_script(self._source_tree, cwd, spec)  # noqa: SLF001 (a copy)
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
        subdirectory = _relative_to_root(self._cwd, self._source_tree.root)
        subdirectory = "" if subdirectory == "." else subdirectory
        return CodeRef("", release_hash(self._encoded), subdirectory, self._script, self._commit)

    def keep(self, store: CodeStore) -> CodeKeeper:
        """Begin to copy it into a store, from where it is read later: files may change here."""
        self._store = store
        return CodeKeeper(store, self)

    def content(self) -> Snapshot:
        """Return this snapshot, which can be read."""
        return self

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot:
        """Return this snapshot, for the hosts that lack it."""
        del facts
        return self

    def read(self, file: File) -> Iterator[bytes]:
        """Yield a file in chunks; raise NotReady if it has changed since it was hashed."""
        path = self._source_tree.root / file.path
        if self._store and (kept := self._store.content_path(file.digest)).exists():
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
        root = tree.root
        try:
            self._commit = worktree.head_commit(tree)
            folders = (Folder(p, tree.folders[p].st_mode & 0o777) for p in sorted(tree.folders))
            files = map(self._hash_file, sorted(tree.files))
            links = (Symlink(p, os.readlink(root / p)) for p in sorted(tree.links))  # noqa: PTH115
            self._manifest = Manifest(tuple(folders), tuple(files), tuple(links))
            self._encoded = self._manifest.encode()
        except OSError as error:
            path = os.path.relpath(os.fsdecode(error.filename or root), root)
            self._error = _file_error(path, f"cannot be read: {error.strerror}")
        except BaseException as error:  # noqa: BLE001 (re-raised by the first use)
            self._error = error

    def _hash_file(self, path: str) -> File:
        with (self._source_tree.root / path).open("rb", buffering=0) as stream:
            before = os.fstat(stream.fileno())
            digest = hashlib.sha256()
            while chunk := stream.read(CHUNK):
                digest.update(chunk)
            after = os.fstat(stream.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise _file_error(path)
        return File(path, after.st_mode & 0o777, after.st_size, digest.hexdigest())


def _file_error(path: str, problem: str = "") -> NotReady:
    message = f"{path} {problem or 'changed while it was read'}"
    remedy = "fix that" if problem else "start again"
    hint = f"{remedy}, or leave it out: add /{path} to {worktree.IGNORE_FILE}"
    return NotReady([Problem("deploy", message, hint)])


def _too_large_problem(source_tree: worktree.WorkTree, max_mb: int) -> Problem:
    sizes = {path: status.st_size for path, status in source_tree.files.items()}
    untracked = ".gitignore (if git does not track it) or " if source_tree.git else ""
    hints = [
        *(
            f"{size / MB:10.1f} MB  {path}"
            for path, size in worktree.largest(sizes)
            if size * MIN_LISTED_DIVISOR >= source_tree.size
        ),
        f"leave out what is not code: add it to {untracked}{worktree.IGNORE_FILE}",
        "ranks do not see ignored files: put data on the hosts, and use absolute paths",
        "or raise deploy.max_mb",
    ]
    message = (
        f"{source_tree.root} has {source_tree.size / MB:.1f} MB to push, "
        f"more than {max_mb} MB; most of it is:"
    )
    return Problem("deploy.max_mb", message, "\n".join(hints))


def _note_unpushed_folders(source_tree: worktree.WorkTree) -> None:
    """Note the folders at the top that stay here, such as data that git ignores."""
    known = {*source_tree.folders, *source_tree.links}
    folders = [entry for entry in source_tree.root.iterdir() if entry.is_dir()]
    others = [entry for entry in folders if not NO_DATA.fullmatch(entry.name)]
    data = [e.name for e in others if e.name not in known and not worktree.is_no_code(e)]
    if data:
        named = join_some([f"{name}/" for name in sorted(data)])
        source_tree.notes.append(f"ignored or empty, so not pushed: {named}")


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
    if name in source_tree.folders and f"{name}/__main__.py" not in source_tree.files:
        message = f"{given} is a folder, and has no __main__.py"
        raise ConfigError([Problem("task.script", message, "name a file in it")])
    if any(name in kind for kind in (source_tree.files, source_tree.links, source_tree.folders)):
        return os.path.relpath(source_tree.root / name, cwd) if given.startswith("/") else ""
    if not path.exists():
        hint = "the path is relative to the current folder"
        candidates = [f for f in source_tree.files if PurePosixPath(f).name == path.name]
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
