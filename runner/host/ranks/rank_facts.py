"""Rank facts: what a failed rank had around it, on its host or in its container.

The shim runs this file. The texts of known failures name these facts.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import threading
from typing import Any, Dict, List

LOG_BYTES = 8 << 10
MAX_TRACEBACK = 8 << 10  # bytes of a traceback that are kept, from its end
DISK_TIMEOUT_S = 1.0  # a file system may hang
DISK_WORDS = re.compile(rb"o space left on device|\[Errno 28\]|shared memory")
FULL_BYTES = 64 << 20  # a program may want more


def look_at_failure(log: str, program: List[str]) -> Dict[str, Any]:
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE", "")
    return {"facts": rank_facts(log, program), "traceback": traceback_of(error_file)}


def rank_facts(log: str, program: List[str]) -> Dict[str, str]:
    """Return the facts by name; of file systems only if the end of the log names them."""
    limits = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    facts = {name: str(resource.getrlimit(limit)[0]) for name, limit in limits.items()}
    facts.update(path=os.environ.get("PATH", ""), uid=str(os.getuid()))
    with contextlib.suppress(OSError, RuntimeError), open(log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        if DISK_WORDS.search(file.read()):
            paths = [word.rpartition("=")[2] for word in program]
            folders = ["/dev/shm", os.environ.get("TMPDIR", "/tmp"), ".", os.path.dirname(log)]
            folders += [os.environ.get("HOME", "/"), *filter(os.path.isabs, paths)]
            look = threading.Thread(target=look_at_disks, args=(folders, facts), daemon=True)
            look.start()
            look.join(DISK_TIMEOUT_S)
    return dict(facts)


def look_at_disks(folders: List[str], facts: Dict[str, str]) -> None:
    """Add the size of shared memory, what is full, and the space that is left."""
    full: List[str] = []
    left: Dict[int, str] = {}  # by device
    for folder in folders:
        with contextlib.suppress(OSError):
            path = os.path.abspath(folder)
            while not os.path.isdir(path):
                path = os.path.dirname(path)
            disk = os.statvfs(path)
            size = disk.f_blocks * disk.f_frsize
            free = disk.f_bavail * disk.f_frsize
            facts.setdefault("shm", f"{size >> 20} MiB")  # the first one
            has_no_inode = disk.f_files and not disk.f_favail
            device = os.stat(path).st_dev
            if device not in left and (has_no_inode or free < min(FULL_BYTES, size // 20)):
                full.append(path)
                facts["full"] = " and ".join(full)
            left.setdefault(device, f"{path} {free >> 20} of {size >> 20} MiB")
            facts["left"] = ", ".join(left.values())


def traceback_of(path: str) -> str:
    """Return the traceback that torch's `@record` left, "" for none.

    Its form is that of torch/distributed/elastic/multiprocessing/errors/error_handler.py.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            message = json.loads(file.read(1 << 20))["message"]
        return str(message["extraInfo"]["py_callstack"])[-MAX_TRACEBACK:]
    except (OSError, ValueError, KeyError, TypeError):
        return ""
