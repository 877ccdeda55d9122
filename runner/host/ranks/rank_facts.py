"""Rank facts: what a failed rank had around it, on its host or in its container.

The shim runs this file when its rank has failed. `diagnosis` tells what explains the failure.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import threading
from typing import Any, Dict, List

LOG_BYTES = 8 << 10
MAX_SIZE = 1 << 60  # some file systems claim to be endless
DISK_TIMEOUT_S = 1.0  # a file system may hang
DISK_WORDS = re.compile(rb"o space left on device|\[Errno 28\]|shared memory")


def rank_facts(log: str, program: List[str]) -> Dict[str, Any]:
    """Return the facts as `RankFacts` has them.

    Disks are looked at only if the end of the log names them.
    """
    disks: Dict[str, Dict[str, Any]] = {}
    with contextlib.suppress(OSError, RuntimeError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        if DISK_WORDS.search(file.read()):
            arguments = [word.rpartition("=")[2] for word in program]
            folders = ["/dev/shm", os.environ.get("TMPDIR", "/tmp"), ".", os.path.dirname(log)]
            folders += [os.environ.get("HOME", "/"), *filter(os.path.isabs, arguments)]
            look = threading.Thread(target=look_at_disks, args=(folders, disks), daemon=True)
            look.start()
            look.join(DISK_TIMEOUT_S)
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    return {
        "path": os.environ.get("PATH", ""),
        "uid": os.getuid(),
        "limits": {name: resource.getrlimit(limit)[0] for name, limit in limits.items()},
        "disks": dict(disks),
    }


def look_at_disks(folders: List[str], disks: Dict[str, Dict[str, Any]]) -> None:
    """Add the space of the file systems that hold these folders, or the nearest above them."""
    for folder in folders:
        with contextlib.suppress(OSError):
            path = os.path.abspath(folder)
            while not os.path.isdir(path):
                path = os.path.dirname(path)
            disk = os.statvfs(path)
            disks[path] = {
                "size": min(MAX_SIZE, disk.f_blocks * disk.f_frsize),
                "free": min(MAX_SIZE, disk.f_bavail * disk.f_frsize),
                "no_inodes": bool(disk.f_files and not disk.f_favail),
            }
