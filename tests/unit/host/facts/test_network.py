"""The network of a host: interfaces and routes, as `ip -j` prints them; listeners, from /proc."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from runner.core.wire.facts import Interface, Route
from runner.host.facts import interfaces, ports
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


HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"
ROW = "{n:4}: {local} {remote} {state} 00000000:00000000 00:00000000 00000000  0  0 {inode} 1\n"
ANY4, ANY6 = "00000000:0000", "0" * 32 + ":0000"


def proc(root: Path) -> str:
    net = root / "proc" / "net"
    net.mkdir(parents=True)
    rows4 = [
        ("0100007F:733C", ANY4, "0A", 501),  # 127.0.0.1:29500, listening
        ("00000000:0016", ANY4, "0A", 502),  # port 22
        ("0700000A:733C", "0800000A:C350", "01", 503),  # a connection
        ("0700000A:733C", "0900000A:C350", "06", 0),  # TIME_WAIT
    ]
    rows6 = [("0" * 32 + ":733C", ANY6, "0A", 601)]
    for name, rows in (("tcp", rows4), ("tcp6", rows6)):
        lines = [
            ROW.format(n=n, local=local, remote=remote, state=state, inode=inode)
            for n, (local, remote, state, inode) in enumerate(rows)
        ]
        (net / name).write_text(HEAD + "".join(lines))
    for pid, inode in ((10, 501), (11, 503), (12, 601)):
        folder = root / "proc" / str(pid) / "fd"
        folder.mkdir(parents=True)
        (folder / "0").symlink_to("/dev/null")
        (folder / "5").symlink_to(f"socket:[{inode}]")
    return str(root)


def test_listeners_of_both_families_are_found(tmp_path: Path) -> None:
    """Connections on the port and listeners on others do not count."""
    assert {501, 601} == ports.listening_inodes(29500, proc(tmp_path))


def test_a_listener_without_an_owner_counts_when_it_stays(tmp_path: Path) -> None:
    """It may belong to a process that is just ending: its descriptors go before its sockets."""
    root = proc(tmp_path)
    lookout = ports.PortReservation(None, 29500, root)
    assert lookout.listener_pids([11]) is None
    assert lookout.listener_pids([11]) == set()
    assert ports.PortReservation(None, 29500, root).listener_pids([10, 11]) == {10}


def test_a_hidden_listener_may_be_one_of_ours_that_hides_its_descriptors(tmp_path: Path) -> None:
    """As a program with capabilities does; whoever is visible is known."""
    root = proc(tmp_path)
    assert ports.is_foreign(set(), {10, 11}, root)
    assert not ports.is_foreign(set(), {10, 11, 13}, root)
    assert not ports.is_foreign({10}, {10, 13}, root)
    assert ports.is_foreign({12}, {10, 13}, root)
