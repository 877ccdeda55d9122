"""Shared record: files that are alike on all nodes of a run are hard links, once per disk.

With 200 nodes the plan has 0.6 MB: written by each node, it would be 120 MB on a common home.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from typing import Generator

from runner.core.protocol.paths import JOB_FOLDER
from runner.host.process.event_loop import pause

CLAIM_TIMEOUT_S, CLAIM_POLL_S = 10.0, 0.05  # for another host that writes the file
STALE_CLAIM_S = 5.0  # the age of a claim whose host has died, or takes too long
CLAIM_SUFFIX = ".new"


def link_shared(path: str, text: str) -> Generator[None, None, bool]:
    """Make `path`, in a node's folder, a link to the one file with this text on its disk.

    Whoever creates `.NAME.HASH.new` beside the nodes' folders writes the file; those that come
    meanwhile wait. Nobody looks for a file before it is there, since NFS clients would remember
    that it is not. A claim that is too old is taken over: two hosts may then write the file, each
    under a name of its own. Return False where there are no hard links, or the wait is too long.
    """
    data = text.encode()
    digest = hashlib.sha256(data).hexdigest()[:16]
    run_folder = os.path.dirname(os.path.dirname(path))
    shared = os.path.join(run_folder, f".{os.path.basename(path)}.{digest}")
    claim = shared + CLAIM_SUFFIX
    deadline = time.monotonic() + CLAIM_TIMEOUT_S
    while time.monotonic() < deadline:
        yield
        try:
            os.close(os.open(claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            with contextlib.suppress(FileNotFoundError):
                if time.time() - os.stat(claim).st_mtime > STALE_CLAIM_S:
                    os.unlink(claim)
                    continue
            yield from pause(CLAIM_POLL_S)
        else:
            return _write_and_link(data, shared, path)
    return False


def _write_and_link(data: bytes, shared: str, path: str) -> bool:
    """Write the file unless another host has, and link to it; the claim ends in any case."""
    draft = f"{path}.{os.getpid()}{CLAIM_SUFFIX}"
    try:
        if not _has_content(shared, data):
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(draft, shared)
        os.link(shared, draft)
        os.rename(draft, path)
    except OSError:  # the disk is full, or has no hard links
        return False
    finally:
        for left in (shared + CLAIM_SUFFIX, draft):  # the latter if `path` was a link to the file
            with contextlib.suppress(FileNotFoundError):
                os.unlink(left)
    return True


def _has_content(path: str, data: bytes) -> bool:
    """Return whether a file is there, whole: a power cut of a server may have cut it off."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read() == data
    return False


def remove_run(run_folder: str) -> None:
    """Remove the folder of a run, with what its nodes share, unless a node's folder is left.

    What belongs to a job stays: its other nodes may be about to start.
    """
    with contextlib.suppress(OSError):
        names = os.listdir(run_folder)
        if all(name.startswith(".") for name in names) and JOB_FOLDER not in names:
            for name in names:
                os.unlink(os.path.join(run_folder, name))
            os.rmdir(run_folder)


def remove_job(run_folder: str) -> None:
    """Remove what belongs to the job of a run, and then its folder, unless a node's is left."""
    with contextlib.suppress(OSError):
        if all(name.startswith(".") for name in os.listdir(run_folder)):
            shutil.rmtree(os.path.join(run_folder, JOB_FOLDER), ignore_errors=True)
    remove_run(run_folder)
