"""The private copy of a release that a run's ranks work in."""

from __future__ import annotations

import fcntl
import os
from typing import Dict, Iterator, Tuple

from runner.core.layout import CODE, release_folder
from runner.host.releases import MANIFEST, STEP, load, sealed
from runner.host.work import Steps

_FICLONE = 0x40049409
"""The ioctl that makes one file share the blocks of another (linux/fs.h)."""


def check_out(workdir: str, name: str, work: str) -> Steps:
    """Make a private copy of a release in the empty folder `work`.

    Raises:
        ValueError: The release is not here, or no longer as it was stored.
        OSError: The copy cannot be written.
    """
    root = release_folder(workdir, name)
    manifest = load(root)
    if manifest is None:
        raise ValueError(f"there is no release {name} in {workdir} any more")
    os.utime(os.path.join(root, MANIFEST))  # those used last stay longest
    code = os.path.join(root, CODE)
    for folder in manifest.folders:
        os.mkdir(os.path.join(work, folder.path), 0o700)
    done = 0
    for file in manifest.files:
        done += 4096
        source = os.path.join(code, file.path)
        if not sealed(source, file):
            raise ValueError(f"{source} is no longer as it was stored; start again to push it anew")
        for count in _copy(source, os.path.join(work, file.path), file.mode):
            done += count
            if done > STEP:
                done = 0
                yield
    for link in manifest.links:
        os.symlink(link.target, os.path.join(work, link.path))
    for folder in reversed(manifest.folders):
        os.chmod(os.path.join(work, folder.path), folder.mode)


def _copy(source: str, target: str, mode: int) -> Iterator[int]:
    """Copy a file, as a clone where the disk can; yield how many bytes at a time."""
    from_fd = os.open(source, os.O_RDONLY)
    try:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            yield from _copy_bytes(from_fd, to_fd)
            os.fchmod(to_fd, mode)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


_CLONES: Dict[Tuple[int, int], bool] = {}
"""Whether files of one disk can be cloned to another, by the numbers of both."""


def _copy_bytes(from_fd: int, to_fd: int) -> Iterator[int]:
    disks = (os.fstat(from_fd).st_dev, os.fstat(to_fd).st_dev)
    if _CLONES.get(disks, True):
        try:
            fcntl.ioctl(to_fd, _FICLONE, from_fd)
        except OSError:
            _CLONES[disks] = False
        else:
            _CLONES[disks] = True
            return
    while True:
        count = os.sendfile(to_fd, from_fd, None, STEP)
        if not count:
            return
        yield count
