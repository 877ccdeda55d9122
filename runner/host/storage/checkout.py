"""Checkout: what ranks run, a release copied to a place of its own."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import threading
from collections import deque
from typing import Callable, Deque, Dict, Sequence, Tuple

from runner.core.wire.files import File
from runner.core.wire.paths import CODE_FOLDER, release_folder
from runner.host.process.event_loop import PAUSE_STEP_S, Steps
from runner.host.storage.release_store import BYTES_PER_STEP, MANIFEST, has_size, load_manifest

COPY_THREADS = 8
JOIN_TIMEOUT_S = 1.0

_FICLONE = 0x40049409  # the ioctl that makes one file share the blocks of another (linux/fs.h)
_CAN_REFLINK: Dict[Tuple[int, int], bool] = {}
"""Whether files can be cloned from one device to another, by both device numbers."""


def check_out(workdir: str, name: str, target: str) -> Steps:
    """Make a private copy of a release in the empty folder `target`, in several threads.

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

    yield from _in_threads(copy, manifest.files)
    for link in manifest.links:
        yield
        os.symlink(link.target, os.path.join(target, link.path))
    for folder in reversed(manifest.folders):
        yield
        os.chmod(os.path.join(target, folder.path), folder.mode)


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
