"""Checkout: what ranks run, a release copied to a place of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import stat
import threading
import time
from collections import deque
from typing import Callable, Deque, Dict, Generator, Sequence, Tuple

from runner.core.model.release import File
from runner.core.protocol.paths import CODE_FOLDER, release_folder, releases_folder
from runner.host.process.event_loop import PAUSE_STEP_S, Steps, pause
from runner.host.storage.release_store import BYTES_PER_STEP, MANIFEST, has_size, load_manifest

COPY_THREADS = 8
JOIN_TIMEOUT_S = 1.0
COPY_LOCK = ".copying"
TURN_POLL_S = (0.05, 0.3)
TURN_TIMEOUT_S = 600.0  # of hosts that copy before us, on a disk that all of them share

_FICLONE = 0x40049409  # the ioctl that makes one file share the blocks of another (linux/fs.h)
_CAN_REFLINK: Dict[Tuple[int, int], bool] = {}
"""Whether files can be cloned from one device to another, by both device numbers."""


def check_out(workdir: str, name: str, target: str) -> Steps:
    """Make a private copy of a release in the empty folder `target`.

    On a disk that cannot share blocks among files one host at a time does so, in several threads.

    Raises:
        ValueError: The release is not here, or a file of it has another size than it had.
        OSError: The copy cannot be written.
    """
    root = release_folder(workdir, name)
    manifest = load_manifest(root)
    if manifest is None:
        raise ValueError(f"release {name} is no longer in {workdir}")
    os.utime(os.path.join(root, MANIFEST))  # those used last are kept longest
    code = os.path.join(root, CODE_FOLDER)
    for folder in manifest.folders:
        yield
        os.mkdir(os.path.join(target, folder.path), 0o700)

    def copy(file: File) -> Steps:
        source = os.path.join(code, file.path)
        copied = os.path.join(target, file.path)
        if not has_size(source, file):
            with contextlib.suppress(OSError):  # without it the release is not here any more
                os.unlink(os.path.join(root, MANIFEST))
            raise ValueError(f"{source} has another size than it had; start again to push it")
        yield from copy_file(source, copied, file.mode)

    for file in manifest.files[:1]:  # it shows whether the disk can share blocks
        for _ in copy(file):
            yield
    turn = None if _can_reflink(code, target) else (yield from _take_turn(workdir))
    try:
        yield from _in_threads(copy, manifest.files[1:])
    finally:
        if turn is not None:
            os.close(turn)
    for link in manifest.links:
        yield
        os.symlink(link.target, os.path.join(target, link.path))
    for folder in reversed(manifest.folders):
        yield
        os.chmod(os.path.join(target, folder.path), folder.mode)


def _take_turn(workdir: str) -> Generator[None, None, int]:
    """Wait until no other host makes a copy on this disk; closing the descriptor ends our turn.

    Where the disk has no locks, and after `TURN_TIMEOUT_S`, we go on all the same.
    """
    path = os.path.join(releases_folder(workdir), COPY_LOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + TURN_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield from pause(random.uniform(*TURN_POLL_S))  # noqa: S311 (no secret)
                continue
            break
    except OSError:
        pass
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in_threads(copy: Callable[[File], Steps], files: Sequence[File]) -> Steps:
    """Copy files in several threads: on a network disk each takes a number of round trips.

    A step lasts until one of them got on, so a disk that does not answer holds us up. Raises the
    first OSError or ValueError; the copies that were begun are complete by then.
    """
    waiting: Deque[File] = deque(files)
    errors: Deque[Exception] = deque()
    moved = threading.Event()

    def work() -> None:
        with contextlib.suppress(IndexError):
            while True:
                file = waiting.popleft()
                try:
                    for _ in copy(file):
                        moved.set()
                except (OSError, ValueError) as error:
                    errors.append(error)
                    waiting.clear()
                moved.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in files[:COPY_THREADS]]
    for thread in threads:
        thread.start()
    try:
        while any(thread.is_alive() for thread in threads):
            if moved.wait(PAUSE_STEP_S):
                moved.clear()
                yield
    finally:  # where the controller leaves, the folder is removed next
        waiting.clear()
        for thread in threads:
            thread.join(JOIN_TIMEOUT_S)
    if errors:
        raise errors[0]


def copy_file(source: str, target: str, mode: int) -> Steps:
    """Copy a file to a new path, as a clone where the file system can."""
    from_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            if not _reflink(from_fd, to_fd):
                while os.sendfile(to_fd, from_fd, None, BYTES_PER_STEP):
                    yield
            if stat.S_IMODE(os.fstat(to_fd).st_mode) != mode:  # the umask allowed less
                os.fchmod(to_fd, mode)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def _can_reflink(source: str, target: str) -> bool:
    """Return whether a file was cloned from one folder's disk to the other's."""
    return _CAN_REFLINK.get((os.stat(source).st_dev, os.stat(target).st_dev), False)


def _reflink(from_fd: int, to_fd: int) -> bool:
    devices = (os.fstat(from_fd).st_dev, os.fstat(to_fd).st_dev)
    if not _CAN_REFLINK.get(devices, True):
        return False
    try:
        fcntl.ioctl(to_fd, _FICLONE, from_fd)
    except OSError:
        _CAN_REFLINK[devices] = False
    else:
        _CAN_REFLINK[devices] = True
    return _CAN_REFLINK[devices]
