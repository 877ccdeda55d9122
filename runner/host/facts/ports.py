"""Ports: reserved without listening, and which processes listen on one.

A bound socket with SO_REUSEADDR that does not listen reserves its port against the kernel and every
bind without that option, while torch's store, which sets it, can still bind and listen there.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from typing import Any, Dict, Iterable, List, NamedTuple, Optional, Sequence, Set, Tuple

from runner.core.wire.facts import FactsRequest
from runner.host.process import procfs

_GUARD_ADDRESS = "127.82.85.78"
_TCP_LISTEN = "0A"
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)
_MAX_NAMED = 3

CHECK_INTERVAL_S = 0.5  # between checks for a listener


class ReservedPorts(NamedTuple):
    """The ports of a run: the rendezvous (torch's store), the hub, later rendezvous."""

    store: Optional[socket.socket] = None
    hub: Optional[socket.socket] = None
    spares: Tuple[socket.socket, ...] = ()

    @property
    def numbers(self) -> Dict[str, Any]:
        """The fields of Facts for them."""
        return {
            "reserved_port": _number(self.store) if self.store else 0,
            "hub_port": _number(self.hub) if self.hub else 0,
            "spare_ports": tuple(map(_number, self.spares)),
        }

    @property
    def sockets(self) -> List[socket.socket]:
        """All of them."""
        return [sock for sock in (self.store, self.hub, *self.spares) if sock]

    @property
    def descriptors(self) -> Set[int]:
        """The descriptors that a process must keep open to inherit them."""
        return {sock.fileno() for sock in self.sockets}

    def next_store(self, port: int) -> ReservedPorts:
        """Return those of the next attempt, whose ranks meet at `port` here, if that is not 0."""
        if not port:
            return self._replace(store=None)
        store = next((sock for sock in self.spares if _number(sock) == port), None)
        spares = tuple(sock for sock in self.spares if sock is not store)
        return self._replace(store=store or reserve(port, port)[0], spares=spares)

    def close(self) -> None:
        """Close them in this process."""
        for sock in self.sockets:
            sock.close()


def _number(sock: socket.socket) -> int:
    port: int = sock.getsockname()[1]
    return port


NO_PORTS = ReservedPorts()


def reserve_ports(request: FactsRequest) -> Tuple[ReservedPorts, str]:
    """Reserve what is asked for: the hub's preferably in the same range, spares as far as free.

    Returns also why there is none for the rendezvous, "" if there is. Without a hub only the
    controller watches the hosts.
    """
    first = request.port_first
    last = request.port_last
    store, error = reserve(first, last) if request.reserve_port else (None, "")
    hub = None
    if request.reserve_hub_port and not error:
        hub = reserve(first, last)[0] or reserve(0, 0)[0]
    spares = [reserve(first, last)[0] for _ in range(request.spare_ports)]
    return ReservedPorts(store, hub, tuple(sock for sock in spares if sock is not None)), error


def reserve(first: int, last: int) -> Tuple[Optional[socket.socket], str]:
    """Bind one of the ports `first` to `last`, 0 for any; return why there is none, else ""."""
    candidates = range(first, max(first, last) + 1) if first else range(1)
    errors: Dict[int, OSError] = {}
    for port in sorted(candidates, key=lambda _: os.urandom(4)):
        try:
            return _reserve(port), ""
        except OSError as error:
            errors[port] = error
    return None, _explain(candidates, errors)


def listening_inodes(port: int, root: str = "/") -> Set[int]:
    """Return the inodes of the sockets that listen on `port` at any address of this host."""
    inodes: Set[int] = set()
    for name in ("tcp", "tcp6"):
        text = procfs.read_text(os.path.join(root, "proc/net", name))
        for row in [line.split() for line in text.splitlines()[1:]]:
            if row[3] == _TCP_LISTEN and int(row[1].rpartition(":")[2], 16) == port:
                inodes.add(int(row[9]))
    return inodes


def socket_owners(inodes: Iterable[int], pids: Iterable[int], root: str = "/") -> Set[int]:
    """Return which of the processes hold one of the sockets, as far as they are visible."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return {pid for pid in pids if wanted and wanted & {t for _, t in procfs.fd_links(pid, root)}}


def is_foreign(owners: Set[int], ours: Set[int], root: str = "/") -> bool:
    """Return whether a listener is none of `ours`.

    A hidden one, without `owners`, may be one of ours that hides its descriptors from its own user:
    a program with capabilities does.
    """
    if owners:
        return owners.isdisjoint(ours)
    return all(any(procfs.fd_links(pid, root)) for pid in ours)


class PortReservation:
    """A port that is reserved for a program until some process listens there."""

    def __init__(self, reserved: Optional[socket.socket], port: int, root: str = "/") -> None:
        self._socket = reserved
        self._port = port
        self._root = root
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        self._unowned: Set[int] = set()

    @property
    def check_due(self) -> bool:
        """Whether it is time to check for a listener."""
        return self._socket is not None and time.monotonic() >= self._next_check

    def release_if_listening(self) -> Optional[Set[int]]:
        """Release it if a process listens there; return which, None before and after that."""
        self._next_check = time.monotonic() + CHECK_INTERVAL_S
        if self._socket is None or not _has_listener(self._port):
            return None
        listeners = self.listener_pids(procfs.table())
        if listeners is not None:
            self.release()
        return listeners

    def listener_pids(self, pids: Iterable[int]) -> Optional[Set[int]]:
        """Return which of the processes listen, none for a hidden one; None if none listens yet.

        A process that is ending may show its socket but not its descriptors any more: a listener
        counts as hidden when it has no visible owner at two checks.
        """
        inodes = listening_inodes(self._port, self._root)
        pids_found = socket_owners(inodes, pids, self._root)
        previous = self._unowned
        self._unowned = inodes
        return pids_found if pids_found or previous & inodes else None

    def release(self) -> None:
        """Release it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _has_listener(port: int) -> bool:
    """Ask the kernel whether a socket may listen on a reserved port; /proc can tell which.

    It refuses a bind with SO_REUSEADDR beside a socket that listens, not beside a reservation.
    """
    try:
        bind_wildcard(port).close()
    except OSError:
        return True
    return False


def _reserve(port: int) -> socket.socket:
    """Bind a port that no other run has reserved; 0 is any free one.

    With SO_REUSEADDR two runs could reserve the same port; without it, connections in TIME_WAIT
    would block it for a minute. A bind without it at an address that no connection ever had fails
    for the first reason only.
    """
    if not port:  # with SO_REUSEADDR, old kernels choose ports that other processes reserved
        reserved = bind_wildcard(0, shared=False)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return reserved
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as guard:
        try:
            guard.bind((_GUARD_ADDRESS, port))
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        guard.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return bind_wildcard(port)


def bind_wildcard(port: int, *, shared: bool = True) -> socket.socket:
    """Return a socket bound at every address, of IPv6 and IPv4 alike where there is IPv6.

    A `shared` one may take a port that we reserved, as torch's store does.
    """
    try:
        return bind(socket.AF_INET6, "::", port, shared=shared)
    except OSError as error:
        if error.errno not in _NO_SUCH_FAMILY:
            raise
    return bind(socket.AF_INET, "0.0.0.0", port, shared=shared)  # noqa: S104


def bind(family: int, address: str, port: int, *, shared: bool) -> socket.socket:
    """Return a socket bound there; a `shared` one as for `bind_wildcard`."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(shared))
        sock.bind((address, port))
    except OSError:
        sock.close()
        raise
    return sock


def _explain(candidates: Sequence[int], errors: Dict[int, OSError]) -> str:
    if len(candidates) == 1:
        (port,) = candidates
        reason = str(errors[port]) if not port else _refusal_reason(errors[port], port)
        return f"port {port} is {reason}" if port else reason
    shown = [f"{port} is {_refusal_reason(errors[port], port)}" for port in candidates[:_MAX_NAMED]]
    more = f"; and {len(candidates) - _MAX_NAMED} more" if len(candidates) > _MAX_NAMED else ""
    return f"no port from {candidates[0]} to {candidates[-1]} is free: {'; '.join(shown)}{more}"


def _refusal_reason(error: OSError, port: int) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"refused ({error.strerror})"
    inodes = listening_inodes(port)
    if not inodes:
        return "reserved by another run, or the near end of a connection"
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    owners = sorted(socket_owners(inodes, pids))[:_MAX_NAMED]
    names = [f"{procfs.process_command(pid)} (pid {pid})" for pid in owners]
    return f"taken by {' and '.join(names) or 'a process that is hidden from us'}"
