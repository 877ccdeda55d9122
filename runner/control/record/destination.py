"""Destination of downloads: always below the run's folder, whatever names a host sends.

A file that only grows on its host continues where the local copy ends; any other is written to a
partial file, named after its version, and renamed when it is complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import BufferedWriter
from pathlib import Path

from runner.control.record.file_names import HOSTS_FOLDER
from runner.control.record.run_store import try_lock_folder
from runner.core.errors import NotReady, Problem
from runner.core.wire.files import APPEND_ONLY, LOG, OUTPUT, RemoteFile, parse_log_path
from runner.core.wire.paths import local_name

WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PARTIAL_FOLDER = ".partial"


class DownloadFolder:
    """The folder of one run, below which everything is written."""

    def __init__(self, folder: Path) -> None:
        """Open and lock it; raise NotReady if that fails, or another process writes there."""
        self._folder = folder
        self._last_parent: tuple[str, ...] = ()
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = try_lock_folder(folder)
        except OSError as error:
            raise NotReady([Problem("", f"cannot write in {folder}: {error.strerror}")]) from error
        if lock_fd is None:
            message = (
                f"{folder} is being written by another pull, or by a process that follows that run"
            )
            raise NotReady([Problem("", message, "wait for its end")])
        self._lock_fd = lock_fd

    def close(self) -> None:
        """Unlock the folder."""
        os.close(self._lock_fd)

    def remove_partials(self, node: str) -> None:
        """Remove what is left of a node's files that have changed since."""
        partials = self._folder / PARTIAL_FOLDER
        shutil.rmtree(partials / node, ignore_errors=True)
        with contextlib.suppress(OSError):
            partials.rmdir()

    def path(self, name: str, *, create: bool = False) -> Path:
        """Return the path of a file below the folder, whose own folders are made with `create`.

        Raise ValueError if one of them is a link, which may lead out, or a file.
        """
        parent = tuple(name.split("/")[:-1])
        if parent != self._last_parent:  # most files follow another of their folder
            folder = self._folder
            for part in parent:
                folder /= part
                if create:
                    with contextlib.suppress(FileExistsError):
                        folder.mkdir(mode=0o700)
                status = _lstat(folder)
                if status is None:
                    return self._folder / name
                if not stat.S_ISDIR(status.st_mode):
                    raise ValueError(f"{folder.relative_to(self._folder)} is in the way")
            self._last_parent = parent
        return self._folder / name


class FileDownload:
    """The download of one file or link to `dest`, its path below the run's folder."""

    def __init__(self, folder: DownloadFolder, dest: str, source: RemoteFile) -> None:
        self.dest = dest
        self.source = source
        self.tries = 0
        self.position = 0  # bytes
        self.abandoned = False
        self._folder = folder
        self._grows = source.kind == LOG or (source.kind != OUTPUT and source.path in APPEND_ONLY)
        version = f"{dest} {source.size} {source.mtime_ns}"
        digest = hashlib.sha256(version.encode("utf-8", "surrogateescape")).hexdigest()
        self._partial = f"{PARTIAL_FOLDER}/{dest.split('/')[1]}/{digest}"

    def resume_offset(self) -> int | None:
        """Return the offset to download from, None if it is complete; may raise ValueError."""
        path = self._folder.path(self.dest)
        status = _lstat(path)
        is_file = status is not None and stat.S_ISREG(status.st_mode)
        if status is not None and (stat.S_ISDIR(status.st_mode) or (self._grows and not is_file)):
            raise ValueError("something other than a file is in the way")
        size = self.source.size
        if self._grows:
            local_size = status.st_size if status else 0
            if local_size > size:
                raise ValueError(
                    f"is longer here ({local_size} bytes) than on the host ({size}): another file"
                )
            return None if local_size == size else local_size
        if self.source.link_target is not None:
            target = os.readlink(path) if status and stat.S_ISLNK(status.st_mode) else None  # noqa: PTH115 (which changes it)
            return None if target == self.source.link_target else 0
        version = (size, self.source.mtime_ns)
        if status and is_file and (status.st_size, status.st_mtime_ns) == version:
            return None
        partial = _lstat(self._folder.path(self._partial))
        return partial.st_size if partial and partial.st_size <= size else 0

    def has_changed(self, size: int, mtime_ns: int) -> bool:
        """Return whether the source is another one, given its present size and time."""
        if self._grows:
            return size < self.source.size
        return (size, mtime_ns) != (self.source.size, self.source.mtime_ns)

    def write(self, data: bytes) -> None:
        """Write what follows."""
        with self._open() as file:
            file.seek(self.position)
            file.write(data)
        self.position += len(data)

    def finish(self) -> None:
        """Give what is complete its name, size, time and permissions."""
        if self._grows:
            return
        source = self.source
        if source.link_target is None:
            with self._open() as file:
                file.truncate(source.size)
                os.fchmod(file.fileno(), source.mode)
                os.utime(file.fileno(), ns=(source.mtime_ns, source.mtime_ns))
                # Else a power cut may leave its size and time without its data.
                os.fsync(file.fileno())
        else:
            path = self._folder.path(self._partial, create=True)
            path.unlink(missing_ok=True)
            path.symlink_to(source.link_target)
        partial = self._folder.path(self._partial, create=True)
        partial.replace(self._folder.path(self.dest, create=True))

    def renewed(self, size: int, mtime_ns: int) -> FileDownload:
        """Return a download of the changed source; raise ValueError if it cannot be continued."""
        if self._grows:
            raise ValueError("became shorter on the host")
        self._folder.path(self._partial, create=True).unlink(missing_ok=True)
        source = replace(self.source, size=size, mtime_ns=mtime_ns)
        download = FileDownload(self._folder, self.dest, source)
        download.tries = self.tries
        return download

    def _open(self) -> BufferedWriter:
        path = self._folder.path(self.dest if self._grows else self._partial, create=True)
        return os.fdopen(os.open(path, WRITE_FLAGS, 0o600), "wb")


def _lstat(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except FileNotFoundError:
        return None


def plan_downloads(
    folder: DownloadFolder, node: str, remote_files: Sequence[RemoteFile]
) -> Iterator[FileDownload]:
    """Yield the downloads of one node, logs and records before outputs."""
    for remote in sorted(remote_files, key=lambda file: file.kind == OUTPUT):
        if remote.kind == OUTPUT:
            yield FileDownload(folder, f"outputs/{node}/{remote.path}", remote)
        elif remote.kind != LOG:
            yield FileDownload(folder, f"{HOSTS_FOLDER}/{node}/{remote.path}", remote)
        elif remote.size:
            name = local_name(*parse_log_path(remote.path))
            yield FileDownload(folder, f"logs/{node}/{name}", remote)
