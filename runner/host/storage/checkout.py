"""Checkout: what ranks run, copied to a place of its own: a release, or the shipped tasks."""

from __future__ import annotations

import fcntl
import os
import shutil
from typing import Any, Dict, Generator, Tuple

from runner.core.protocol.paths import CODE_FOLDER, release_folder, tasks_folder
from runner.host.process.event_loop import Steps
from runner.host.storage.release_store import BYTES_PER_STEP, MANIFEST, is_sealed, load_manifest

CHUNK = 4 << 20

_FICLONE = 0x40049409  # the ioctl that makes one file share the blocks of another (linux/fs.h)
_CAN_REFLINK: Dict[Tuple[int, int], bool] = {}
"""Whether files can be cloned from one device to another, by both device numbers."""


def check_out(workdir: str, name: str, target: str) -> Steps:
    """Make a private copy of a release in the empty folder `target`.

    Raises:
        ValueError: The release is not here, or was modified since it was stored.
        OSError: The copy cannot be written.
    """
    root = release_folder(workdir, name)
    manifest = load_manifest(root)
    if manifest is None:
        raise ValueError(f"release {name} is no longer in {workdir}")
    os.utime(os.path.join(root, MANIFEST))  # those used last are kept longest
    code = os.path.join(root, CODE_FOLDER)
    for folder in manifest.folders:
        os.mkdir(os.path.join(target, folder.path), 0o700)
    copied = 0
    for file in manifest.files:
        copied += 4096
        source = os.path.join(code, file.path)
        if not is_sealed(source, file):
            raise ValueError(f"{source} was modified since it was stored; start again to push it")
        for count in copy_file(source, os.path.join(target, file.path), file.mode):
            copied += count
            if copied > BYTES_PER_STEP:
                copied = 0
                yield
    for link in manifest.links:
        os.symlink(link.target, os.path.join(target, link.path))
    for folder in reversed(manifest.folders):
        os.chmod(os.path.join(target, folder.path), folder.mode)


def copy_file(source: str, target: str, mode: int) -> Generator[int, None, None]:
    """Copy a file to a new path, as a clone where the file system can; yield bytes copied."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with open(source, "rb") as original, open(os.open(target, flags, 0o600), "wb") as copy:
        from_fd, to_fd = original.fileno(), copy.fileno()
        if not _reflink(from_fd, to_fd):
            while count := os.sendfile(to_fd, from_fd, None, CHUNK):
                yield count
        os.fchmod(to_fd, mode)


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


def store_tasks(workdir: str, bundle: Dict[str, Any], payload: bytes) -> None:
    """Unpack the shipped tasks, into a folder named by the hash of their content.

    `bundle` has the "hash", and "files" as [name, size] pairs. Several hosts may share the disk:
    each writes its own folder, and the first rename wins.
    """
    final = tasks_folder(workdir, bundle["hash"])
    if os.path.isdir(final):
        return
    staging = f"{final}.{os.uname().nodename}.{os.getpid()}.new"
    os.makedirs(staging, mode=0o700)
    offset = 0
    for name, size in bundle["files"]:
        with open(os.path.join(staging, os.path.basename(name)), "wb") as file:
            file.write(payload[offset : offset + size])
        offset += size
    try:
        os.rename(staging, final)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        if not os.path.isdir(final):
            raise
