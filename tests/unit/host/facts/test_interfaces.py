"""Interfaces from netlink messages, routes from /proc, as kernels give them."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import pytest

from runner.core.model.facts import Interface, Route
from runner.host.facts import interfaces
from runner.host.facts.collect import ssh_server_address

UP, LOOPBACK, RUNNING = 0x1, 0x8, 0x40
DONE = struct.pack("=IHHIIi", 20, 3, 2, 1, 0, 0)


def attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data + bytes(-len(data) % 4)


def message(kind: int, body: bytes) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, 2, 1, 0) + body


def link(index: int, name: str, flags: int) -> bytes:
    """Return a message about an interface, as RTM_GETLINK is answered."""
    head = struct.pack("=BxHiII", 0, 1, index, flags, 0)
    return message(16, head + attribute(3, name.encode() + b"\0"))


def address(index: int, text: str, length: int, label: str = "") -> bytes:
    """Return a message about an address, as RTM_GETADDR is answered."""
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    raw = socket.inet_pton(family, text)
    body = struct.pack("=BBBBi", family, length, 0x80, 0, index)
    body += attribute(1, raw)
    if family == socket.AF_INET:
        body += attribute(2, raw)
    if label:
        body += attribute(3, label.encode() + b"\0")
    return message(20, body)


def test_interfaces_have_all_their_addresses() -> None:
    """Both families, prefix lengths, and whether traffic can flow."""
    links = (
        link(1, "lo", UP | LOOPBACK | RUNNING)
        + link(2, "eth0", UP | RUNNING)
        + link(3, "docker0", UP)
        + link(4, "ib0", 0)
        + DONE
    )
    addresses = (
        address(1, "127.0.0.1", 8, "lo")
        + address(2, "10.0.0.7", 24, "eth0")
        + address(2, "10.9.0.7", 16, "eth0")
        + address(3, "172.17.0.1", 16, "docker0")
        + address(1, "::1", 128)
        + address(2, "fe80::1", 64)
        + DONE
    )

    assert (
        Interface("lo", ("127.0.0.1/8", "::1/128"), up=True, loopback=True),
        Interface("eth0", ("10.0.0.7/24", "10.9.0.7/16", "fe80::1/64")),
        Interface("docker0", ("172.17.0.1/16",), up=False),
        Interface("ib0", (), up=False),
    ) == interfaces.parse_interfaces(links, addresses)


def test_routes_come_from_the_main_table(tmp_path: Path) -> None:
    """Rejected, local, multicast and cached ones lead nowhere useful."""
    net = tmp_path / "proc" / "net"
    net.mkdir(parents=True)
    (net / "route").write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\t0\t0\t0\n"
        "*\t0000FEA9\t00000000\t0201\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
        "ib0\t00000A0A\t00000000\t0000\t0\t0\t0\t0000FFFF\t0\t0\t0\n"
    )
    zero, gate = "0" * 32, "fd" + "0" * 29 + "1"
    (net / "ipv6_route").write_text(
        f"fd{'0' * 30} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth0\n"
        f"fe80{'0' * 28} 40 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth0\n"
        f"{zero} 00 {zero} 00 {gate} 00000400 00000001 00000000 00000003     eth0\n"
        f"{zero[:-1]}1 80 {zero} 00 {zero} 00000000 00000001 00000000 80200001       lo\n"
        f"ff{'0' * 30} 08 {zero} 00 {zero} 00000100 00000001 00000000 00000001     eth0\n"
        f"{zero} 00 {zero} 00 {zero} ffffffff 00000001 00000000 00200200       lo\n"
    )

    assert (
        Route("0.0.0.0/0", "eth0", 100),
        Route("192.168.1.0/24", "eth0", 100),
        Route("fd00::/64", "eth0", 256),
        Route("fe80::/64", "eth0", 256),
        Route("::/0", "eth0", 1024),
    ) == interfaces.list_routes(str(tmp_path))


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("fe80::5%eth0 51234 fe80::7%eth0 22", "fe80::7"),
        ("UNKNOWN 65535 UNKNOWN", ""),
    ],
)
def test_the_address_we_came_to_is_the_third_word(connection: str, expected: str) -> None:
    """Sshd says which of its addresses was called."""
    assert expected == ssh_server_address({"SSH_CONNECTION": connection})
