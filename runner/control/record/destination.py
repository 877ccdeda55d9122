"""Where files of the hosts land here: below the run's folder, whatever a host calls them.

Every folder on the way is opened as what it is: where a link is, nothing is written. A file that
only grows on its host goes on where it ends here; any other is written aside, under a name that
says which version of it that is, and renamed when it is whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.control.record.folder_lock import try_lock_folder
from runner.core.errors import NotReady, Problem
from runner.core.protocol.paths import local_name
from runner.core.protocol.remote_files import APPEND_ONLY, LOG, OUTPUT, RemoteFile, parse_log_path

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_PREFIX = ".part-"
MAX_OPEN_FOLDERS = 64
"""So many are kept open."""

PathParts = tuple[str, ...]


class PathConflict(ValueError):
    """Something else has the place of a file or a folder."""


class DownloadFolder:
    """The folder of one run, below which all is written."""

    def __init__(self, folder: Path) -> None:
        """Open it, for one pull at a time.

        Raises:
            NotReady: It cannot be made, or another pull writes there.
        """
        self._partials: dict[PathParts, set[str]] = {}
        self._open_folders: dict[PathParts, int] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            root_fd = try_lock_folder(folder)
        except OSError as error:
            raise NotReady([Problem("", f"cannot write in {folder}: {error.strerror}")]) from error
        if root_fd is None:
            message = f"{folder} is being written by another pull, or by who follows that run"
            raise NotReady([Problem("", message, "wait for its end")])
        self._root_fd = root_fd

    def close(self) -> None:
        """Let others write."""
        for descriptor in (*self._open_folders.values(), self._root_fd):
            os.close(descriptor)

    def parent_fd(self, dest: PathParts, *, create: bool) -> int:
        """Return a descriptor of the folder that `dest` lies in; it stays ours.

        Raises:
            PathConflict: A file or a link is where a folder should be.
            FileNotFoundError: It is not there, and not to be made.
        """
        parent = dest[:-1]
        if parent not in self._open_folders:
            if len(self._open_folders) >= MAX_OPEN_FOLDERS:
                for descriptor in self._open_folders.values():
                    os.close(descriptor)
                self._open_folders.clear()
            self._open_folders[parent] = self._open_folder(parent, create=create)
        return self._open_folders[parent]

    def _open_folder(self, path: PathParts, *, create: bool) -> int:
        folder_fd, depth = os.dup(self._root_fd), 0
        try:
            for depth, name in enumerate(path, 1):  # noqa: B007 (of use when it fails)
                if create:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=folder_fd)
                child_fd = os.open(name, FOLDER_FLAGS, dir_fd=folder_fd)
                os.close(folder_fd)
                folder_fd = child_fd
        except OSError as error:
            os.close(folder_fd)
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise PathConflict(f"{'/'.join(path[:depth])} is in the way") from error
            raise
        return folder_fd

    def lstat(self, dest: PathParts) -> os.stat_result | None:
        """Return what lies at a place, None for nothing."""
        try:
            folder_fd = self.parent_fd(dest, create=False)
            return os.stat(dest[-1], dir_fd=folder_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def write(self, dest: PathParts, offset: int, data: bytes) -> None:
        """Write a piece of a file."""
        if dest[:-1] in self._partials and dest[-1].startswith(PARTIAL_PREFIX):
            self._partials[dest[:-1]].add(dest[-1])
        folder_fd = self.parent_fd(dest, create=True)
        descriptor = os.open(dest[-1], WRITE_FLAGS, 0o600, dir_fd=folder_fd)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)

    def finalise(self, partial: PathParts, name: str, source: RemoteFile) -> None:
        """Give what was written aside its place, size, time and permissions."""
        folder_fd = self.parent_fd(partial, create=True)
        descriptor = os.open(partial[-1], WRITE_FLAGS, 0o600, dir_fd=folder_fd)
        try:
            os.ftruncate(descriptor, source.size)
            os.fchmod(descriptor, source.mode)
            os.utime(descriptor, ns=(source.mtime_ns, source.mtime_ns))
        finally:
            os.close(descriptor)
        os.rename(partial[-1], name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        self._partials.get(partial[:-1], set()).discard(partial[-1])

    def partial_size(self, dest: PathParts, prefix: str, name: str) -> int:
        """Return the size of what an earlier pull left of `name`; remove other versions of it.

        Args:
            dest: Where the file is to be.
            prefix: How the names of all parts of that file begin.
            name: The part of this version.
        """
        parent = dest[:-1]
        size = 0
        with contextlib.suppress(FileNotFoundError):
            folder_fd = self.parent_fd(dest, create=False)
            if parent not in self._partials:
                self._partials[parent] = {
                    entry for entry in _listdir(folder_fd) if entry.startswith(PARTIAL_PREFIX)
                }
            for other in [entry for entry in self._partials[parent] if entry.startswith(prefix)]:
                with contextlib.suppress(FileNotFoundError):  # it is whole by now
                    status = os.stat(other, dir_fd=folder_fd, follow_symlinks=False)
                    if other == name and stat.S_ISREG(status.st_mode):
                        size = status.st_size
                        continue
                    os.unlink(other, dir_fd=folder_fd)
                self._partials[parent].discard(other)
        return size


class FileDownload:
    """One file on its way here.

    Attributes:
        dest: Where it goes, below the run's folder.
        source: What it is on its host.
        total: Its bytes.
        tries: How often it was begun.
    """

    def __init__(self, folder: DownloadFolder, dest: PathParts, source: RemoteFile) -> None:
        self.dest, self.source = dest, source
        self.total = source.size
        self.tries = 0
        self._folder = folder

    def resume_offset(self) -> int | None:
        """Return from which byte on it is to be fetched, None if it is here.

        Raises:
            ValueError: It cannot be had.
            OSError: Likewise.
        """
        raise NotImplementedError

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Whether the source is no longer what it was, now that it has that size and time."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> None:
        """Take a piece."""
        raise NotImplementedError

    def finish(self) -> None:
        """All of it is here."""

    def for_new_version(self, size: int, mtime_ns: int) -> FileDownload | None:
        """Return the job that fetches what it is now; None if that makes no sense."""
        del size, mtime_ns
        return None


class AppendOnlyDownload(FileDownload):
    """A file that is only ever appended to: what is here is its beginning."""

    def resume_offset(self) -> int | None:
        """Go on where it ends here."""
        status = self._folder.lstat(self.dest)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise PathConflict("something that is no file is in the way")
        local_size = status.st_size if status else 0
        if local_size > self.total:
            raise ValueError(
                f"is longer here ({local_size} bytes) than on the host ({self.total}): it is another one"
            )
        return None if local_size == self.total else local_size

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Only if it lost something."""
        del mtime_ns
        return size < self.source.size

    def write(self, offset: int, data: bytes) -> None:
        """Append."""
        self._folder.write(self.dest, offset, data)


