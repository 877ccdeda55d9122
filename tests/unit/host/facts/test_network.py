"""The network of a host: interfaces, routes and listeners."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.facts import Interface, Route
from runner.host.facts import interfaces, ports
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
