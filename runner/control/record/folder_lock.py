"""Lock on the record of a run on this machine, so that one process writes it at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock_folder(folder: Path) -> int | None:
    """Lock a folder; return a descriptor that holds the lock until it is closed.

    Return None if another process holds it. Without locks (some network disks), it is granted.

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
