"""The code as it is now: hashed while hosts are being reached, read once for all of them."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from runner.control.code import worktree
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.release import Code, File, Folder, Link, Manifest, release_hash
from runner.core.model.spec import Spec

CHUNK = 256 << 10
MB = 1_000_000
WORTH_SAYING = 200
"""What is less than such a part of the whole is not worth a line."""


class Snapshot:
    """One release in the making, on this machine.

    What can be wrong with it without reading the files is found by `take`; the rest by the first
    use of `manifest` or `code`, which wait until all is hashed.
    """

    def __init__(self, found: worktree.Tree, here: Path, script: str) -> None:
        self.notes = tuple(found.notes)
        self._tree = found
        self._here = here
        self._script = script
        self._manifest = Manifest()
        self._encoded = b""
        self._commit = ""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._hash, daemon=True, name="hash")
        self._thread.start()

    @staticmethod
    def take(spec: Spec, here: Path, leave_out: Path | None = None) -> Snapshot:
        """Begin a snapshot of the project `here` belongs to.

        Args:
            spec: Its `deploy` and `task`.
            here: The folder the user stands in.
            leave_out: The run's record, which is no part of the code.

        Raises:
            ConfigError: There is too much of it, or the task's script is no part of it.
        """
        found = worktree.survey(here, leave_out)
        if found.size > spec.deploy.max_mb * MB:
            raise ConfigError([_too_much(found, spec.deploy.max_mb)])
        script = ""
        if spec.pushes:
            _check_place(found, here)
            script = _script(found, here, spec) if spec.task.kind == "script" else ""
        return Snapshot(found, here, script)

    @property
    def manifest(self) -> Manifest:
        """What the release holds.

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
    def code(self) -> Code:
        """What a plan has to know of it."""
        self._wait()
        sub = _relative(self._here, self._tree.root)
        return Code(
            release=release_hash(self._encoded),
            sub="" if sub == "." else sub,
            script=self._script,
            commit=self._commit,
        )

    def read(self, file: File) -> Iterator[bytes]:
        """Yield a file in chunks.

        Raises:
            NotReady: It is no longer what was hashed.
        """
        digest, left = hashlib.sha256(), file.size
        try:
            with (self._tree.root / file.path).open("rb", buffering=0) as opened:
                while left and (chunk := opened.read(min(CHUNK, left))):
                    digest.update(chunk)
                    left -= len(chunk)
                    yield chunk
                left = left or len(opened.read(1))
        except OSError as error:
            raise NotReady([_unreadable(file.path, error)]) from error
        if left or digest.hexdigest() != file.digest:
            raise NotReady([_changed(file.path)])

    def _wait(self) -> None:
        self._thread.join()
        if self._error:
            raise self._error

    def _hash(self) -> None:
        found = self._tree
        try:
            self._commit = worktree.commit(found.root) if found.git else ""
            self._manifest = Manifest(
                folders=tuple(
                    Folder(path, found.folders[path].st_mode & 0o777)
                    for path in sorted(found.folders)
                ),
                files=tuple(self._file(path) for path in sorted(found.files)),
                links=tuple(
                    Link(path, os.readlink(found.root / path))  # noqa: PTH115 (to the letter)
                    for path in sorted(found.links)
                ),
            )
            self._encoded = self._manifest.encode()
        except OSError as error:
            path = os.path.relpath(os.fsdecode(error.filename or found.root), found.root)
            self._error = NotReady([_unreadable(path, error)])
        except BaseException as error:  # noqa: BLE001 (an empty release must not pass for this one)
            self._error = error

    def _file(self, path: str) -> File:
        with (self._tree.root / path).open("rb", buffering=0) as opened:
            before = os.fstat(opened.fileno())
            digest = hashlib.sha256()
            while chunk := opened.read(CHUNK):
                digest.update(chunk)
            after = os.fstat(opened.fileno())
        if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            raise NotReady([_changed(path)])
        return File(path, after.st_mode & 0o777, after.st_size, digest.hexdigest())


def _changed(path: str) -> Problem:
    what = f"{path} changed while it was read"
    return Problem("deploy", what, f"start again; or leave it out: add /{path} to {worktree.OURS}")


def _unreadable(path: str, error: OSError) -> Problem:
    what = f"{path} cannot be read: {error.strerror}"
    return Problem("deploy", what, f"mend that, or leave it out: add /{path} to {worktree.OURS}")


def _too_much(found: worktree.Tree, max_mb: int) -> Problem:
    sizes = {path: each.st_size for path, each in found.files.items()}
    rows = [
        f"{size / MB:10.1f} MB  {path}"
        for path, size in worktree.largest(sizes)
        if size * WORTH_SAYING >= found.size
    ]
    ignore = (
        f".gitignore (if git does not track it) or {worktree.OURS}" if found.git else worktree.OURS
    )
    return Problem(
        "deploy.max_mb",
        f"{found.root} has {found.size / MB:.1f} MB to push, more than {max_mb} MB; most of it is:",
        "\n".join(
            [
                *rows,
                f"leave out what is no code: add it to {ignore}",
                "the ranks do not see it then: put data on the hosts, and name it absolutely",
                "or raise deploy.max_mb",
            ]
        ),
    )


def _check_place(found: worktree.Tree, here: Path) -> None:
    """Refuse a folder to stand in that the ranks will not have.

    Raises:
        ConfigError: It is ignored.
    """
    sub = _relative(here, found.root)
    if sub != "." and sub not in found.folders:
        what = f"{here} is ignored, so it is not pushed, and ranks cannot work there"
        raise ConfigError([Problem("deploy", what, f"stand in another folder of {found.root}")])


def _script(found: worktree.Tree, here: Path, spec: Spec) -> str:
    """Return the script as it is called from where the ranks run; "" for one of the hosts' own.

    Raises:
        ConfigError: It is in the project, but not in what is pushed.
    """
    given = spec.task.target
    path = Path(given if given.startswith("/") else here / given)
    name = _relative(path, found.root)
    if name.startswith("../"):
        if given.startswith("/"):
            return ""
        what = f"{given} is outside of {found.root}, which is what is pushed"
        hint = "name it by an absolute path if it is on the hosts; or set cluster.deploy=never"
        raise ConfigError([Problem("task.script", what, hint)])
    if any(name in kind for kind in (found.files, found.links, found.folders)):
        return os.path.relpath(found.root / name, here) if given.startswith("/") else ""
    if not path.exists():
        hint = "it is named relative to the folder you stand in"
        near = [other for other in found.files if PurePosixPath(other).name == path.name]
        if near:
            hint = f"there is {', '.join(os.path.relpath(found.root / n, here) for n in near[:3])}"
        raise ConfigError([Problem("task.script", f"there is no {given} in {here}", hint)])
    what = f"{given} is here, but it is ignored, so it is not pushed to the hosts"
    raise ConfigError([Problem("task.script", what, worktree.who_ignores(found, name))])


def _relative(path: Path, root: Path) -> str:
    """Return a path from the top of the tree, whatever links lead to either."""
    parent = path.resolve() if path.is_dir() else path.parent.resolve() / path.name
    return Path(os.path.relpath(parent, root.resolve())).as_posix()
