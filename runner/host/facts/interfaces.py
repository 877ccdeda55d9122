"""Network interfaces of this host, with their addresses and routes, by netlink and /proc.

Netlink is what `getifaddrs` of libc uses: no library to load, and addresses have prefix lengths.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import Dict, Iterator, List, Tuple

from runner.core.model.facts import Interface, Route
from runner.host.process import procfs

_NLMSG_DONE = 3
_NLMSG_ERROR = 2
_RTM_NEWLINK = 16
_RTM_GETLINK = 18
_RTM_NEWADDR = 20
_RTM_GETADDR = 22
_REQUEST_DUMP = 0x301
_IFLA_IFNAME = 3
_IFA_ADDRESS = 1
_IFA_LOCAL = 2
_IFA_LABEL = 3
_IFF_UP = 0x1
_IFF_LOOPBACK = 0x8
_IFF_RUNNING = 0x40

_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBi")
_ATTRIBUTE = struct.Struct("=HH")
_UNKNOWN = ("", 0)

_TIMEOUT_S = 2.0

_RTF_UP = 0x1
_RTF_REJECT = 0x200
_RTF_ANYCAST = 0x100000
_RTF_CACHE = 0x1000000
_RTF_LOCAL = 0x80000000


def list_interfaces() -> Tuple[Interface, ...]:
    """Return every interface with its addresses, in the kernel's order."""
    return parse_interfaces(_netlink_dump(_RTM_GETLINK), _netlink_dump(_RTM_GETADDR))


def parse_interfaces(links: bytes, addresses: bytes) -> Tuple[Interface, ...]:
    """Return the interfaces in two netlink dumps.

    An address with a label of its own (`eth0:1`) makes an interface of that name, as it does in
    `getifaddrs`: this is the name by which gloo and NCCL look for it.
    """
    known: Dict[int, Tuple[str, int]] = {}
    by_interface: Dict[Tuple[int, str], List[str]] = {}
    for kind, body in _parts(links, _HEADER):
        if kind == _RTM_NEWLINK:
            _, _, index, flags, _ = _LINK.unpack_from(body)
            found = dict(_parts(body, _ATTRIBUTE, _LINK.size))
            name = found[_IFLA_IFNAME].rstrip(b"\0").decode(errors="replace")
            known[index] = name, flags
            by_interface[index, name] = []
    for kind, body in _parts(addresses, _HEADER):
        if kind == _RTM_NEWADDR:
            family, length, _, _, index = _ADDRESS.unpack_from(body)
            found = dict(_parts(body, _ATTRIBUTE, _ADDRESS.size))
            raw = found.get(_IFA_LOCAL) or found[_IFA_ADDRESS]  # the latter may be the peer's
            label = found.get(_IFA_LABEL, b"").rstrip(b"\0").decode(errors="replace")
            key = index, label or known.get(index, _UNKNOWN)[0]
            by_interface.setdefault(key, []).append(f"{socket.inet_ntop(family, raw)}/{length}")
    interfaces = []
    for (index, name), listed in by_interface.items():
        _, flags = known.get(index, _UNKNOWN)
        up = flags & _IFF_UP and flags & _IFF_RUNNING
        loopback = flags & _IFF_LOOPBACK
        interfaces.append(Interface(name, tuple(listed), bool(up), bool(loopback)))
    return tuple(interfaces)


def list_routes(root: str = "/") -> Tuple[Route, ...]:
    """Return the main routing table, without rejecting and local routes."""
    net = os.path.join(root, "proc/net")
    return (*_routes_v4(os.path.join(net, "route")), *_routes_v6(os.path.join(net, "ipv6_route")))


def _netlink_dump(request: int) -> bytes:
    """Return the kernel's whole answer to a request for all of a kind."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(_TIMEOUT_S)
        netlink.bind((0, 0))
        netlink.send(_HEADER.pack(_HEADER.size + 4, request, _REQUEST_DUMP, 1, 0) + bytes(4))
        answer = b""
        while True:
            chunk = netlink.recv(1 << 16)
            answer += chunk
            if any(kind in (_NLMSG_DONE, _NLMSG_ERROR) for kind, _ in _parts(chunk, _HEADER)):
                return answer


def _parts(data: bytes, header: struct.Struct, offset: int = 0) -> Iterator[Tuple[int, bytes]]:
    """Yield kind and body of each part; headers begin with length and kind, and are aligned."""
    while offset + header.size <= len(data):
        length, kind = header.unpack_from(data, offset)[:2]
        yield kind, data[offset + header.size : offset + length]
        offset += max(header.size, (length + 3) & ~3)


def _routes_v4(path: str) -> Iterator[Route]:
    for fields in _read_table(path, 8):
        if fields[0] == "Iface":
            continue
        flags = int(fields[3], 16)
        if flags & _RTF_UP and not flags & _RTF_REJECT:
            dest, mask = (struct.pack("=I", int(fields[column], 16)) for column in (1, 7))
            length = f"{int.from_bytes(mask, 'big'):b}".count("1")
            yield Route(f"{socket.inet_ntoa(dest)}/{length}", fields[0], int(fields[6]))


def _routes_v6(path: str) -> Iterator[Route]:
    unwanted = _RTF_REJECT | _RTF_ANYCAST | _RTF_CACHE | _RTF_LOCAL
    for fields in _read_table(path, 10):
        dest = bytes.fromhex(fields[0])
        flags = int(fields[8], 16)
        is_multicast = dest[0] == 0xFF
        if flags & _RTF_UP and not flags & unwanted and not is_multicast:
            address = f"{socket.inet_ntop(socket.AF_INET6, dest)}/{int(fields[1], 16)}"
            yield Route(address, fields[9], int(fields[5], 16))


def _read_table(path: str, width: int) -> Iterator[List[str]]:
    rows = (line.split() for line in procfs.read_text(path).splitlines())
    return (fields for fields in rows if len(fields) >= width)
