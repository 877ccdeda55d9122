"""Run owner: which machine a run is on, and whether its guardian and supervisor live.

On its own machine the run's socket says so: guardian and supervisor share the descriptor of one
Unix socket with an abstract name, which the kernel frees when both are gone. It needs no folder,
so nobody can block or remove it, and no file system has to keep locks. From another network
namespace it cannot be seen: there the pids on record count. By the record, hosts that share the
disk of a run folder see that a run is not theirs to end.
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
from runner.host.storage.permissions import private_folder, shared_token
from runner.host.storage.run_folder import has_ended, mtime, read_order, write_atomic

BACKLOG = 64  # connections to a supervisor that waits for its disk
NAMES = 8  # of one run's socket
SOCKET_KEY = ".socket-key"
TAKE_TRIES = 10
RETRY_S = 0.01

OWNER_TIMEOUT_S = 600.0  # for how long after a heartbeat a run on another machine is alive
CONTAINER_TIMEOUT_S = 30.0  # the same for another container of this machine; then it was restarted


class RunSocket:
    """The socket of one run on one host: its lock, and where agents reach its supervisor.

    Any user can take an abstract name. So the user at the other end counts, not the name alone;
    names are made with a key that only this user can read; and each run has several, for whoever
    lists the names in use can take one when its supervisor has ended.
    """

    def __init__(self, folder: RunPaths, uid: Optional[int] = None) -> None:
        self._uid = os.getuid() if uid is None else uid
        self.folder = folder
        self.addresses = self._find_addresses(create=False)

    def _find_addresses(self, *, create: bool) -> List[str]:
        """Return the names that it may have; none where no run has had a socket yet."""
        runs, run_id, node = self.folder.root.rsplit("/", 2)
        key = _socket_key(runs, create=create)  # a workdir may have several paths
        labels = [f"{key}/{run_id}/{node}/{number}" for number in range(NAMES if key else 0)]
        digests = (hashlib.sha256(label.encode()).hexdigest()[:32] for label in labels)
        return [f"\0runner-{digest}" for digest in digests]

    def take(self) -> Optional[socket.socket]:
        """Take a name and listen; return None while the guardian or the supervisor lives.

        PermissionError: other users have all of them.
        """
        self.addresses = self._find_addresses(create=True)
        if self.is_held:
            return None
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        for address in self.addresses:
            for _ in range(TAKE_TRIES):
                with contextlib.suppress(OSError):
                    listener.bind(address)
                    listener.listen(BACKLOG)
                    listener.setblocking(False)
                    return listener
                client, is_ours = self._try_connect(address)
                if client is not None:
                    client.close()
                if is_ours:
                    listener.close()
                    return None
                time.sleep(RETRY_S)  # it was taken, or closed, this very moment
        listener.close()
        raise PermissionError(
            f"other users hold the abstract sockets {self.addresses[0][1:]} and more"
        )

    def connect(self) -> Optional[socket.socket]:
        """Return a connection to the supervisor, None when none of this user accepts one."""
        for address in self.addresses:
            client, _ = self._try_connect(address)
            if client is not None:
                return client
        return None

    @property
    def is_held(self) -> bool:
        """Whether the guardian or the supervisor lives; several lookers do not see each other."""
        for address in self.addresses:
            client, is_ours = self._try_connect(address)
            if client is not None:
                client.close()
            if is_ours:
                return True
        return False

    def _try_connect(self, address: str) -> Tuple[Optional[socket.socket], bool]:
        """Return a connection, if this user accepts one, and whether this user has the name.

        The backlog of a supervisor that is stopped may be full.
        """
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.setblocking(False)
        try:
            client.connect(address)
            if peer_uid(client) == self._uid:
                return client, True
        except BlockingIOError:
            client.close()
            return None, True
        except OSError:
            pass
        client.close()
        return None, False


def _socket_key(runs: str, *, create: bool) -> str:
    """Return the secret part of the names of sockets, "" where there is none."""
    path = os.path.join(runs, SOCKET_KEY)
    if not create:
        return procfs.read_text(path)
    if not os.path.lexists(path):
        private_folder(*os.path.split(runs))
    return shared_token(runs, SOCKET_KEY)


def peer_uid(connection: socket.socket) -> int:
    """Return the user at the other end of a Unix connection."""
    credentials = struct.Struct("iII")  # struct ucred: pid, uid, gid
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(data)[1])


@dataclass(frozen=True)
class RunOwner:
    """The guardian and the supervisor of a run."""

    hostname: str
    machine_id: str
    boot_id: str
    start_ticks: Dict[str, int]  # when each began, in clock ticks since that boot, by pid
    pid_namespace: str = ""  # "" where it cannot be read
    links: Tuple[str, ...] = ()  # the hardware addresses of its network interfaces

    @property
    def other_host(self) -> str:
        """The name of the machine, if it is known to be another than this one; else "".

        A machine may have been renamed: the same boot and PID namespace are enough. Machines made
        of one image may have one name and id, but no network interface in common.
        """
        local = _local_owner({})
        same_boot = (self.boot_id, self.pid_namespace) == (local.boot_id, local.pid_namespace)
        if self.pid_namespace and same_boot:
            return ""
        if (self.hostname, self.machine_id) != (local.hostname, local.machine_id):
            return self.hostname
        known = self.links and local.links and self.boot_id != local.boot_id
        is_clone = known and not {*self.links} & {*local.links}
        return f"another machine called {self.hostname}" if is_clone else ""

    @property
    def from_this_boot(self) -> bool:
        """Whether the run was on this machine, and since its last boot."""
        return not self.other_host and self.boot_id == _local_owner({}).boot_id

    @property
    def from_earlier_boot(self) -> bool:
        """Whether the run was on this machine, before its last boot: nothing of it can live."""
        known = bool(self.machine_id) and not self.other_host
        return known and self.boot_id != _local_owner({}).boot_id

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
    name = os.uname().nodename
    links = _links()
    return RunOwner(name, machine_id, boot_id, start_ticks, pid_namespace, links)


def _links(root: str = "/sys/class/net") -> Tuple[str, ...]:
    """Return the hardware addresses of this machine; not those that Docker gives out everywhere."""
    names = os.listdir(root) if os.path.isdir(root) else []
    found = {procfs.read_text(os.path.join(root, name, "address")).strip() for name in names}
    return tuple(sorted(link for link in found if link.strip("0:") and link[:5] != "02:42"))


def record(folder: RunPaths, pids: List[int]) -> None:
    """Record these processes as the run's owner, or raise OSError.

    It comes before anything is started: without it nothing of the run has ever run here.
    """
    owner = _local_owner({str(pid): procfs.start_ticks_of(pid) for pid in pids})
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
    return RunSocket(folder, uid).is_held or bool(live_owner_pids(folder))


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


def other_host(folder: RunPaths) -> str:
    """Return the name of the machine a run lives on, "" for this one or an unknown one."""
    owner = read(folder)
    if owner is None:
        return ""
    if owner.is_sibling_container and heartbeat_age(folder) < CONTAINER_TIMEOUT_S:
        return f"another container of {owner.hostname}"
    return owner.other_host


def is_local(folder: RunPaths) -> bool:
    """Return whether this machine is on record as that of a run."""
    return read(folder) is not None and not other_host(folder)


def require_local(folder: RunPaths) -> None:
    """Raise ValueError for a run of another machine whose end is not on record."""
    host = other_host(folder)
    order = read_order(folder)
    if host and (order is None or not has_ended(folder, order)):
        run_id, _ = folder.root.split("/")[-2:]
        age_s = heartbeat_age(folder)
        age = f" (its last heartbeat is {age_s:.0f} s old)" if age_s > OWNER_TIMEOUT_S else ""
        raise ValueError(f"run {run_id} is on {host}{age}, and this is {os.uname().nodename}")
