"""Run owner: which machine a run is on, and whether its guardian and supervisor live.

On its own machine the run lock says so: a descriptor of its file that guardian and supervisor share
holds it, so the kernel drops it when both are gone. It is under /tmp, with the supervisor's socket:
the workdir may be NFS, and logind removes $XDG_RUNTIME_DIR when the user's last session ends. Where
/tmp was emptied, the pids on record count. By the record, hosts that share the disk of a run folder
see that a run is not theirs to end.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import socket
import stat
import time
from dataclasses import dataclass
from typing import Dict, List, Optional

from runner.core.codec import decode, encode
from runner.core.protocol.paths import RunPaths
from runner.host.process import procfs
from runner.host.storage.run_folder import has_ended, mtime, read_order, write_atomic

BASE_DIR = "/tmp"
FOLDER_NAMES = ("runner-{}", "runner-{}-a", "runner-{}-b", "runner-{}-c")
"""Any user may make a folder in /tmp, also one of the name that we want: then we take the next."""

CONNECT_TIMEOUT_S = 1.0
LOCK_TIMEOUT_S = 0.5

OWNER_TIMEOUT_S = 600.0  # for how long after a heartbeat a run on another machine is alive
CONTAINER_TIMEOUT_S = 30.0  # the same for another container of this machine; then it was restarted


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
        """Create the folder for its user only; OSError if other users own all of its names."""
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
        """Take the lock, waiting for processes that only look at it; OSError without a folder."""
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


@dataclass(frozen=True)
class RunOwner:
    """The guardian and the supervisor of a run."""

    hostname: str
    machine_id: str
    boot_id: str
    start_ticks: Dict[str, int]  # when each began, in clock ticks since that boot, by pid
    pid_namespace: str = ""  # "" where it cannot be read

    @property
    def other_host(self) -> str:
        """The name of the machine, if it is known to be another than this one; else "".

        A machine may have been renamed: the same boot and PID namespace are enough.
        """
        local = _local_owner({})
        same_boot = (self.boot_id, self.pid_namespace) == (local.boot_id, local.pid_namespace)
        same_host = (self.hostname, self.machine_id) == (local.hostname, local.machine_id)
        return "" if same_host or (self.pid_namespace and same_boot) else self.hostname

    @property
    def from_this_boot(self) -> bool:
        """Whether the run was on this machine, and since its last boot."""
        return not self.other_host and self.boot_id == _local_owner({}).boot_id

    @property
    def is_sibling_container(self) -> bool:
        """Whether it is, or was, another container of this machine."""
        local = _local_owner({})
        is_sibling = self.pid_namespace not in ("", local.pid_namespace)
        return is_sibling and self.boot_id == local.boot_id


def _local_owner(start_ticks: Dict[str, int]) -> RunOwner:
    try:
        pid_namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        pid_namespace = ""
    machine_id = procfs.read_text("/etc/machine-id").strip()
    boot_id = procfs.read_text("/proc/sys/kernel/random/boot_id").strip()
    return RunOwner(os.uname().nodename, machine_id, boot_id, start_ticks, pid_namespace)


def record(folder: RunPaths, pids: List[int]) -> None:
    """Record these processes as the run's owner, if the disk has room."""
    owner = _local_owner({str(pid): procfs.start_ticks_of(pid) for pid in pids})
    with contextlib.suppress(OSError):
        write_atomic(folder.owner_file, json.dumps(encode(owner)) + "\n")


def heartbeat(folder: RunPaths) -> None:
    """Show other machines that share the disk that the run is alive."""
    with contextlib.suppress(OSError):
        os.utime(folder.owner_file)


def heartbeat_age(folder: RunPaths) -> float:
    """Return the seconds since the last heartbeat of a run's owner, by the clock of the disk."""
    beaten_at = mtime(folder.owner_file)
    return max(0.0, time.time() - beaten_at) if beaten_at else float("inf")


def read(folder: RunPaths) -> Optional[RunOwner]:
    """Return the owner on record of a run, None where there is none that can be read."""
    try:
        with open(folder.owner_file, encoding="utf-8") as file:
            return decode(RunOwner, json.load(file))
    except (OSError, ValueError):
        return None


def live_owner_pids(folder: RunPaths) -> List[int]:
    """Return the living guardian and supervisor of a run on this machine."""
    owner = read(folder)
    if owner is None or owner.is_sibling_container or not owner.from_this_boot:
        return []
    start_ticks = {int(pid): start for pid, start in owner.start_ticks.items() if start >= 0}
    return [pid for pid, start in start_ticks.items() if procfs.start_ticks_of(pid) == start]


def is_alive(folder: RunPaths, uid: Optional[int] = None) -> bool:
    """Return whether the guardian or the supervisor of a user's run lives on this machine."""
    return RunLock(folder, uid).is_held or bool(live_owner_pids(folder))


def take_over(folder: RunPaths) -> Optional[int]:
    """Take the lock of a run to complete its record; return None while it is alive."""
    lock_fd = RunLock(folder).try_lock()
    if lock_fd is not None and live_owner_pids(folder):  # /tmp was emptied
        os.close(lock_fd)
        return None
    return lock_fd


def other_host(folder: RunPaths) -> str:
    """Return the name of the machine a run lives on, "" for this one or an unknown one."""
    owner = read(folder)
    if owner is None:
        return ""
    if owner.is_sibling_container and heartbeat_age(folder) < CONTAINER_TIMEOUT_S:
        return f"another container of {owner.hostname}"
    return owner.other_host


def require_local(folder: RunPaths) -> None:
    """Raise ValueError for a run of another machine whose end is not on record."""
    host = other_host(folder)
    order = read_order(folder)
    if host and (order is None or not has_ended(folder, order)):
        run_id, _ = folder.root.split("/")[-2:]
        age_s = heartbeat_age(folder)
        age = f" (its last heartbeat is {age_s:.0f} s old)" if age_s > OWNER_TIMEOUT_S else ""
        raise ValueError(f"run {run_id} is on {host}{age}, and this is {os.uname().nodename}")
