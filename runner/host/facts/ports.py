"""The master's port: reserved without listening, and who listens on one.

A bound socket with SO_REUSEADDR that does not listen keeps the kernel and every bind without that
option away from its port, while torch's store, which sets it, can still bind and listen there.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from contextlib import contextmanager
from typing import Dict, Iterable, Iterator, List, NamedTuple, Optional, Sequence, Set, Tuple

from runner.host.facts import machine
from runner.host.process import procfs

_GUARD = "127.82.85.78"
_LISTEN, _CONNECTED = "0A", "01"
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
_NAMED = 3

LOOK_S = 0.5
"""How often to see who listens on a port: /proc/net/tcp costs milliseconds to read."""


class Held(NamedTuple):
    """The ports reserved for one attempt: the nodes' meeting, the supervisors' hub, a voter's.

    They meet at torch's store, or at an etcd of the run's own.
    """

    store: Optional[socket.socket] = None
    hub: Optional[socket.socket] = None
    voter: Optional[socket.socket] = None

    @property
    def port(self) -> int:
        """The store's port, 0 for none."""
        return _number(self.store)

    @property
    def hub_port(self) -> int:
        """The hub's port, 0 for none."""
        return _number(self.hub)

    @property
    def vote_port(self) -> int:
        """The voter's port, 0 for none."""
        return _number(self.voter)

    @property
    def descriptors(self) -> Set[int]:
        """What a process that is to have them must keep open."""
        return {each.fileno() for each in self if each is not None}

    def close(self) -> None:
        """Let go of them in this process."""
        for each in self:
            if each is not None:
                each.close()


NOTHING_HELD = Held()


def _number(held: Optional[socket.socket]) -> int:
    return int(held.getsockname()[1]) if held is not None else 0


def hold(first: int, last: int, *, store: bool, hub: bool) -> Tuple[Held, str]:
    """Reserve a port for the meeting, and one for the hub: from the same range if that has two.

    Returns:
        What is held, and why the port for the meeting could not be, "" if it could. Without one
        for a hub a run goes on; its controller watches the hosts then.
    """
    meeting, why = reserve(first, last) if store else (None, "")
    if why or not hub:
        return Held(meeting), why
    return Held(meeting, hold_beside(first, last)), ""


def hold_beside(first: int, last: int) -> Optional[socket.socket]:
    """Reserve a port of our own: of that range, or else any; None if there is none."""
    return reserve(first, last)[0] or reserve(0, 0)[0]


def reserve(first: int, last: int) -> Tuple[Optional[socket.socket], str]:
    """Bind a socket to one of the ports `first` to `last`, in random order; 0 is any free port.

    Returns:
        The socket and "", or None and why there is none. It is not inherited unless made so.
    """
    wanted = range(first, max(first, last) + 1) if first else range(1)
    refused: Dict[int, OSError] = {}
    for port in sorted(wanted, key=lambda _: os.urandom(4)):
        try:
            return (_hold(port) if port else _hold_any()), ""
        except OSError as error:
            refused[port] = error
    return None, _explain(wanted, refused)


def beside(port: int) -> socket.socket:
    """Return a socket bound to a port that we hold, as torch's store will bind one.

    Raises:
        OSError: Somebody else took it.
    """
    return _bound(port, shared=True)


def listening(port: int, root: str = "/") -> Set[int]:
    """Return the inodes of the sockets that listen on `port` at any address of this host."""
    return {int(row[9]) for row in _rows(port, _LISTEN, root)}


def peers(port: int, root: str = "/") -> List[Tuple[str, str]]:
    """Return both addresses of every connection to `port`, ours first, as /proc writes them."""
    rows = _rows(port, _CONNECTED, root)
    return [(row[1].rpartition(":")[0], row[2].rpartition(":")[0]) for row in rows]


def _rows(port: int, state: str, root: str) -> Iterator[List[str]]:
    """Yield what /proc/net tells of this host's sockets with that port and state."""
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(root, "proc/net", name), encoding="ascii") as file:
                rows = [line.split() for line in file][1:]
        except OSError:
            continue
        for row in rows:
            if row[3] == state and int(row[1].rpartition(":")[2], 16) == port:
                yield row


