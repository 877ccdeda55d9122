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

BASE_DIR = "/tmp"
FOLDER_NAMES = ("runner-{}", "runner-{}-a", "runner-{}-b", "runner-{}-c")
"""Anybody may make a folder there, also one of the name that we want: then we take the next."""

CONNECT_TIMEOUT_S = 1.0
LOCK_TIMEOUT_S = 0.5


class RunLock:
    """The socket and the lock of one run on one host."""

    def __init__(self, run_id: str, node: str, uid: Optional[int] = None) -> None:
        name = hashlib.sha256(f"{run_id}/{node}".encode()).hexdigest()[:24]
        self._uid = os.getuid() if uid is None else uid
        self._folder = self._choose_folder()
        self.socket_path = os.path.join(self._folder, f"{name}.sock")
        self.lock_path = os.path.join(self._folder, f"{name}.lock")

    def _choose_folder(self) -> str:
        """Return our folder, or where it can be made."""
        candidates = [os.path.join(BASE_DIR, name.format(self._uid)) for name in FOLDER_NAMES]
        existing = [path for path in candidates if self._is_private(path)]
        unused = [path for path in candidates if not os.path.lexists(path)]
        return [*existing, *unused, *candidates][0]

    def make_folder(self) -> None:
        """Create the folder, ours alone.

        Raises:
            OSError: Others own all of its names.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not self._has_private_folder:
            raise PermissionError(f"{self._folder} is not a private folder of ours")

    @property
    def _has_private_folder(self) -> bool:
        return self._is_private(self._folder)

    def _is_private(self, folder: str) -> bool:
        """Whether a folder is its user's, and nobody else can put anything into it."""
        try:
            status = os.lstat(folder)
        except OSError:
            return False
        return stat.S_ISDIR(status.st_mode) and (status.st_uid, status.st_mode & 0o077) == (
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
        if not self._has_private_folder:
            return None
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(CONNECT_TIMEOUT_S)  # one that was stopped takes no more than a few
        try:
            client.connect(self.socket_path)
        except OSError:
            client.close()
            return None
        client.setblocking(False)
        return client

    @staticmethod
    def peer_closed(connection: socket.socket) -> bool:
        """Whether the supervisor at the other end is gone."""
        if not select.select([connection], [], [], 0)[0]:
            return False
        try:
            return not connection.recv(4096)
        except OSError:
            return True

    def holder_pids(self) -> List[int]:
        """Return the processes that hold the lock's file open: guardian and supervisor."""
        pids = []
        for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
            fd_dir = f"/proc/{pid}/fd"
            with contextlib.suppress(OSError):
                open_paths = (os.readlink(f"{fd_dir}/{name}") for name in os.listdir(fd_dir))
                if pid != os.getpid() and self.lock_path in open_paths:
                    pids.append(pid)
        return pids

    @property
    def is_held(self) -> bool:
        """Whether the guardian or the supervisor lives, as far as we may see."""
        if not self._has_private_folder or not os.path.exists(self.lock_path):
            return False
        lock_fd = self.try_lock()
        if lock_fd is None:
            return True
        os.close(lock_fd)
        return False

    def try_lock(self) -> Optional[int]:
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
            if self._is_current(descriptor):
                return descriptor
            os.close(descriptor)  # its last holder removed it a moment ago

    def _is_current(self, descriptor: int) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self.lock_path))
        return False

    def acquire(self) -> Optional[int]:
        """Take the lock; whoever only looks at it holds it for no time.

        Raises:
            OSError: There can be no such folder.
        """
        self.make_folder()
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            lock_fd = self.try_lock()
            if lock_fd is not None or time.monotonic() > deadline:
                return lock_fd
            time.sleep(0.01)

    def _open_lock(self) -> int:
        self.make_folder()  # it is gone since a reboot, or when somebody cleaned /tmp
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return os.open(self.lock_path, flags, 0o600)

    def remove_files(self) -> None:
        """Take the files away; only the holder of the lock may."""
        for path in (self.socket_path, self.lock_path):
            if os.path.exists(path):
                os.unlink(path)
