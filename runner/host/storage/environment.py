"""Prepared environments: `WORKDIR/prepared/HASH`, made by lines of the user there.

Beside each are the lines (`.sh`), what they printed (`.log`), and a mark of success (`.made`).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import time
from typing import BinaryIO, Dict, Iterator, List, Sequence, Tuple

from runner.core.wire.facts import PREPARED, Prepare
from runner.core.wire.files import HASH_LENGTH
from runner.core.wire.paths import RunPaths
from runner.host.process.bounded_child import find_program
from runner.host.process.jobs import POLL_S, pause
from runner.host.process.procfs import list_names
from runner.host.storage.permissions import private_folder, remove_tree, write_files
from runner.host.storage.run_folder import mtime, read_order

VARIABLE = PREPARED[1:]
FOLDER = "prepared"


def folder_of(prepare: Prepare, environ: Dict[str, str], workdir: str) -> str:
    python = os.path.expanduser(prepare.python)
    python = os.path.realpath(python if "/" in python else find_program(python, environ))
    depends_on = (prepare.lines, prepare.digest, python, os.uname().machine)
    name = hashlib.sha256(json.dumps(depends_on).encode()).hexdigest()[:HASH_LENGTH]
    return os.path.join(workdir, FOLDER, name)


def is_made(folder: str) -> bool:
    return os.path.exists(f"{folder}.made")


@contextlib.contextmanager
def locked(workdir: str, folder: str, limit_s: float) -> Iterator[None]:
    """Wait while another process makes an environment, perhaps on a host that shares the disk.

    Raise ValueError if that one did not succeed.
    """
    private_folder(workdir, FOLDER)
    deadline = time.monotonic() + limit_s
    with open(f"{folder}.log", "ab") as log:
        while not _try_lock(log):
            pause(POLL_S)
            if time.monotonic() > deadline or (_try_lock(log) and not is_made(folder)):
                raise ValueError(f"another host or launch could not make it: see {folder}.log")
        yield


def _try_lock(log: BinaryIO) -> bool:
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a disk without locks
        pass
    return True


def lay_out(folder: str, files: Sequence[Tuple[str, int]], contents: bytes) -> None:
    """Write the files that the lines read, and nothing else."""
    remove_tree(folder)
    write_files(folder, files, contents)


def find_unused(workdir: str, cutoff: float) -> List[str]:
    """Return the environments that no run here names and that were made before `cutoff`."""
    runs = os.path.join(workdir, "runs")
    in_use = set()
    for run in list_names(runs):
        for node in list_names(os.path.join(runs, run)):
            if (order := read_order(RunPaths(workdir, run, node))) is not None:
                in_use.add(order.program.env.get(VARIABLE))
    parent = os.path.join(workdir, FOLDER)
    paths = {os.path.join(parent, name.partition(".")[0]) for name in list_names(parent)}
    return sorted(
        path for path in paths - in_use if mtime(f"{path}.log") < cutoff and not _is_locked(path)
    )


def _is_locked(folder: str) -> bool:
    try:
        with open(f"{folder}.log", "r+b") as log:
            return not _try_lock(log)
    except OSError:
        return False


def remove(folder: str, *, dry_run: bool = False) -> int:
    """Remove an environment, and what is beside it; return its size in bytes."""
    for suffix in () if dry_run else (".made", ".sh", ".log"):
        with contextlib.suppress(OSError):
            os.unlink(f"{folder}{suffix}")
    return remove_tree(folder, dry_run=dry_run)
