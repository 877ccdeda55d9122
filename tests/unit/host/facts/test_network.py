"""The network of a host: interfaces and routes, as `ip -j` prints them."""

from __future__ import annotations

import json

import pytest

from runner.core.wire.facts import Interface, Route
from runner.host.facts import interfaces
from runner.host.facts.collect import ssh_server_address

LINKS = """[
{"ifname": "lo", "flags": ["LOOPBACK", "UP", "LOWER_UP"], "addr_info": [
  {"family": "inet", "local": "127.0.0.1", "prefixlen": 8, "label": "lo"},
  {"family": "inet6", "local": "::1", "prefixlen": 128}]},
{"ifname": "eth0", "flags": ["BROADCAST", "UP", "LOWER_UP"], "addr_info": [{},
  {"family": "inet", "local": "10.0.0.7", "prefixlen": 24, "label": "eth0"},
  {"family": "inet", "local": "10.9.0.7", "prefixlen": 16, "label": "eth0:1"},
  {"family": "inet6", "local": "fe80::1", "prefixlen": 64}]},
{"ifname": "docker0", "link": "x", "flags": ["NO-CARRIER", "UP"], "addr_info": [
  {"family": "inet", "local": "172.17.0.1", "prefixlen": 16, "label": "docker0"}]},
{"ifname": "ib0", "flags": ["BROADCAST"], "addr_info": []}]"""
ROUTES = """[
{"dst": "default", "gateway": "192.168.1.1", "dev": "eth0", "metric": 100, "flags": []},
{"dst": "192.168.1.0/24", "dev": "eth0", "scope": "link", "flags": []},
{"type": "unreachable", "dst": "10.0.0.0/8", "metric": 7, "flags": []},
{"dst": "10.2.0.9", "flags": [], "nexthops": [
  {"gateway": "192.168.1.2", "dev": "eth0"}, {"gateway": "192.168.2.2", "dev": "ib0"}]}]"""


def test_interfaces_have_all_their_addresses() -> None:
    """Both families, prefix lengths, labels, and whether traffic can flow."""
    assert interfaces.parse_interfaces(json.loads(LINKS)) == (
        Interface("lo", ("127.0.0.1/8", "::1/128"), up=True, loopback=True),
        Interface("eth0", ("10.0.0.7/24", "fe80::1/64")),
        Interface("eth0:1", ("10.9.0.7/16",)),
        Interface("docker0", ("172.17.0.1/16",), up=False),
        Interface("ib0", (), up=False),
    )


def test_routes_that_lead_somewhere() -> None:
    """One with several ways is a route for each."""
    assert [*interfaces.parse_routes(json.loads(ROUTES), "0.0.0.0/0")] == [
        Route("0.0.0.0/0", "eth0", 100),
        Route("192.168.1.0/24", "eth0"),
        Route("10.2.0.9", "eth0"),
        Route("10.2.0.9", "ib0"),
    ]


def test_a_host_without_that_tool_has_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel tells the first address of each."""
    monkeypatch.setattr(interfaces, "COMMANDS", ("false",))
    child = interfaces.start()
    while child.code is None:
        child.advance()
    found, routes = interfaces.result(child)
    assert Interface("lo", ("127.0.0.1/8",), loopback=True) in found
    assert not routes


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
