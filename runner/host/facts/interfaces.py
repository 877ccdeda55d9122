"""Network interfaces of this host by getifaddrs(3), and its routes as /proc/net lists them."""

from __future__ import annotations

import ctypes
import socket
import struct
import sys
from typing import Dict, Iterator, List, Tuple

from runner.core.wire.facts import Interface, Route
from runner.host.process import procfs

IFF_UP = 0x1
IFF_LOOPBACK = 0x8
IFF_RUNNING = 0x40
RTF_UP = 0x1
LEADS_NOWHERE = 0x80000000 | 0x00100000 | 0x200  # RTF_LOCAL, RTF_ANYCAST, RTF_REJECT
PLACES = {int(socket.AF_INET): (4, 4), int(socket.AF_INET6): (8, 16)}  # and sizes of addresses


class IfAddrs(ctypes.Structure):
    pass


IfAddrs._fields_ = (
    ("next", ctypes.POINTER(IfAddrs)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
    ("netmask", ctypes.c_void_p),
    ("peer", ctypes.c_void_p),
    ("data", ctypes.c_void_p),
)


def read_interfaces() -> Tuple[Interface, ...]:
    """Return the interfaces, none where the kernel does not tell.

    An address with a label of its own (`eth0:1`) makes an interface of that name: this is the name
    by which gloo and NCCL look for it.
    """
    libc = ctypes.CDLL(None)
    first = ctypes.POINTER(IfAddrs)()  # false at the end of the list
    if libc.getifaddrs(ctypes.byref(first)) != 0:
        return ()
    flags: Dict[str, int] = {}
    addresses: Dict[str, List[str]] = {}
    entry = first
    while bool(entry):
        each = entry.contents
        name = each.name.decode(errors="replace")
        flags[name] = each.flags
        listed = addresses.setdefault(name, [])
        family = 0
        if each.address and each.netmask:
            family = int.from_bytes(ctypes.string_at(each.address, 2), sys.byteorder)
        if family in PLACES:
            place, size = PLACES[family]
            address = ctypes.string_at(each.address + place, size)
            mask = int.from_bytes(ctypes.string_at(each.netmask + place, size), "big")
            listed.append(f"{socket.inet_ntop(family, address)}/{f'{mask:b}'.count('1')}")
        entry = each.next
    libc.freeifaddrs(first)
    is_up = IFF_UP | IFF_RUNNING
    return tuple(
        Interface(name, tuple(own), flags[name] & is_up == is_up, bool(flags[name] & IFF_LOOPBACK))
        for name, own in addresses.items()
    )


def read_routes(root: str = "/") -> Iterator[Route]:
    for row in _rows(f"{root}proc/net/route")[1:]:
        if _leads_somewhere(row[3]):
            dest = socket.inet_ntoa(struct.pack("=I", int(row[1], 16)))
            yield Route(f"{dest}/{f'{int(row[7], 16):b}'.count('1')}", row[0], int(row[6]))
    for row in _rows(f"{root}proc/net/ipv6_route"):
        if _leads_somewhere(row[8]):
            dest = socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0]))
            yield Route(f"{dest}/{int(row[1], 16)}", row[9], int(row[5], 16))


def _rows(path: str) -> List[List[str]]:
    return [line.split() for line in procfs.read_text(path).splitlines()]


def _leads_somewhere(flags: str) -> bool:
    return int(flags, 16) & (RTF_UP | LEADS_NOWHERE) == RTF_UP
