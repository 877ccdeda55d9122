"""Network interfaces of this host, with their addresses and routes, as iproute2 lists them.

Without an `ip` that prints JSON (iproute2 of 2018), the kernel tells the first IPv4 address of each
(netdevice(7)), and no routes.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import struct
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from runner.core.wire.facts import Interface, Route
from runner.host.process.bounded_child import REPORT_FD, BoundedChild

TIMEOUT_S = 5.0
COMMANDS = ("ip -j address", "ip -j -4 route", "ip -j -6 route")
SIOCGIFFLAGS = 0x8913
SIOCGIFADDR = 0x8915
SIOCGIFNETMASK = 0x891B
IFF_UP = 0x1
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40


def start() -> BoundedChild:
    """Ask for them."""

    def ask() -> None:
        os.dup2(REPORT_FD, 1)  # the answer may be longer than what is kept of a child's output
        script = f"PATH=$PATH:/usr/sbin:/sbin; {'; '.join(COMMANDS)}"
        os.execv("/bin/sh", ["/bin/sh", "-c", script])

    return BoundedChild(ask, TIMEOUT_S)


def result(child: BoundedChild) -> Tuple[Tuple[Interface, ...], Tuple[Route, ...]]:
    """Return the interfaces, in the kernel's order, and the main routing table."""
    try:
        links, *tables = [json.loads(line) for line in child.raw_report.splitlines()]
    except ValueError:
        return tuple(_interfaces_of_kernel()), ()
    routes: List[Route] = []
    for table, default in zip(tables, ("0.0.0.0/0", "::/0")):  # noqa: B905 (strict came with 3.10)
        routes += parse_routes(table, default)
    return parse_interfaces(links), tuple(routes)


def parse_interfaces(links: Sequence[Dict[str, Any]]) -> Tuple[Interface, ...]:
    """Return the interfaces.

    An address with a label of its own (`eth0:1`) makes an interface of that name, as it does in
    `getifaddrs`: this is the name by which gloo and NCCL look for it.
    """
    interfaces = []
    for link in links:
        addresses: Dict[str, List[str]] = {link["ifname"]: []}
        for entry in link["addr_info"]:
            if "local" in entry:
                name = entry.get("label", link["ifname"])
                addresses.setdefault(name, []).append(f"{entry['local']}/{entry['prefixlen']}")
        flags = link["flags"]
        up = "UP" in flags and "NO-CARRIER" not in flags
        interfaces += [
            Interface(name, tuple(listed), up, "LOOPBACK" in flags)
            for name, listed in addresses.items()
        ]
    return tuple(interfaces)


def parse_routes(table: Sequence[Dict[str, Any]], default: str) -> Iterator[Route]:
    """Yield the routes that lead somewhere; one with several ways is a route for each."""
    for row in table:
        if row.get("type", "unicast") == "unicast":
            dest = default if row["dst"] == "default" else row["dst"]
            for way in row.get("nexthops", [row]):
                yield Route(dest, way["dev"], row.get("metric", 0))


def _interfaces_of_kernel() -> Iterator[Interface]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            request = struct.pack("40s", name.encode())

            def ask(code: int, request: bytes = request) -> bytes:
                return fcntl.ioctl(asked, code, request)[16:]

            (flags,) = struct.unpack_from("H", ask(SIOCGIFFLAGS))
            addresses: Tuple[str, ...] = ()
            try:
                address = socket.inet_ntoa(ask(SIOCGIFADDR)[4:8])
                mask = int.from_bytes(ask(SIOCGIFNETMASK)[4:8], "big")
                length = f"{mask:b}".count("1")
                addresses = (f"{address}/{length}",)
            except OSError:  # it has none
                pass
            up = bool(flags & IFF_UP and flags & IFF_RUNNING)
            yield Interface(name, addresses, up, bool(flags & IFF_LOOPBACK))