def owners(inodes: Iterable[int], pids: Iterable[int], root: str = "/") -> Set[int]:
    """Return which of the processes `pids` hold one of the sockets; hidden ones do not show."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return {pid for pid in pids if wanted and not wanted.isdisjoint(_links(pid, root))}


class Lookout:
    """Waits for somebody to listen on a port."""

    def __init__(self, port: int, root: str = "/") -> None:
        self._port, self._root = port, root
        self._unowned: Set[int] = set()

    def owners(self, pids: Iterable[int]) -> Optional[Set[int]]:
        """Return which of the processes listen, none for a hidden one; None for nobody yet.

        A process that ends while we look shows its socket and no more its descriptors: only what
        has no owner at two looks is hidden.
        """
        inodes = listening(self._port, self._root)
        found = owners(inodes, pids, self._root)
        before, self._unowned = self._unowned, inodes
        return found if found or before & inodes else None


class Reserved:
    """A port that is held for a program until somebody listens there."""

    def __init__(self, held: Optional[socket.socket], port: int) -> None:
        self._held, self._lookout = held, Lookout(port)
        self._next_look = time.monotonic() + LOOK_S

    @property
    def look_due(self) -> bool:
        """Whether it is time to see who listens."""
        return self._held is not None and time.monotonic() >= self._next_look

    def handed_over_to(self) -> Optional[Set[int]]:
        """Let go of it if somebody listens there, and return who (see `Lookout.owners`).

        None is for nobody yet, and for ever after.
        """
        self._next_look = time.monotonic() + LOOK_S
        owners = self._lookout.owners(list(procfs.table())) if self._held is not None else None
        if owners is not None:
            self.let_go()
        return owners

    def let_go(self) -> None:
        """Hold it no more."""
        if self._held is not None:
            self._held.close()
            self._held = None


def _hold_any() -> socket.socket:
    # Bound alone at first: with SO_REUSEADDR old kernels choose ports that others hold.
    held = _bound(0, shared=False)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return held


def _hold(port: int) -> socket.socket:
    with _guard(port):
        return _bound(port, shared=True)


@contextmanager
def _guard(port: int) -> Iterator[None]:
    """Make sure that nobody else holds the port just as we do.

    SO_REUSEADDR would let two runs reserve the same port; without it, connections of an earlier run
    that linger in TIME_WAIT would refuse it for a minute. A bind without it at an address that
    no connection ever had fails for the first reason only.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as guard:
        try:
            guard.bind((_GUARD, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield


def _bound(port: int, *, shared: bool) -> socket.socket:
    """Return a socket bound at every address, of IPv6 and IPv4 alike where there is IPv6."""
    try:
        return _bind(socket.AF_INET6, "::", port, shared=shared)
    except OSError as error:
        if error.errno not in _NO_SUCH_FAMILY:
            raise
    return _bind(socket.AF_INET, "0.0.0.0", port, shared=shared)  # noqa: S104


def _bind(family: int, address: str, port: int, *, shared: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        bound.bind((address, port))
    except OSError:
        bound.close()
        raise
    return bound


def _explain(wanted: Sequence[int], refused: Dict[int, OSError]) -> str:
    if len(wanted) == 1:
        (port,) = wanted
        return f"port {port} is {_state(refused[port], port)}" if port else str(refused[port])
    shown = [f"{port} is {_state(refused[port], port)}" for port in wanted[:_NAMED]]
    more = f"; and {len(wanted) - _NAMED} more" if len(wanted) > _NAMED else ""
    return f"no port from {wanted[0]} to {wanted[-1]} is free: {'; '.join(shown)}{more}"


def _state(error: OSError, port: int) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"refused ({error.strerror})"
    inodes = listening(port)
    if not inodes:
        return "reserved by another run, or the near end of a connection"
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    users = [f"{machine.command(pid)} (pid {pid})" for pid in sorted(owners(inodes, pids))]
    return f"taken by {' and '.join(users[:_NAMED]) or 'a process we may not look at'}"


def _links(pid: int, root: str) -> Iterator[str]:
    folder = os.path.join(root, "proc", str(pid), "fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(os.path.join(folder, name))
        except OSError:
            continue
