"""Pool: contents of files by their sha256, releases that are manifests of them, and our own code.

What gets a name is on the disk before, and never changes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import secrets
import stat
import time
from collections import deque
from typing import Any, BinaryIO, Dict, List, Optional, Set, Tuple

from runner.core.wire.boot import compiled
from runner.core.wire.files import Entry, Manifest, release_hash, tasks_digest
from runner.core.wire.paths import POOL, RELEASES, content_file, release_file, tasks_folder
from runner.host.process.jobs import checkpoint
from runner.host.process.procfs import list_names
from runner.host.storage.permissions import private_folder, remove_tree, write_files
from runner.host.storage.run_folder import mtime, write_atomic

CHUNK = 16 << 20  # bytes copied at once
STORE_ID = ".store"
UNFINISHED = ".new-"
MAX_ARCHIVES = 4  # of as many versions of ours, or of Python
STALE_S = 86400.0  # the age of what is unfinished and has no writer any more


def load_manifest(workdir: str, name: str) -> Optional[Manifest]:
    """Return the manifest of a release, None unless it is here and has the hash that names it."""
    try:
        with open(release_file(workdir, name), "rb") as file:
            data = file.read()
        return Manifest.decode(data) if release_hash(data) == name else None
    except (OSError, ValueError):
        return None


def has_release(workdir: str, name: str) -> bool:
    """Return whether a release is here; only its manifest is read."""
    return load_manifest(workdir, name) is not None


def pin(workdir: str, name: str) -> Optional[int]:
    """Keep a release while the returned descriptor is open; None if there is none (any more).

    A network disk may have no locks: then nothing but its time of use keeps it.
    """
    path = release_file(workdir, name)
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                os.utime(path)
                return descriptor
        os.close(descriptor)  # it was removed in between
    return None


def store_id(workdir: str) -> str:
    """Return what is the same on hosts that share the disk, by a file that the first one makes."""
    path = os.path.join(private_folder(workdir, RELEASES), STORE_ID)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    status = os.stat(path)
    return f"{status.st_ino}-{status.st_mtime_ns}"


def _is_stored(workdir: str, file: Entry) -> bool:
    """Return whether a content is here, with the size that it was stored with."""
    checkpoint()
    try:
        return os.lstat(content_file(workdir, file.content)).st_size == file.size
    except OSError:
        return False


class Upload:
    """A release that is being stored; `missing` are the files whose contents are to come."""

    def __init__(self, workdir: str, encoded: bytes) -> None:
        """Begin; ValueError if the manifest is invalid, OSError if no disk takes it.

        From here on nothing of it that is here already is removed.
        """
        self.manifest = Manifest.decode(encoded)
        self.name = release_hash(encoded)
        self._workdir = workdir
        self._pool = private_folder(workdir, POOL)
        aside = UNFINISHED + secrets.token_hex(8)
        self._content_path = os.path.join(self._pool, aside)
        self._content: Optional[BinaryIO] = None  # the next of the missing files, while unfinished
        self._digest = hashlib.sha256()
        self._manifest_path = ""  # while it has no name yet
        releases = private_folder(workdir, RELEASES)
        if not has_release(workdir, self.name):
            self._manifest_path = os.path.join(releases, aside)
            write_atomic(self._manifest_path, encoded, durable=True)
        first: Dict[str, Entry] = {}
        for file in self.manifest.files:
            first.setdefault(file.content, file)
        self.missing = [file for file in first.values() if not _is_stored(workdir, file)]
        self._upcoming = deque(self.missing)

    @property
    def is_new(self) -> bool:
        """Whether the host lacked the release, or a part of it."""
        return bool(self._manifest_path or self.missing)

    @property
    def space_error(self) -> str:
        """Why the missing files do not fit on the disk, "" if they do."""
        disk = os.statvfs(self._pool)
        free = disk.f_bavail * disk.f_frsize
        needed = sum(file.size for file in self.missing)
        if needed <= free:
            return ""
        megabytes = f"{needed / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free"
        return f"{os.strerror(errno.ENOSPC)}: {megabytes}"

    def write(self, data: bytes) -> None:
        """Take the next bytes of the missing files; ValueError if they do not fit."""
        view = memoryview(data)
        while self._upcoming and (view or not self._upcoming[0].size):
            file = self._upcoming[0]
            if self._content is None:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                self._content = open(os.open(self._content_path, flags, 0o600), "wb")
                self._digest = hashlib.sha256()
            part = view[: file.size - self._content.tell()]
            self._content.write(part)
            self._digest.update(part)
            view = view[len(part) :]
            if self._content.tell() == file.size:
                self._complete(self._content, file)
        if view:
            raise ValueError("more bytes arrived than were missing")

    def _complete(self, content: BinaryIO, file: Entry) -> None:
        if self._digest.hexdigest() != file.content:
            raise ValueError(f"{file.path} arrived with other content")
        content.flush()
        os.fsync(content.fileno())
        os.rename(self._content_path, content_file(self._workdir, file.content))
        content.close()
        self._content = None
        self._upcoming.popleft()
        checkpoint()

    def finish(self) -> None:
        """Give the release its name; ValueError if a file is not complete."""
        self.write(b"")
        if self._upcoming:
            raise ValueError(f"the stream ended within {self._upcoming[0].path}")
        if self._manifest_path:
            os.rename(self._manifest_path, release_file(self._workdir, self.name))

    def close(self) -> None:
        """Remove what is unfinished; complete contents stay for the next push."""
        with contextlib.suppress(OSError):  # what is buffered may not fit on the disk
            if self._content is not None:
                self._content.close()
        for path in (self._content_path, self._manifest_path):
            with contextlib.suppress(OSError):
                os.unlink(path)


def check_out(workdir: str, name: str, target: str) -> None:
    """Make a private copy of a release in the empty folder `target`.

    ValueError: the release is not here, or a file of it has another size than it had.
    """
    manifest = load_manifest(workdir, name)
    if manifest is None:
        raise ValueError(f"release {name} is no longer in {workdir}")
    for entry in manifest.entries:
        path = os.path.join(target, entry.path)
        checkpoint()
        if entry.is_folder:
            os.mkdir(path, 0o700)
        elif not entry.is_file:
            os.symlink(entry.content, path)
        elif _is_stored(workdir, entry):
            _copy(content_file(workdir, entry.content), path, stat.S_IMODE(entry.mode))
        else:
            with contextlib.suppress(OSError):  # so that the next launch pushes it
                os.unlink(release_file(workdir, name))
            content = content_file(workdir, entry.content)
            raise ValueError(
                f"{content} ({entry.path}) has another size than it had; start again to push it"
            )
    for entry in reversed(manifest.entries):
        if entry.is_folder:
            os.chmod(os.path.join(target, entry.path), stat.S_IMODE(entry.mode))


def _copy(source: str, target: str, mode: int) -> None:
    with open(source, "rb") as from_file:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            while os.sendfile(to_fd, from_file.fileno(), None, CHUNK):
                checkpoint()
            os.fchmod(to_fd, mode)  # the umask may allow less
        finally:
            os.close(to_fd)


def prune(
    workdir: str, *, keep: int = 0, cutoff: float = math.inf, dry_run: bool = False
) -> Tuple[List[str], int]:
    """Remove old releases, and the contents that no other has; return their names and bytes.

    Those stay that are pinned, among the `keep` used last, or were used after `cutoff`.
    """
    releases = os.path.join(workdir, RELEASES)
    pool = os.path.join(workdir, POOL)
    used_at = {name: mtime(os.path.join(releases, name)) for name in list_names(releases)}
    named = sorted((name for name in used_at if name[0] != "."), key=lambda name: -used_at[name])
    old = [name for name in named[keep:] if used_at[name] < cutoff]
    removed = [name for name in old if _remove(os.path.join(releases, name), dry_run=dry_run)]
    contents = list_names(pool)  # before the manifests, to which a push may add one meanwhile
    used: Set[str] = set()
    for name in list_names(releases):
        checkpoint()
        path = os.path.join(releases, name)
        if name.startswith(UNFINISHED) and _is_stale(path):
            _remove(path, dry_run=dry_run)
        elif name not in removed and name != STORE_ID:
            used.update(_contents_of(path))
    size = 0
    for name in contents:
        checkpoint()
        path = os.path.join(pool, name)
        is_kept = not _is_stale(path) if name.startswith(UNFINISHED) else name in used
        with contextlib.suppress(OSError):
            if not is_kept:
                size += os.lstat(path).st_size
                _remove(path, dry_run=dry_run)
    return removed, size


def _is_stale(path: str) -> bool:
    return mtime(path) < time.time() - STALE_S


def _contents_of(path: str) -> Set[str]:
    """Return the contents in a manifest; none where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return {entry.content for entry in Manifest.decode(file.read()).files}
    except (OSError, ValueError):
        return set()


