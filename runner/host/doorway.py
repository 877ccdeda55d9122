"""Where a supervisor can be spoken to: a socket and a lock in a private folder under /tmp.

Not in the work folder, which may be NFS, and not in $XDG_RUNTIME_DIR, which logind removes when
the user's last session ends, while the run goes on.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import stat
from typing import Optional


class Doorway:
    """The socket and the lock of one run on one host."""

    def __init__(self, run_id: str, node: str) -> None:
        name = hashlib.sha256(f"{run_id}/{node}".encode()).hexdigest()[:24]
        self._folder = os.path.join("/tmp", f"runner-{os.getuid()}")
        self.socket_path = os.path.join(self._folder, f"{name}.sock")
        self.lock_path = os.path.join(self._folder, f"{name}.lock")

    def make(self) -> None:
        """Create the folder, ours alone.

        Raises:
            OSError: Somebody else owns it.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self._folder} is not a private folder of ours")

    def listen(self) -> socket.socket:
        """Open the socket."""
        if os.path.exists(self.socket_path):
            os.unlink(self.socket_path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(self.socket_path)
        listener.listen(8)
        listener.setblocking(False)
        return listener

    def connect(self) -> Optional[socket.socket]:
        """Return a connection to the supervisor, None when nobody listens."""
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            client.connect(self.socket_path)
        except OSError:
            client.close()
            return None
        return client

    def lock(self) -> Optional[int]:
        """Take the lock; None while the guardian or the supervisor lives.

        It is held by a descriptor they share, so the kernel drops it when both are gone,
        whatever became of their pids.
        """
        try:
            descriptor = os.open(self.lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            return None
        return descriptor

    def remove(self) -> None:
        """Take the files away; only the holder of the lock may."""
        for path in (self.socket_path, self.lock_path):
            if os.path.exists(path):
                os.unlink(path)
