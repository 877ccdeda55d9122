"""Ports: reserved without listening, until the program that uses them has ended.

A bound socket with SO_REUSEADDR that does not listen reserves its port against the kernel and every
bind without that option, while torch's store, which sets it, can still bind and listen there.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Set, Tuple

from runner.core.wire.facts import FactsRequest
from runner.host.process import procfs

_GUARD_ADDRESS = "127.82.85.78"
_TCP_LISTEN = "0A"
_NO_SUCH_FAMILY = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


class ReservedPorts(NamedTuple):
    """The ports of a run: the rendezvous (torch's store), the hub, later rendezvous.

    A supervisor holds them until the run has ended on its host.
    """

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
        return [sock for sock in (self.store, self.hub, *self.spares) if sock]

    def next_store(self, port: int) -> ReservedPorts:
        """Return those of the next attempt, whose ranks meet at `port` here, if that is not 0."""
        if self.store is not None:
            self.store.close()
        if not port:
            return self._replace(store=None)
        store = next((sock for sock in self.spares if _number(sock) == port), None)
        spares = tuple(sock for sock in self.spares if sock is not store)
        return self._replace(store=store or reserve(port, port)[0], spares=spares)

    def close(self) -> None:
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
    if candidates[0] == 0:
        return str(errors[0])
    reasons = [f"port {port} is {_refusal_reason(errors[port], port)}" for port in candidates[:3]]
    if len(candidates) == 1:
        return reasons[0]
    return f"no port from {candidates[0]} to {candidates[-1]} is free: {'; '.join(reasons)}"


def _refusal_reason(error: OSError, port: int) -> str:
    if error.errno != errno.EADDRINUSE:
        return f"refused ({error.strerror})"
    sockets: Set[str] = set()
    for table in ("tcp", "tcp6"):
        lines = procfs.read_text(f"/proc/net/{table}").splitlines()
        for _, local, _, state, *_, inode in (line.split()[:10] for line in lines[1:]):
            if state == _TCP_LISTEN and int(local.rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{inode}]")
    if not sockets:
        return "reserved by another run, or the near end of a connection"
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    owners = [pid for pid in pids if any(to in sockets for _, to in procfs.fd_links(pid))]
    names = [f"{procfs.process_command(pid)} (pid {pid})" for pid in owners[:3]]
    return f"taken by {' and '.join(names) or 'a process that is hidden from us'}"
