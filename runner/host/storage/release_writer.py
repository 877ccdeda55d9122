"""Release writer: assembles a release aside, on the disk, and renames it into place."""

from __future__ import annotations

import errno
import hashlib
import os
import zlib
from typing import Dict, Generator, List, Optional

from runner.core.wire.files import File, Manifest, release_hash, unique_contents
from runner.core.wire.paths import CODE_FOLDER, release_folder
from runner.host.process.event_loop import Steps
from runner.host.storage import release_store
from runner.host.storage.checkout import copy_file
from runner.host.storage.permissions import private_folder
from runner.host.storage.release_store import STAGING_SUFFIX


class ReleaseWriter:
    """An unfinished release; `missing` are the files still to come, in the order of the stream."""

    def __init__(self, workdir: str, manifest_bytes: bytes) -> None:
        """Prepare a release; ValueError if the manifest is invalid, OSError if no disk takes it."""
        self.manifest = Manifest.decode(manifest_bytes)
        self.name = release_hash(manifest_bytes)
        self.missing: List[File] = []
        self._manifest_bytes = manifest_bytes
        self._workdir = workdir
        self._release_path = release_folder(workdir, self.name)
        parent = private_folder(workdir, "releases")
        suffix = f"{os.uname().nodename}.{os.getpid()}{STAGING_SUFFIX}"
        self._staging = os.path.join(parent, f".{self.name}.{suffix}")
        self._code_folder = os.path.join(self._staging, CODE_FOLDER)
        self._files_by_digest: Dict[str, List[File]] = {}
        for file in self.manifest.files:
            self._files_by_digest.setdefault(file.digest, []).append(file)
        self._open_file: Optional[_OpenFile] = None
        self._lock_fd: Optional[int] = None

    def begin(self) -> Steps:
        """Make the folders, and reuse the files that earlier releases have."""
        yield from release_store.remove_stale(os.path.dirname(self._release_path))
        os.makedirs(self._code_folder, mode=0o700)
        self._lock_fd = release_store.lock_folder(self._staging)
        for folder in self.manifest.folders:
            yield
            os.mkdir(os.path.join(self._code_folder, folder.path), 0o700)
        stored = yield from release_store.stored_contents(os.path.dirname(self._release_path))
        for file in unique_contents(self.manifest):
            yield
            by_mode = stored.get(file.digest)
            if not by_mode or not (yield from self._reuse_stored(by_mode, file)):
                self.missing.append(file)
        self._upcoming = iter(self.missing)
        yield from self._next_file()

    @property
    def space_error(self) -> str:
        """Why the missing files do not fit on the disk, "" if they do."""
        disk = os.statvfs(self._staging)
        free = disk.f_bavail * disk.f_frsize
        needed = sum(file.size for file in self.missing)
        if needed <= free:
            return ""
        megabytes = f"{needed / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free"
        return f"{os.strerror(errno.ENOSPC)}: {megabytes}"

    def write(self, data: bytes) -> Steps:
        """Take the next bytes of the stream of missing files; ValueError if they do not fit."""
        view = memoryview(data)
        while view:
            if self._open_file is None:
                raise ValueError("more bytes arrived than were missing")
            view = self._open_file.write(view)
            if not self._open_file.remaining:
                yield from self._next_file()
                yield

    def finish(self) -> Steps:
        """Complete the tree and rename it into place; ValueError if a file is not complete."""
        if self._open_file is not None:
            raise ValueError(f"the stream ended within {self._open_file.file.path}")
        for link in self.manifest.links:
            yield
            os.symlink(link.target, os.path.join(self._code_folder, link.path))
        with open(os.path.join(self._staging, release_store.MANIFEST), "wb") as file:
            file.write(zlib.compress(self._manifest_bytes))
            file.flush()
            os.fsync(file.fileno())
        yield from self._publish()

    def abort(self) -> Steps:
        """Remove the unfinished release; harmless after `finish`."""
        if self._open_file is not None:
            self._open_file.close()
            self._open_file = None
        yield from release_store.remove_tree(self._staging)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock_fd is not None:
            os.close(self._lock_fd)
            self._lock_fd = None

    def _reuse_stored(self, by_mode: Dict[int, str], file: File) -> Generator[None, None, bool]:
        """Reuse a stored file: as a hard link, or as a copy.

        It is a copy if none has this mode, which links would share, or the disk has no hard links.
        """
        mode = release_store.stored_mode(file)
        source = by_mode.get(mode) or next(iter(by_mode.values()))
        if mode not in by_mode or not _link(source, os.path.join(self._code_folder, file.path)):
            try:
                yield from self._copy(source, file)
            except FileNotFoundError:  # removed by another deploy
                return False
        yield from self._copy_duplicates(file)
        return True

    def _copy(self, source: str, file: File) -> Steps:
        target = os.path.join(self._code_folder, file.path)
        yield from copy_file(source, target, release_store.stored_mode(file))
        release_store.complete(target, file)

    def _copy_duplicates(self, file: File) -> Steps:
        first = os.path.join(self._code_folder, file.path)
        for other in self._files_by_digest[file.digest]:
            if other is not file:
                yield from self._copy(first, other)

    def _next_file(self) -> Steps:
        """Finish the file that is complete, and open the next one."""
        while self._open_file is None or not self._open_file.remaining:
            if self._open_file is not None:
                finished = self._open_file
                self._open_file = None
                finished.finish()
                yield from self._copy_duplicates(finished.file)
            file = next(self._upcoming, None)
            if file is None:
                return
            self._open_file = _OpenFile(file, os.path.join(self._code_folder, file.path))

    def _publish(self) -> Steps:
        for _ in range(2):
            try:
                os.rename(self._staging, self._release_path)
                self._unlock()
                return
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            damage = yield from release_store.find_damage(self._workdir, self.name)
            if not damage:  # another process has stored it
                yield from self.abort()
                return
            broken = f"{self._staging[: -len(STAGING_SUFFIX)]}.broken{STAGING_SUFFIX}"
            os.rename(self._release_path, broken)
            yield from release_store.remove_tree(broken)
        raise ValueError(f"{self._release_path} is in the way")


def _link(source: str, target: str) -> bool:
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


class _OpenFile:
    def __init__(self, file: File, path: str) -> None:
        self.file = file
        self.remaining = file.size
        self._path = path
        self._digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)

    def write(self, view: memoryview) -> memoryview:
        part = view[: self.remaining]
        self._digest.update(part)
        written = 0
        while written < len(part):
            written += os.write(self._descriptor, part[written:])
        self.remaining -= len(part)
        return view[len(part) :]

    def finish(self) -> None:
        self.close()
        if self._digest.hexdigest() != self.file.digest:
            raise ValueError(f"{self.file.path} arrived with other content")
        release_store.complete(self._path, self.file)

    def close(self) -> None:
        os.close(self._descriptor)
