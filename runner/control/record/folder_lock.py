"""One writer of a run's record on this machine: a lock on its folder, for as long as it writes."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock_folder(folder: Path) -> int | None:
    """Return a descriptor of the folder that keeps others from writing there until it is closed.

    None while somebody else does. Some network disks lock no folders: there, everyone may.

    Raises:
        OSError: It cannot be opened.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:  # no locks there
        pass
    return descriptor