def _remove(path: str, *, dry_run: bool) -> bool:
    """Remove a file of ours; return False if it is pinned, or gone."""
    with contextlib.suppress(OSError), open(path, "r+b") as file:  # NFS locks what is writable
        with contextlib.suppress(OSError):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        if not dry_run:
            os.unlink(path)
        return True
    return False


def store_archive(place: str, archive: bytes) -> None:
    """Store an archive of our own code, from which later connections start, in the usual workdir.

    It is compiled for the version of Python that the name of its place ends with, by the first
    connection with that version. Where it cannot be stored, it is sent again next time. Before one
    is executed, its owner and checksum are checked (`control/rpc/bootstrap.py`).
    """
    folder, name = os.path.split(place)
    with contextlib.suppress(OSError):
        private_folder(*os.path.split(folder))
        key = name.rpartition("-")[2]
        write_atomic(place, compiled(archive, key))
        others = [os.path.join(folder, each) for each in os.listdir(folder) if each != name]
        for path in sorted(others, key=mtime, reverse=True)[MAX_ARCHIVES - 1 :]:
            os.unlink(path)


def has_tasks(workdir: str, wanted: str) -> bool:
    """Return whether the shipped tasks are here, every file with the content that has the hash."""
    folder = tasks_folder(workdir, wanted)
    contents = []
    try:
        for name in os.listdir(folder):
            if name != "__pycache__":  # Python's own, made by this user: see `find_exposure`
                with open(os.path.join(folder, name), "rb") as file:
                    contents.append((name, file.read()))
    except OSError:
        return False
    return tasks_digest(contents) == wanted


def store_tasks(workdir: str, bundle: Dict[str, Any], payload: bytes) -> None:
    """Unpack the shipped tasks, into a folder named by the hash of their content.

    `bundle` has the "hash", and "files" as [name, size] pairs. Several hosts may share the disk:
    each writes its own folder, and the first rename wins.
    """
    if has_tasks(workdir, bundle["hash"]):
        return
    final = tasks_folder(workdir, bundle["hash"])
    unfinished = os.path.join(private_folder(workdir, "tasks"), UNFINISHED + secrets.token_hex(8))
    write_files(unfinished, bundle["files"], payload)
    try:
        if not has_tasks(workdir, bundle["hash"]):  # what is there is damaged
            remove_tree(final)
        os.rename(unfinished, final)
    except OSError:
        remove_tree(unfinished)
        if not has_tasks(workdir, bundle["hash"]):  # another host was not faster
            raise
