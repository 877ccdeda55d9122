"""A release on its way in: assembled aside, every hash verified, then renamed into its place."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import zlib
from typing import Dict, Generator, List, Optional

from runner.core.model.release import File, Manifest, distinct, release_hash
from runner.core.protocol.paths import CODE, release_folder, releases_folder
from runner.host.process.job_queue import Steps
from runner.host.storage.reflink import copy_file
from runner.host.storage.release_store import (
    ASIDE,
    MANIFEST,
    STEP,
    digest_of,
    held_in_steps,
    known_contents,
    lock_folder,
    remove_stale,
    remove_tree,
    seal,
    sealed,
    stored_mode,
)


class Assembly:
    """A release in the making: `missing` is what has to come, in the order in which it must."""

    def __init__(self, workdir: str, encoded: bytes) -> None:
        """Begin one.

        Raises:
            ValueError: That is no manifest.
            OSError: Nothing can be written here.
        """
        self.manifest = Manifest.decode(encoded)
        self.name = release_hash(encoded)
        self.missing: List[File] = []
        self._encoded = encoded
        self._final = release_folder(workdir, self.name)
        parent = releases_folder(workdir)
        os.makedirs(parent, mode=0o700, exist_ok=True)
        mark = f"{os.uname().nodename}.{os.getpid()}{ASIDE}"
        self._aside = os.path.join(parent, f".{self.name}.{mark}")
        self._code = os.path.join(self._aside, CODE)
        self._places: Dict[str, List[File]] = {}
        for file in self.manifest.files:
            self._places.setdefault(file.digest, []).append(file)
        self._next = 0
        self._writing: Optional[_Writing] = None
        self._lock: Optional[int] = None

    def begin(self) -> Steps:
        """Make the folders, and take over what earlier releases have."""
        yield from remove_stale(os.path.dirname(self._final))
        os.makedirs(self._code, mode=0o700)
        self._lock = lock_folder(self._aside)
        for folder in self.manifest.folders:
            os.mkdir(os.path.join(self._code, folder.path), 0o700)
        known = yield from known_contents(os.path.dirname(self._final))
        done = 0
        for file in distinct(self.manifest):
            source = known.get((file.digest, stored_mode(file)))
            if source is None or not (yield from self._take_over(source, file)):
                self.missing.append(file)
                continue
            done += file.size + 4096
            if done > STEP:
                done = 0
                yield
        yield from self._turn_over()

    @property
    def lacks_room(self) -> str:
        """Why what is missing will not fit on the disk, "" if it will."""
        disk = os.statvfs(self._aside)
        free, needed = disk.f_bavail * disk.f_frsize, sum(file.size for file in self.missing)
        if needed <= free:
            return ""
        megabytes = f"{needed / 1e6:.1f} MB are needed, {free / 1e6:.1f} MB are free"
        return f"{os.strerror(errno.ENOSPC)}: {megabytes}"

    def feed(self, data: bytes) -> Steps:
        """Take the next bytes of the stream: the missing files one after the other.

        Raises:
            ValueError: A file is not what the manifest says, or there is too much.
            OSError: It cannot be written.
        """
        view = memoryview(data)
        while view:
            if self._writing is None:
                raise ValueError("more came than was missing")
            view = self._writing.take(view)
            if not self._writing.left:
                yield from self._turn_over()
                yield

    def finish(self) -> Steps:
        """Complete the tree, verify it, and rename it to its place.

        Raises:
            ValueError: Something is not what the manifest says.
            OSError: It cannot be written.
        """
        if self._writing is not None:
            raise ValueError(f"the stream ended within {self._writing.file.path}")
        for link in self.manifest.links:
            os.symlink(link.target, os.path.join(self._code, link.path))
        with open(os.path.join(self._aside, MANIFEST), "wb") as file:
            file.write(zlib.compress(self._encoded))
        yield from self._verify()
        yield from self._publish()

    def abandon(self) -> None:
        """Leave nothing behind; harmless when it is done."""
        if self._writing is not None:
            self._writing.close()
            self._writing = None
        shutil.rmtree(self._aside, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _take_over(self, source: str, file: File) -> Generator[None, None, bool]:
        """Give a known content its place: as another name of the same file where the disk can."""
        target = os.path.join(self._code, file.path)
        try:
            os.link(source, target)
        except OSError:
            try:
                yield from self._copy(source, file)
            except FileNotFoundError:  # removed by somebody's `deploy.keep`
                return False
        yield from self._spread(file)
        return True

    def _copy(self, source: str, file: File) -> Steps:
        target = os.path.join(self._code, file.path)
        for _ in copy_file(source, target, stored_mode(file)):
            yield
        seal(target, file)

    def _spread(self, file: File) -> Steps:
        """Copy a file that is here to the other places with the same content."""
        first = os.path.join(self._code, file.path)
        for other in self._places[file.digest]:
            if other is not file:
                yield from self._copy(first, other)

    def _turn_over(self) -> Steps:
        """End the file that is complete, and open the next one."""
        while self._writing is None or not self._writing.left:
            if self._writing is not None:
                writing, self._writing = self._writing, None
                writing.end()
                yield from self._spread(writing.file)
            if self._next == len(self.missing):
                return
            file = self.missing[self._next]
            self._next += 1
            self._writing = _Writing(file, os.path.join(self._code, file.path))

    def _verify(self) -> Steps:
        """Read back all that was not hashed as it came."""
        came = {id(file) for file in self.missing}
        for file in self.manifest.files:
            path = os.path.join(self._code, file.path)
            if id(file) not in came and (yield from digest_of(path)) != file.digest:
                raise ValueError(f"{file.path} is not what it was in an earlier release")
            if not sealed(path, file):
                raise ValueError(f"{file.path} was changed while it was stored")

    def _publish(self) -> Steps:
        parent = os.path.dirname(self._final)
        for _ in range(2):
            try:
                os.rename(self._aside, self._final)
                self._unlock()
                return
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
            if (yield from held_in_steps(os.path.dirname(parent), self.name)):  # by somebody else
                self.abandon()
                return
            broken = f"{self._aside[: -len(ASIDE)]}.broken{ASIDE}"
            os.rename(self._final, broken)
            yield from remove_tree(broken)
        raise ValueError(f"{self._final} is in the way")


class _Writing:
    """One file on its way in."""

    def __init__(self, file: File, path: str) -> None:
        self.file = file
        self.left = file.size
        self._path = path
        self._digest = hashlib.sha256()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, 0o600)

    def take(self, view: memoryview) -> memoryview:
        """Write what is of this file; return the rest."""
        part = view[: self.left]
        self._digest.update(part)
        written = 0
        while written < len(part):
            written += os.write(self._descriptor, part[written:])
        self.left -= len(part)
        return view[len(part) :]

    def end(self) -> None:
        """Verify and seal it."""
        self.close()
        if self._digest.hexdigest() != self.file.digest:
            raise ValueError(f"{self.file.path} arrived as something else")
        seal(self._path, self.file)

    def close(self) -> None:
        os.close(self._descriptor)
