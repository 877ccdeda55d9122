"""Snapshot of the project: hashed while hosts are being connected, read once for all of them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from runner.control.code import worktree
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.release import CodeRef, File, Folder, Manifest, Symlink, release_hash
from runner.core.model.spec import Spec

CHUNK = 256 << 10
MB = 1_000_000
MIN_LISTED_DIVISOR = 200
"""Entries smaller than this fraction of the whole are not listed."""


class Snapshot:
    """The project as it is now, to be pushed as a release.

    `take` finds the problems that show without reading files; the others are raised by the first
    use of `manifest` or `code`, which wait until all files are hashed.
    """

    def __init__(self, source_tree: worktree.WorkTree, cwd: Path, script: str) -> None:
        self.notes = tuple(source_tree.notes)
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
    def take(spec: Spec, cwd: Path, exclude: Path | None = None) -> Snapshot:
        """Begin a snapshot of the project `cwd` belongs to.

        Args:
            spec: Its `deploy` and `task`.
            cwd: The current folder.
            exclude: The record of the run, which is left out.

        Raises:
            ConfigError: It is too large, or the task's script is not part of it.
        """
        source_tree = worktree.scan(cwd, exclude)
        if source_tree.size > spec.deploy.max_mb * MB:
            raise ConfigError([_too_large_problem(source_tree, spec.deploy.max_mb)])
        script = ""
        if spec.pushes_code:
            _check_cwd(source_tree, cwd)
            script = _resolve_script(source_tree, cwd, spec) if spec.task.kind == "script" else ""
        return Snapshot(source_tree, cwd, script)

    @property
    def manifest(self) -> Manifest:
        """The files of the release.

        Raises:
            NotReady: A file could not be read, or changed while it was.
        """
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
        return CodeRef(
            release=release_hash(self._encoded),
            subdirectory="" if subdirectory == "." else subdirectory,
            script=self._script,
            commit=self._commit,
        )

    def snapshot_if_needed(self, facts: Mapping[str, Facts]) -> Snapshot:
        """Return this snapshot, for the hosts that lack it."""
        del facts
        return self

    def read(self, file: File) -> Iterator[bytes]:
        """Yield a file in chunks.

        Raises:
            NotReady: It has changed since it was hashed.
        """
        digest, remaining = hashlib.sha256(), file.size
        try:
            with (self._source_tree.root / file.path).open("rb", buffering=0) as stream:
                while remaining and (chunk := stream.read(min(CHUNK, remaining))):
                    digest.update(chunk)
                    remaining -= len(chunk)
                    yield chunk
                remaining = remaining or len(stream.read(1))
        except OSError as error:
            raise NotReady([_unreadable_problem(file.path, error)]) from error
        if remaining or digest.hexdigest() != file.digest:
            raise NotReady([_changed_problem(file.path)])

    def _wait(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error

    def _hash(self) -> None:
        source_tree = self._source_tree
        try:
            if source_tree.git:
                self._commit = worktree.head_commit(source_tree.root, source_tree.latest_link)
            self._manifest = Manifest(
                folders=tuple(
                    Folder(path, source_tree.folders[path].st_mode & 0o777)
                    for path in sorted(source_tree.folders)
                ),
                files=tuple(self._hash_file(path) for path in sorted(source_tree.files)),
                links=tuple(
                    Symlink(path, os.readlink(source_tree.root / path))  # noqa: PTH115
                    for path in sorted(source_tree.links)
                ),
            )
            self._encoded = self._manifest.encode()
        except OSError as error:
            path = os.path.relpath(
                os.fsdecode(error.filename or source_tree.root), source_tree.root
            )
            self._error = NotReady([_unreadable_problem(path, error)])
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
            raise NotReady([_changed_problem(path)])
        return File(path, after.st_mode & 0o777, after.st_size, digest.hexdigest())


def _changed_problem(path: str) -> Problem:
    message = f"{path} changed while it was read"
    return Problem(
        "deploy", message, f"start again, or leave it out: add /{path} to {worktree.IGNORE_FILE}"
    )


def _unreadable_problem(path: str, error: OSError) -> Problem:
    message = f"{path} cannot be read: {error.strerror}"
    return Problem(
        "deploy", message, f"fix that, or leave it out: add /{path} to {worktree.IGNORE_FILE}"
    )


def _too_large_problem(source_tree: worktree.WorkTree, max_mb: int) -> Problem:
    sizes = {path: status.st_size for path, status in source_tree.files.items()}
    rows = [
        f"{size / MB:10.1f} MB  {path}"
        for path, size in worktree.largest(sizes)
        if size * MIN_LISTED_DIVISOR >= source_tree.size
    ]
    ignore = (
        f".gitignore (if git does not track it) or {worktree.IGNORE_FILE}"
        if source_tree.git
        else worktree.IGNORE_FILE
    )
    return Problem(
        "deploy.max_mb",
        f"{source_tree.root} has {source_tree.size / MB:.1f} MB to push, "
        f"more than {max_mb} MB; most of it is:",
        "\n".join(
            [
                *rows,
                f"leave out what is not code: add it to {ignore}",
                "ranks do not see ignored files: put data on the hosts, and use absolute paths",
                "or raise deploy.max_mb",
            ]
        ),
    )


def _check_cwd(source_tree: worktree.WorkTree, cwd: Path) -> None:
    """Refuse a current folder that the ranks will not have.

    Raises:
        ConfigError: It is ignored.
    """
    subdirectory = _relative_to_root(cwd, source_tree.root)
    if subdirectory != "." and subdirectory not in source_tree.folders:
        message = f"{cwd} is ignored, so it is not pushed, and ranks cannot work there"
        raise ConfigError(
            [Problem("deploy", message, f"stand in another folder of {source_tree.root}")]
        )


def _resolve_script(source_tree: worktree.WorkTree, cwd: Path, spec: Spec) -> str:
    """Return the script relative to the ranks' current folder; "" for one that is on the hosts.

    Raises:
        ConfigError: It is in the project, but not in what is pushed.
    """
    given = spec.task.target
    path = Path(given if given.startswith("/") else cwd / given)
    name = _relative_to_root(path, source_tree.root)
    if name.startswith("../"):
        if given.startswith("/"):
            return ""
        message = f"{given} is outside of {source_tree.root}, which is what is pushed"
        hint = "name it by an absolute path if it is on the hosts; or set cluster.project=."
        raise ConfigError([Problem("task.script", message, hint)])
    if any(name in kind for kind in (source_tree.files, source_tree.links, source_tree.folders)):
        return os.path.relpath(source_tree.root / name, cwd) if given.startswith("/") else ""
    if not path.exists():
        hint = "the path is relative to the current folder"
        candidates = [
            other for other in source_tree.files if PurePosixPath(other).name == path.name
        ]
        if candidates:
            paths = [os.path.relpath(source_tree.root / path, cwd) for path in candidates[:3]]
            hint = f"there is {', '.join(paths)}"
        raise ConfigError([Problem("task.script", f"there is no {given} in {cwd}", hint)])
    message = f"{given} is here, but it is ignored, so it is not pushed to the hosts"
    raise ConfigError([Problem("task.script", message, worktree.ignore_source(source_tree, name))])


def _relative_to_root(path: Path, root: Path) -> str:
    """Return a path relative to the top of the tree, with links resolved."""
    parent = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return Path(os.path.relpath(parent, root.resolve())).as_posix()
