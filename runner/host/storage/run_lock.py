"""Where a supervisor can be spoken to: a socket and a lock in a private folder under /tmp.

Not in the work folder, which may be NFS, and not in $XDG_RUNTIME_DIR, which logind removes when
the user's last session ends, while the run goes on.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import socket
import stat
import time
from typing import List, Optional

PLACE = "/tmp"
NAMES = ("runner-{}", "runner-{}-a", "runner-{}-b", "runner-{}-c")
"""Anybody may make a folder there, also one of the name that we want: then we take the next."""

CONNECT_S = 1.0
LOCK_S = 0.5


class Doorway:
    """The socket and the lock of one run on one host."""

    def __init__(self, run_id: str, node: str, uid: Optional[int] = None) -> None:
        name = hashlib.sha256(f"{run_id}/{node}".encode()).hexdigest()[:24]
        self._uid = os.getuid() if uid is None else uid
        self._folder = self._ours()
        self.socket_path = os.path.join(self._folder, f"{name}.sock")
        self.lock_path = os.path.join(self._folder, f"{name}.lock")

    def _ours(self) -> str:
        """Return our folder, or where it can be made."""
        places = [os.path.join(PLACE, name.format(self._uid)) for name in NAMES]
        there = [place for place in places if self._is_private(place)]
        free = [place for place in places if not os.path.lexists(place)]
        return [*there, *free, *places][0]

    def make(self) -> None:
        """Create the folder, ours alone.

        Raises:
            OSError: Others own all of its names.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not self._private:
            raise PermissionError(f"{self._folder} is not a private folder of ours")

    @property
    def _private(self) -> bool:
        return self._is_private(self._folder)

    def _is_private(self, folder: str) -> bool:
        """Whether a folder is its user's, and nobody else can put anything into it."""
        try:
            found = os.lstat(folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and (found.st_uid, found.st_mode & 0o077) == (
            self._uid,
            0,
        )

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
        if not self._private:
            return None
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(CONNECT_S)  # one that was stopped takes no more than a few
        try:
            client.connect(self.socket_path)
        except OSError:
            client.close()
            return None
        client.setblocking(False)
        return client

    @staticmethod
    def hung_up(door: socket.socket) -> bool:
        """Whether the supervisor at the other end is gone."""
        if not select.select([door], [], [], 0)[0]:
            return False
        try:
            return not door.recv(4096)
        except OSError:
            return True

    def holders(self) -> List[int]:
        """Return the processes that hold the lock's file open: guardian and supervisor."""
        found = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            folder = f"/proc/{pid}/fd"
            with contextlib.suppress(OSError):
                links = (os.readlink(f"{folder}/{name}") for name in os.listdir(folder))
                if pid != os.getpid() and self.lock_path in links:
                    found.append(pid)
        return found

    @property
    def held(self) -> bool:
        """Whether the guardian or the supervisor lives, as far as we may see."""
        if not self._private or not os.path.exists(self.lock_path):
            return False
        lock = self.lock()
        if lock is None:
            return True
        os.close(lock)
        return False

    def lock(self) -> Optional[int]:
        """Take the lock; None while the guardian or the supervisor lives.

        It is held by a descriptor they share, so the kernel drops it when both are gone,
        whatever became of their pids.
        """
        while True:
            try:
                descriptor = self._open_lock()
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return None
            if self._is_the_lock(descriptor):
                return descriptor
            os.close(descriptor)  # its last holder removed it a moment ago

    def _is_the_lock(self, descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self.lock_path))
        return False

    def lock_for_life(self) -> Optional[int]:
        """Take the lock; whoever only looks at it holds it for no time.

        Raises:
            OSError: There can be no such folder.
        """
        self.make()
        until = time.monotonic() + LOCK_S
        while True:
            lock = self.lock()
            if lock is not None or time.monotonic() > until:
                return lock
            time.sleep(0.01)

    def _open_lock(self) -> int:
        self.make()  # it is gone since a reboot, or when somebody cleaned /tmp
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.lock_path, flags, 0o600)

    def remove(self) -> None:
        """Take the files away; only the holder of the lock may."""
        for path in (self.socket_path, self.lock_path):
            if os.path.exists(path):
                os.unlink(path)
