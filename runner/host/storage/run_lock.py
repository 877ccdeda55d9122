"""Run lock: the lock and the socket of a run's supervisor, in a private folder under /tmp.

A descriptor of the lock file that supervisor and guardian share holds the lock, so the kernel
drops it when both are gone: it says whether a run is alive on this machine. The folder is not in
the workdir, which may be NFS, nor in $XDG_RUNTIME_DIR, which logind removes when the user's last
session ends.
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

from runner.core.protocol.paths import RunPaths
from runner.host.process import procfs

BASE_DIR = "/tmp"
FOLDER_NAMES = ("runner-{}", "runner-{}-a", "runner-{}-b", "runner-{}-c")
"""Any user may make a folder in /tmp, also one of the name that we want: then we take the next."""

CONNECT_TIMEOUT_S = 1.0
LOCK_TIMEOUT_S = 0.5


class RunLock:
    """The socket and the lock of one run on one host."""

    def __init__(self, folder: RunPaths, uid: Optional[int] = None) -> None:
        text = "/".join(folder.root.split("/")[-2:])
        name = hashlib.sha256(text.encode()).hexdigest()[:24]
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
        """Create the folder with access for its user only.

        Raises:
            OSError: Other users own all of its names.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if not self._is_private(self._folder):
            raise PermissionError(f"{self._folder} is not a private folder of ours")

    def _is_private(self, folder: str) -> bool:
        """Return whether a folder is its user's, and no other user can put anything into it."""
        with contextlib.suppress(OSError):
            status = os.lstat(folder)
            private = (self._uid, 0) == (status.st_uid, status.st_mode & 0o077)
            return stat.S_ISDIR(status.st_mode) and private
        return False

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
        """Return a connection to the supervisor, None when none listens."""
        if not self._is_private(self._folder):
            return None
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.settimeout(CONNECT_TIMEOUT_S)  # the backlog of a stopped one may be full
        try:
            client.connect(self.socket_path)
        except OSError:
            client.close()
            return None
        client.setblocking(False)
        return client

    @staticmethod
    def peer_closed(connection: socket.socket) -> bool:
        """Return whether the supervisor at the other end is gone."""
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
            open_paths = (target for _, target in procfs.fd_links(pid))
            if pid != os.getpid() and self.lock_path in open_paths:
                pids.append(pid)
        return pids

    @property
    def is_held(self) -> bool:
        """Whether the guardian or the supervisor lives, as far as this user may see.

        A shared lock is enough to tell: several processes that look do not see each other.
        """
        if not self._is_private(self._folder):
            return False
        try:
            descriptor = os.open(self.lock_path, os.O_RDONLY | os.O_NOFOLLOW)
        except (FileNotFoundError, PermissionError):
            return False
        except OSError:
            return True
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(descriptor)
        return False

    def try_lock(self) -> Optional[int]:
        """Take the lock; return None while the guardian or the supervisor lives."""
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        while True:
            try:
                self.make_folder()  # it is gone after a reboot, or when /tmp was emptied
                descriptor = os.open(self.lock_path, flags, 0o600)
            except OSError:
                return None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                os.close(descriptor)
                return None
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self.lock_path)):
                    return descriptor
            os.close(descriptor)  # its last holder has just removed the file

    def acquire(self) -> Optional[int]:
        """Take the lock, waiting for processes that only look at it for a moment.

        Raises:
            OSError: The folder cannot be made.
        """
        self.make_folder()
        deadline = time.monotonic() + LOCK_TIMEOUT_S
        while True:
            lock_fd = self.try_lock()
            if lock_fd is not None or time.monotonic() > deadline:
                return lock_fd
            time.sleep(0.01)

    def remove_files(self) -> None:
        """Remove socket and lock file; only the holder of the lock may."""
        for path in (self.socket_path, self.lock_path):
            if os.path.exists(path):
                os.unlink(path)
