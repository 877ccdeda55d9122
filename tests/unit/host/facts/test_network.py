"""The network of a host: interfaces and routes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.facts import Interface, Route
from runner.host.facts import interfaces
from runner.host.facts.collect import ssh_server_address
from tests.golden.here import write

ROUTES = """\
Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT
eth0 00000000 0100000A 0003 0 0 100 00000000 0 0 0
eth0 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0
* 0000C80A 00000000 0201 0 0 0 0000FFFF 0 0 0
"""
ROUTES_6 = """\
{net} 40 {none} 00 {none} 00000100 00000001 00000000 00000001 eth0
{none} 00 {none} 00 {none} ffffffff 00000001 00000000 00200200 lo
{own} 80 {none} 00 {none} 00000000 00000003 00000000 80200001 eth0
""".format(net="fd" + "0" * 30, own="fd" + "0" * 29 + "7", none="0" * 32)


def test_this_machine_has_its_loopback() -> None:
    assert Interface("lo", ("127.0.0.1/8", "::1/128"), loopback=True) in [
        replace(each, addresses=(*each.addresses, "::1/128")[:2])  # some have no IPv6
        for each in interfaces.read_interfaces()
    ]


def test_routes_that_lead_somewhere(tmp_path: Path) -> None:
    write(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": ROUTES_6})
    assert [*interfaces.read_routes(f"{tmp_path}/")] == [
        Route("0.0.0.0/0", "eth0", 100),
        Route("10.0.0.0/24", "eth0"),
        Route("fd00::/64", "eth0", 256),
    ]


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
