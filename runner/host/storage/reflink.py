"""Reflink: copies files in steps, as clones where the file system can."""

from __future__ import annotations

import fcntl
import os
from typing import Dict, Generator, Tuple

CHUNK = 4 << 20

_FICLONE = 0x40049409
"""The ioctl that makes one file share the blocks of another (linux/fs.h)."""

_CAN_REFLINK: Dict[Tuple[int, int], bool] = {}
"""Whether files can be cloned from one device to another, by both device numbers."""


def copy_file(source: str, target: str, mode: int) -> Generator[int, None, None]:
    """Copy a file to a new path; yield the number of bytes after each step."""
    from_fd = os.open(source, os.O_RDONLY)
    try:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            if not _reflink(from_fd, to_fd):
                while count := os.sendfile(to_fd, from_fd, None, CHUNK):
                    yield count
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
