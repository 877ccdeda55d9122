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

from runner.control.record.folder_lock import claim
from runner.core.errors import NotReady, Problem
from runner.core.protocol.paths import kept_name
from runner.core.protocol.remote_files import GROWING, LOG, OUTPUT, Found, log_place

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
WRITE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
PART = ".part-"
FOLDERS = 64
"""So many are kept open."""

Parts = tuple[str, ...]


class InTheWay(ValueError):
    """Something else has the place of a file or a folder."""


class Shelf:
    """The folder of one run, below which all is written."""

    def __init__(self, folder: Path) -> None:
        """Open it, for one pull at a time.

        Raises:
            NotReady: It cannot be made, or another pull writes there.
        """
        self._parts: dict[Parts, set[str]] = {}
        self._folders: dict[Parts, int] = {}
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            root = claim(folder)
        except OSError as error:
            raise NotReady([Problem("", f"cannot write in {folder}: {error.strerror}")]) from error
        if root is None:
            what = f"{folder} is being written by another pull, or by who follows that run"
            raise NotReady([Problem("", what, "wait for its end")])
        self._root = root

    def close(self) -> None:
        """Let others write."""
        for descriptor in (*self._folders.values(), self._root):
            os.close(descriptor)

    def folder(self, place: Parts, *, make: bool) -> int:
        """Return a descriptor of the folder that `place` lies in; it stays ours.

        Raises:
            InTheWay: A file or a link is where a folder should be.
            FileNotFoundError: It is not there, and not to be made.
        """
        above = place[:-1]
        if above not in self._folders:
            if len(self._folders) >= FOLDERS:
                for descriptor in self._folders.values():
                    os.close(descriptor)
                self._folders.clear()
            self._folders[above] = self._opened(above, make=make)
        return self._folders[above]

    def _opened(self, path: Parts, *, make: bool) -> int:
        at, depth = os.dup(self._root), 0
        try:
            for depth, part in enumerate(path, 1):  # noqa: B007 (of use when it fails)
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(part, 0o700, dir_fd=at)
                deeper = os.open(part, FOLDER, dir_fd=at)
                os.close(at)
                at = deeper
        except OSError as error:
            os.close(at)
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise InTheWay(f"{'/'.join(path[:depth])} is in the way") from error
            raise
        return at

    def status(self, place: Parts) -> os.stat_result | None:
        """Return what lies at a place, None for nothing."""
        try:
            at = self.folder(place, make=False)
            return os.stat(place[-1], dir_fd=at, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def write(self, place: Parts, offset: int, data: bytes) -> None:
        """Write a piece of a file."""
        if place[:-1] in self._parts and place[-1].startswith(PART):
            self._parts[place[:-1]].add(place[-1])
        at = self.folder(place, make=True)
        descriptor = os.open(place[-1], WRITE, 0o600, dir_fd=at)
        try:
            view = memoryview(data)
            while view:
                written = os.pwrite(descriptor, view, offset)
                view, offset = view[written:], offset + written
        finally:
            os.close(descriptor)

    def settle(self, part: Parts, name: str, found: Found) -> None:
        """Give what was written aside its place, size, time and permissions."""
        at = self.folder(part, make=True)
        descriptor = os.open(part[-1], WRITE, 0o600, dir_fd=at)
        try:
            os.ftruncate(descriptor, found.size)
            os.fchmod(descriptor, found.mode)
            os.utime(descriptor, ns=(found.mtime_ns, found.mtime_ns))
        finally:
            os.close(descriptor)
        os.rename(part[-1], name, src_dir_fd=at, dst_dir_fd=at)
        self._parts.get(part[:-1], set()).discard(part[-1])

    def leftover(self, place: Parts, stem: str, name: str) -> int:
        """Return the size of what an earlier pull left of `name`; remove other versions of it.

        Args:
            place: Where the file is to be.
            stem: How the names of all parts of that file begin.
            name: The part of this version.
        """
        above = place[:-1]
        size = 0
        with contextlib.suppress(FileNotFoundError):
            at = self.folder(place, make=False)
            if above not in self._parts:
                self._parts[above] = {each for each in _names(at) if each.startswith(PART)}
            for other in [each for each in self._parts[above] if each.startswith(stem)]:
                with contextlib.suppress(FileNotFoundError):  # it is whole by now
                    status = os.stat(other, dir_fd=at, follow_symlinks=False)
                    if other == name and stat.S_ISREG(status.st_mode):
                        size = status.st_size
                        continue
                    os.unlink(other, dir_fd=at)
                self._parts[above].discard(other)
        return size


class Job:
    """One file on its way here.

    Attributes:
        place: Where it goes, below the run's folder.
        source: What it is on its host.
        total: Its bytes.
        tries: How often it was begun.
    """

    def __init__(self, shelf: Shelf, place: Parts, source: Found) -> None:
        self.place, self.source = place, source
        self.total = source.size
        self.tries = 0
        self._shelf = shelf

    def begin(self) -> int | None:
        """Return from which byte on it is to be fetched, None if it is here.

        Raises:
            ValueError: It cannot be had.
            OSError: Likewise.
        """
        raise NotImplementedError

    def changed(self, size: int, mtime_ns: int) -> bool:
        """Whether the source is no longer what it was, now that it has that size and time."""
        raise NotImplementedError

    def write(self, offset: int, data: bytes) -> None:
        """Take a piece."""
        raise NotImplementedError

    def finish(self) -> None:
        """All of it is here."""

    def again(self, size: int, mtime_ns: int) -> Job | None:
        """Return the job that fetches what it is now; None if that makes no sense."""
        del size, mtime_ns
        return None


class Growing(Job):
    """A file that is only ever appended to: what is here is its beginning."""

    def begin(self) -> int | None:
        """Go on where it ends here."""
        status = self._shelf.status(self.place)
        if status is not None and not stat.S_ISREG(status.st_mode):
            raise InTheWay("something that is no file is in the way")
        have = status.st_size if status else 0
        if have > self.total:
            raise ValueError(
                f"is longer here ({have} bytes) than on the host ({self.total}): it is another one"
            )
        return None if have == self.total else have

    def changed(self, size: int, mtime_ns: int) -> bool:
        """Only if it lost something."""
        del mtime_ns
        return size < self.source.size

    def write(self, offset: int, data: bytes) -> None:
        """Append."""
        self._shelf.write(self.place, offset, data)


class Whole(Job):
    """A file that is here as a whole or not at all."""

    def __init__(self, shelf: Shelf, place: Parts, source: Found) -> None:
        super().__init__(shelf, place, source)
        name = place[-1].encode("utf-8", "surrogateescape")  # too long to have more added to it
        self._stem = f"{PART}{hashlib.sha256(name).hexdigest()[:16]}-"
        version = f"{self.source.size:x}-{self.source.mtime_ns:x}"
        self._part = (*place[:-1], f"{self._stem}{version}")

    def begin(self) -> int | None:
        """Go on with what an earlier pull left of the same version."""
        status = self._shelf.status(self.place)
        if status is not None and stat.S_ISDIR(status.st_mode):
            raise InTheWay("a folder is in the way")
        here = status is not None and (
            stat.S_ISREG(status.st_mode)
            and status.st_size == self.total
            and status.st_mtime_ns == self.source.mtime_ns
        )
        have = self._shelf.leftover(self.place, self._stem, "" if here else self._part[-1])
        return None if here else have if have <= self.total else 0

    def changed(self, size: int, mtime_ns: int) -> bool:
        """If it was written to."""
        return (size, mtime_ns) != (self.source.size, self.source.mtime_ns)

    def write(self, offset: int, data: bytes) -> None:
        """Write aside."""
        self._shelf.write(self._part, offset, data)

    def finish(self) -> None:
        """Put it into its place, with its time and permissions."""
        self._shelf.settle(self._part, self.place[-1], self.source)

    def again(self, size: int, mtime_ns: int) -> Job | None:
        """Return the job of its new version; what came of the old one goes."""
        self._shelf.leftover(self.place, self._stem, "")
        job = Whole(self._shelf, self.place, replace(self.source, size=size, mtime_ns=mtime_ns))
        job.tries = self.tries
        return job


class Symlink(Job):
    """A symbolic link: made here as it is there, wherever it leads."""

    def begin(self) -> int | None:
        """Nothing of it is to be fetched; 0 if it was not here."""
        target = self.source.target or ""
        try:
            at = self._shelf.folder(self.place, make=False)
            return None if os.readlink(self.place[-1], dir_fd=at) == target else 0
        except OSError:  # it is not there, or no link
            return 0

    def finish(self) -> None:
        """Make it."""
        target, name = self.source.target or "", self.place[-1]
        at = self._shelf.folder(self.place, make=True)
        aside = f"{PART}{os.getpid()}"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(aside, dir_fd=at)
        os.symlink(target, aside, dir_fd=at)
        try:
            os.rename(aside, name, src_dir_fd=at, dst_dir_fd=at)
        except IsADirectoryError as error:
            os.unlink(aside, dir_fd=at)
            raise InTheWay("a folder is in the way") from error


def _names(folder: int) -> list[str]:
    return os.listdir(folder)


def jobs_of(shelf: Shelf, node: str, found: Sequence[Found]) -> Iterator[Job]:
    """Yield what is to be done for the files of one node, logs before what the task left."""
    for each in found:
        if each.kind == LOG:
            path = kept_name(*log_place(each.path))
            if each.size:
                yield Growing(shelf, ("logs", node, *path.split("/")), each)
        elif each.kind != OUTPUT:
            make = Growing if each.path in GROWING else Whole
            yield make(shelf, ("hosts", node, each.path), each)
    for each in found:
        if each.kind == OUTPUT:
            place = ("outputs", node, *each.path.split("/"))
            yield (Whole if each.target is None else Symlink)(shelf, place, each)
