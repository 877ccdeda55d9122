"""Code cache of a host: archives of our own code, from which later connections start.

They lie in the usual workdir, each by its hash and a version of Python. Only their owner can write
there; `control/rpc/bootstrap.py` checks that and the checksum before it executes one.
"""

from __future__ import annotations

import contextlib
import os

from runner.core.wire.boot import compiled
from runner.host.storage.permissions import private_folder
from runner.host.storage.run_folder import mtime, write_atomic

MAX_ARCHIVES = 4
"""Those of as many versions of ours, or of Python."""


def store(place: str, archive: bytes) -> None:
    """Store an archive, compiled for the version of Python that the name of its place ends with.

    The first one with this version does so. Where it cannot be stored, it is sent again next time.
    """
    folder, name = os.path.split(place)
    with contextlib.suppress(OSError):
        private_folder(*os.path.split(folder))
        key = name.rpartition("-")[2]
        write_atomic(place, compiled(archive, key))
        others = [os.path.join(folder, each) for each in os.listdir(folder) if each != name]
        for path in sorted(others, key=mtime, reverse=True)[MAX_ARCHIVES - 1 :]:
            os.unlink(path)
