"""Run owner: which machine a run is on, and whether its guardian and supervisor live.

They share an abstract Unix socket, which the kernel frees when both are gone; the record counts
where that cannot be seen: in another network namespace, on other hosts that share the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import struct
import time
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from runner.core.wire.codec import decode, encode
from runner.core.wire.paths import RunPaths
from runner.host.process import procfs
from runner.host.storage.run_folder import has_ended, mtime, read_order, write_atomic

BACKLOG = 64  # connections to a supervisor that waits for its disk
TAKE_TRIES = 10
RETRY_S = 0.01
OWNER_TIMEOUT_S = 600.0  # for how long after a heartbeat a run on another machine is alive


class RunSocket:
    """The socket of one run on one host: its lock, and where agents reach its supervisor.

    Any user can take an abstract name, so the user at the other end counts.
    """

    def __init__(self, folder: RunPaths) -> None:
        self.folder = folder
        path = os.path.realpath(folder.root)  # a workdir may have several
        digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
        self.address = f"\0runner-{digest}"

    def take(self) -> Optional[socket.socket]:
        """Take the name and listen; return None while the guardian or the supervisor lives.

        PermissionError: another user has it.
        """
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for _ in range(TAKE_TRIES):
            with contextlib.suppress(OSError):
                listener.bind(self.address)
                listener.listen(BACKLOG)
                listener.setblocking(False)
                return listener
            if self.is_held:
                listener.close()
                return None
            time.sleep(RETRY_S)  # it was taken, or closed, this very moment
        listener.close()
        raise PermissionError(
            f"another user holds the abstract socket {self.address[1:]} of this run"
        )

    def connect(self) -> Optional[socket.socket]:
        """Return a connection to the supervisor, None when none of this user accepts one."""
        return self._try_connect()[0]

    @property
    def is_held(self) -> bool:
        """Whether the guardian or the supervisor lives; several lookers do not see each other."""
        client, is_ours = self._try_connect()
        if client is not None:
            client.close()
        return is_ours

    def _try_connect(self) -> Tuple[Optional[socket.socket], bool]:
        """Return a connection, if this user accepts one, and whether this user has the name.

        The backlog of a supervisor that is stopped may be full; so may that of a stranger, about
        whom the kernel says nothing then.
        """
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.setblocking(False)
        is_full = False
        try:
            client.connect(self.address)
            if peer_uid(client) == os.getuid():
                return client, True
        except BlockingIOError:
            is_full = True
        except OSError:
            pass
        client.close()
        return None, is_full and bool(live_owner_pids(self.folder))


def peer_uid(connection: socket.socket) -> int:
    credentials = struct.Struct("iII")  # struct ucred: pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(data)[1])


@dataclass(frozen=True)
class RunOwner:
    """The guardian and the supervisor of a run."""

    hostname: str
    boot_id: str
    start_ticks: Dict[str, int]  # when each began, in clock ticks since that boot, by pid

    @property
    def is_here(self) -> bool:
        """Whether this machine has its name; a copy of it on the same disk is not told apart."""
        return self.hostname == os.uname().nodename

    @property
    def is_from_this_boot(self) -> bool:
        return self.boot_id == _boot_id()


def _boot_id() -> str:
    return procfs.read_text("/proc/sys/kernel/random/boot_id").strip()


def record(folder: RunPaths, pids: List[int]) -> None:
    """Record these processes as the run's owner, or raise OSError.

    It comes before anything is started: without it nothing of the run has ever run here.
    """
    start_ticks = {str(pid): procfs.start_ticks_of(pid) for pid in pids}
    owner = RunOwner(os.uname().nodename, _boot_id(), start_ticks)
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
    try:
        with open(folder.owner_file, encoding="utf-8") as file:
            return decode(RunOwner, json.load(file))
    except (OSError, ValueError):
        return None


def other_host(folder: RunPaths) -> str:
    """Return the name of the machine a run lives on, "" for this one or an unknown one."""
    owner = read(folder)
    return "" if owner is None or owner.is_here else owner.hostname


def live_owner_pids(folder: RunPaths) -> List[int]:
    owner = read(folder)
    if owner is None or not (owner.is_here and owner.is_from_this_boot):
        return []
    start_ticks = {int(pid): start for pid, start in owner.start_ticks.items() if start >= 0}
    return [pid for pid, start in start_ticks.items() if procfs.start_ticks_of(pid) == start]


def is_alive(folder: RunPaths) -> bool:
    """Return whether the guardian or the supervisor of a run lives on this machine."""
    return RunSocket(folder).is_held or bool(live_owner_pids(folder))


def take_over(folder: RunPaths) -> Optional[socket.socket]:
    """Take the socket of a run to complete its record; return None while it is alive."""
    try:
        lock = RunSocket(folder).take()
    except PermissionError:  # a stranger must not be able to keep a run from being ended
        lock = socket.socket(socket.AF_UNIX)
    if lock is not None and live_owner_pids(folder):  # in another network namespace
        lock.close()
        return None
    return lock


def require_local(folder: RunPaths) -> None:
    """Raise ValueError for a run of another machine whose end is not on record."""
    host = other_host(folder)
    order = read_order(folder)
    is_over = order is not None and has_ended(folder, order)
    if host and not is_over and not RunSocket(folder).is_held:  # whose machine has a new name
        age_s = heartbeat_age(folder)
        age = f" (its last heartbeat is {age_s:.0f} s old)" if age_s > OWNER_TIMEOUT_S else ""
        run_id = os.path.basename(os.path.dirname(folder.root))
        raise ValueError(f"run {run_id} is on {host}{age}, and this is {os.uname().nodename}")