class AtomicDownload(FileDownload):
    """A file that is here as a whole or not at all."""

    def __init__(self, folder: DownloadFolder, dest: PathParts, source: RemoteFile) -> None:
        super().__init__(folder, dest, source)
        name = dest[-1].encode("utf-8", "surrogateescape")  # too long to have more added to it
        self._partial_prefix = f"{PARTIAL_PREFIX}{hashlib.sha256(name).hexdigest()[:16]}-"
        version = f"{self.source.size:x}-{self.source.mtime_ns:x}"
        self._partial = (*dest[:-1], f"{self._partial_prefix}{version}")

    def resume_offset(self) -> int | None:
        """Go on with what an earlier pull left of the same version."""
        status = self._folder.lstat(self.dest)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise PathConflict("a folder is in the way")
        is_complete = status is not None and (
            stat.S_ISREG(status.st_mode)
            and status.st_size == self.total
            and status.st_mtime_ns == self.source.mtime_ns
        )
        partial_size = self._folder.partial_size(
            self.dest, self._partial_prefix, "" if is_complete else self._partial[-1]
        )
        return None if is_complete else partial_size if partial_size <= self.total else 0

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """If it was written to."""
        return (size, mtime_ns) != (self.source.size, self.source.mtime_ns)

    def write(self, offset: int, data: bytes) -> None:
        """Write aside."""
        self._folder.write(self._partial, offset, data)

    def finish(self) -> None:
        """Put it into its place, with its time and permissions."""
        self._folder.finalise(self._partial, self.dest[-1], self.source)

    def for_new_version(self, size: int, mtime_ns: int) -> FileDownload | None:
        """Return the job of its new version; what came of the old one goes."""
        self._folder.partial_size(self.dest, self._partial_prefix, "")
        download = AtomicDownload(
            self._folder, self.dest, replace(self.source, size=size, mtime_ns=mtime_ns)
        )
        download.tries = self.tries
        return download


class SymlinkDownload(FileDownload):
    """A symbolic link: made here as it is there, wherever it leads."""

    def resume_offset(self) -> int | None:
        """Nothing of it is to be fetched; 0 if it was not here."""
        target = self.source.link_target or ""
        try:
            folder_fd = self._folder.parent_fd(self.dest, create=False)
            return None if os.readlink(self.dest[-1], dir_fd=folder_fd) == target else 0
        except OSError:  # it is not there, or no link
            return 0

    def finish(self) -> None:
        """Make it."""
        target, name = self.source.link_target or "", self.dest[-1]
        folder_fd = self._folder.parent_fd(self.dest, create=True)
        temp_name = f"{PARTIAL_PREFIX}{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temp_name, dir_fd=folder_fd)
        os.symlink(target, temp_name, dir_fd=folder_fd)
        try:
            os.rename(temp_name, name, src_dir_fd=folder_fd, dst_dir_fd=folder_fd)
        except IsADirectoryError as error:
            os.unlink(temp_name, dir_fd=folder_fd)
            raise PathConflict("a folder is in the way") from error


def _listdir(folder: int) -> list[str]:
    return os.listdir(folder)


def plan_downloads(
    folder: DownloadFolder, node: str, remote_files: Sequence[RemoteFile]
) -> Iterator[FileDownload]:
    """Yield what is to be done for the files of one node, logs before what the task left."""
    for remote in remote_files:
        if remote.kind == LOG:
            path = local_name(*parse_log_path(remote.path))
            if remote.size:
                yield AppendOnlyDownload(folder, ("logs", node, *path.split("/")), remote)
        elif remote.kind != OUTPUT:
            download_type = AppendOnlyDownload if remote.path in APPEND_ONLY else AtomicDownload
            yield download_type(folder, ("hosts", node, remote.path), remote)
    for remote in remote_files:
        if remote.kind == OUTPUT:
            dest = ("outputs", node, *remote.path.split("/"))
            yield (AtomicDownload if remote.link_target is None else SymlinkDownload)(
                folder, dest, remote
            )
