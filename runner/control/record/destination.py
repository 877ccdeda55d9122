"""Destination of downloads: always below the run's folder, whatever names a host sends.

Folders are opened without following links. A file that only grows on its host continues where
the local copy ends; any other is written to a partial file, named after its version, and renamed
when it is complete.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.control.record.file_names import HOSTS_FOLDER
from runner.control.record.run_store import try_lock_folder
from runner.core.errors import NotReady, Problem
from runner.core.protocol.paths import local_name
from runner.core.protocol.remote_files import APPEND_ONLY, LOG, OUTPUT, RemoteFile, parse_log_path

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_FOLDER = ".partial"

PathParts = tuple[str, ...]


class PathConflict(ValueError):
    """Something else is where a file or a folder should be."""


class DownloadFolder:
    """The folder of one run, below which everything is written."""

    def __init__(self, folder: Path) -> None:
        """Open and lock it; raise NotReady if that fails, or another process writes there."""
        self._folder = folder
        self._last_parent: PathParts = ()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            root_fd = try_lock_folder(folder)
        except OSError as error:
            raise NotReady([Problem("", f"cannot write in {folder}: {error.strerror}")]) from error
        if root_fd is None:
            message = (
                f"{folder} is being written by another pull, or by a process that follows that run"
            )
            raise NotReady([Problem("", message, "wait for its end")])
        self._root_fd = root_fd
        self._last_fd = os.dup(root_fd)

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._last_fd)
        os.close(self._root_fd)

    def remove_partials(self, node: str) -> None:
        """Remove what is left of a node's files that have changed since."""
        partials = self._folder / PARTIAL_FOLDER
        shutil.rmtree(partials / node, ignore_errors=True)
        with contextlib.suppress(OSError):
            partials.rmdir()

    def parent_fd(self, dest: PathParts, *, create: bool) -> int:
        """Return a descriptor of the folder of `dest`, open until the next call.

        Raise PathConflict if a file or a link is where a folder should be, and FileNotFoundError if
        it does not exist and `create` is false.
        """
        parent = dest[:-1]
        if parent != self._last_parent:  # most files follow another of their folder
            descriptor = self._open_folder(parent, create=create)
            os.close(self._last_fd)
            self._last_fd = descriptor
            self._last_parent = parent
        return self._last_fd

    def _open_folder(self, path: PathParts, *, create: bool) -> int:
        folder_fd = os.dup(self._root_fd)
        depth = 0
        try:
            for depth, name in enumerate(path, 1):  # noqa: B007 (used when it fails)
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder_fd)
                parent_fd = folder_fd
                folder_fd = os.open(name, FOLDER_FLAGS, dir_fd=parent_fd)
                os.close(parent_fd)
        except OSError as error:
            os.close(folder_fd)
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise PathConflict(f"{'/'.join(path[:depth])} is in the way") from error
            raise
        return folder_fd

    def lstat(self, dest: PathParts) -> os.stat_result | None:
        """Return the status of a path, None if it does not exist."""
        try:
            folder_fd = self.parent_fd(dest, create=False)
            return os.stat(dest[-1], dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def remove(self, dest: PathParts) -> None:
        """Remove a file, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(dest[-1], dir_fd=self.parent_fd(dest, create=False))

    def write(self, dest: PathParts, offset: int, data: bytes) -> None:
        """Write a chunk of a file."""
        descriptor = self._open(dest)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view = view[written:]
                offset += written
        finally:
            os.close(descriptor)

    def finalise(self, partial: PathParts, dest: PathParts, source: RemoteFile) -> None:
        """Give a partial file its name, size, time and permissions."""
        descriptor = self._open(partial)
        try:
            os.ftruncate(descriptor, source.size)
            os.fchmod(descriptor, source.mode)
            os.utime(descriptor, ns=(source.mtime_ns, source.mtime_ns))
            os.fsync(descriptor)  # else a power cut may leave its size and time without its data
        finally:
            os.close(descriptor)
        self.rename(partial, dest)

    def rename(self, partial: PathParts, dest: PathParts) -> None:
        """Move what is complete to its name."""
        partial_fd = os.dup(self.parent_fd(partial, create=True))
        try:
            folder_fd = self.parent_fd(dest, create=True)
            os.rename(partial[-1], dest[-1], src_dir_fd=partial_fd, dst_dir_fd=folder_fd)
        finally:
            os.close(partial_fd)

    def _open(self, dest: PathParts) -> int:
        return os.open(dest[-1], WRITE_FLAGS, 0o600, dir_fd=self.parent_fd(dest, create=True))


class FileDownload:
    """The download of one file to `dest`, its path below the run's folder."""

    def __init__(self, folder: DownloadFolder, dest: PathParts, source: RemoteFile) -> None:
        self.dest = dest
        self.source = source
        self.total = source.size  # bytes
        self.tries = 0
        self.position = 0  # bytes
        self.abandoned = False
        self._folder = folder

    def resume_offset(self) -> int | None:
        """Return the offset to download from, None if it is complete; may raise ValueError."""
        raise NotImplementedError

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Return whether the source has changed, given its present size and time."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> None:
        """Write a chunk."""
        self._folder.write(self.dest, offset, data)

    def finish(self) -> None:
        """Handle the end of the download."""

    def for_new_version(self, size: int, mtime_ns: int) -> FileDownload | None:
        """Return a download of the changed source; None if there is no point in one."""
        del size, mtime_ns
        return None


class AppendOnlyDownload(FileDownload):
    """A file that is only appended to, so that the local copy is a prefix of it."""

    def resume_offset(self) -> int | None:
        """Return the local size."""
        status = self._folder.lstat(self.dest)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise PathConflict("something other than a file is in the way")
        local_size = status.st_size if status else 0
        if local_size > self.total:
            raise ValueError(
                f"is longer here ({local_size} bytes) than on the host ({self.total}): another file"
            )
        return None if local_size == self.total else local_size

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Return whether it became shorter."""
        del mtime_ns
        return size < self.source.size


class AtomicDownload(FileDownload):
    """A file that is written to a partial file first."""

    def __init__(self, folder: DownloadFolder, dest: PathParts, source: RemoteFile) -> None:
        super().__init__(folder, dest, source)
        version = f"{'/'.join(dest)} {source.size} {source.mtime_ns}"
        name = hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()
        self._partial = (PARTIAL_FOLDER, dest[1], name)

    def resume_offset(self) -> int | None:
        """Return the size of the partial file of the same version."""
        status = self._folder.lstat(self.dest)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise PathConflict("a folder is in the way")
        version = (self.total, self.source.mtime_ns)
        is_file = status is not None and stat.S_ISREG(status.st_mode)
        if status and is_file and (status.st_size, status.st_mtime_ns) == version:
            return None
        partial = self._folder.lstat(self._partial)
        return partial.st_size if partial and partial.st_size <= self.total else 0

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Return whether it was written to."""
        return (size, mtime_ns) != (self.source.size, self.source.mtime_ns)

    def write(self, offset: int, data: bytes) -> None:
        """Write to the partial file."""
        self._folder.write(self._partial, offset, data)

    def finish(self) -> None:
        """Rename the partial file."""
        self._folder.finalise(self._partial, self.dest, self.source)

    def for_new_version(self, size: int, mtime_ns: int) -> FileDownload | None:
        """Return a download of the new version, and remove the partial file."""
        self._folder.remove(self._partial)
        source = replace(self.source, size=size, mtime_ns=mtime_ns)
        download = AtomicDownload(self._folder, self.dest, source)
        download.tries = self.tries
        return download


class SymlinkDownload(FileDownload):
    """A symbolic link, created with the same target."""

    def resume_offset(self) -> int | None:
        """Return 0 if it must be created."""
        target = self.source.link_target or ""
        try:
            folder_fd = self._folder.parent_fd(self.dest, create=False)
            return None if os.readlink(self.dest[-1], dir_fd=folder_fd) == target else 0
        except OSError:  # it does not exist, or is not a link
            return 0

    def finish(self) -> None:
        """Create the link."""
        partial = (PARTIAL_FOLDER, self.dest[1], "link")
        self._folder.remove(partial)
        folder_fd = self._folder.parent_fd(partial, create=True)
        os.symlink(self.source.link_target or "", partial[-1], dir_fd=folder_fd)
        try:
            self._folder.rename(partial, self.dest)
        except IsADirectoryError as error:
            raise PathConflict("a folder is in the way") from error


def plan_downloads(
    folder: DownloadFolder, node: str, remote_files: Sequence[RemoteFile]
) -> Iterator[FileDownload]:
    """Yield the downloads of one node, logs and records before outputs."""
    for remote in remote_files:
        if remote.kind == LOG:
            path = local_name(*parse_log_path(remote.path))
            if remote.size:
                yield AppendOnlyDownload(folder, ("logs", node, *path.split("/")), remote)
        elif remote.kind != OUTPUT:
            download_type = AppendOnlyDownload if remote.path in APPEND_ONLY else AtomicDownload
            yield download_type(folder, (HOSTS_FOLDER, node, *remote.path.split("/")), remote)
    for remote in remote_files:
        if remote.kind == OUTPUT:
            output_type = AtomicDownload if remote.link_target is None else SymlinkDownload
            yield output_type(folder, ("outputs", node, *remote.path.split("/")), remote)
