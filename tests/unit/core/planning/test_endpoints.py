"""Training addresses and interfaces."""

from __future__ import annotations

import pytest

from runner.core.errors import NotReady
from runner.core.planning.endpoints import (
    Endpoint,
    peer_endpoints,
    route_interface,
    training_address,
)
from runner.core.spec import Node
from runner.core.wire.facts import Interface, Route
from tests.golden.builders import LO, facts, interface, spec

DOCKER = "docker0 172.17.0.1/16"
A = Node("a", "alias-a")
B = Node("b", "alias-b")


@pytest.mark.parametrize(
    ("host", "reached_at"),
    [
        ("127.0.1.1", "127.0.1.1"),  # Debian's own name
        ("203.0.113.9", "10.99.0.1"),  # a forwarded port
        ("fe80::1", "fe80::1"),
    ],
)
def test_else_it_is_the_subnet_all_share(host: str, reached_at: str) -> None:
    """Loopback, link-local and addresses the master does not own are no use to peers."""
    owned = ("eth0 10.0.0.1/24 fe80::1/64", "eth1 10.9.0.1/24")
    known = {
        "a": facts("a", *owned, ssh_address=reached_at),
        "b": facts("b", "eth1 10.9.0.2/24"),
        "c": facts("c", "ens1 10.9.0.3/24", "eth0 10.0.0.3/24"),
    }
    nodes = [Node("a", host), B, Node("c", "c")]
    address, reason, *_ = training_address(spec(*nodes), nodes, known)
    assert (address, reason) == ("10.9.0.1", "the subnet all nodes share")


@pytest.mark.parametrize(
    "useless",
    [
        pytest.param(interface(DOCKER), id="everybody's own docker bridge"),
        pytest.param(interface("eth9 10.9.0.1/24", up=False), id="cable out"),
        pytest.param(interface("eth9 10.9.0.1/16"), id="another prefix"),
    ],
)
def test_these_are_no_shared_subnets(useless: Interface) -> None:
    """What only looks shared is never chosen; the error names the key and the choices."""
    master = facts("a", ssh_address="", interfaces=(LO, useless, interface("eth0 10.1.0.1/24")))
    peer = facts("b", DOCKER, "eth9 10.9.0.2/24 fe80::2/64", "eth0 10.2.0.1/24")

    with pytest.raises(NotReady) as caught:
        training_address(spec(A, B), [A, B], {"a": master, "b": peer})
    (problem,) = caught.value.problems
    assert str(problem).startswith(
        "cluster.nodes.a.addr: no address of a, the master, is on a subnet that every node shares\n"
        "    set it to the address at which the other nodes reach it, one of "
    )
    assert problem.hint.endswith("10.1.0.1 (eth0)")


ROUTES = (
    Route("0.0.0.0/0", "wan0"),
    Route("10.0.0.0/8", "vpn0", 50),
    Route("10.0.0.0/8", "eth9", 100),
    Route("10.5.0.0/16", "eth5", 600),
    Route("::/0", "wan6"),
    Route("fd00::/16", "eth6"),
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        pytest.param("10.5.0.9", "eth5", id="longest prefix, whatever its metric"),
        pytest.param("10.6.0.9", "vpn0", id="lowest metric of equals"),
        pytest.param("192.0.2.9", "wan0", id="default route"),
        pytest.param("10.0.0.1", "eth0", id="own address: not lo, but its owner"),
        pytest.param("gpu1.example.org", "", id="a name: unknown"),
    ],
)
def test_interface_is_the_kernels_choice(address: str, expected: str) -> None:
    """As in the kernel: own addresses aside, the longest prefix, then the lowest metric."""
    told = facts("a", "eth0 10.0.0.1/24", routes=ROUTES)

    assert route_interface(told, address) == expected


def test_each_node_is_reached_at_its_interface_towards_the_master() -> None:
    """Of several the one on the subnet of the master's `addr`; link-local ones are of no use."""
    a = Node("a", "10.5.0.1", addr="10.0.0.1")
    nodes = (a, Node("b", "b"), Node("c", "c", interface="ib0"), Node("d", "d"))
    told = {
        "a": facts("a", "eth0 10.0.0.1/24 10.5.0.1/24 fe80::1/64"),
        "b": facts("b", "eth0 192.168.0.2/24", "eth1 10.9.0.2/16 10.0.0.2/24"),
        "c": facts("c", "eth0 10.0.0.3/24", "ib0 fe80::3/64 10.1.0.3/24"),
        "d": facts("d", "eth0 192.168.0.4/24"),
    }
    assert peer_endpoints(spec(*nodes), nodes, told) == {
        "a": Endpoint("eth0", "10.0.0.1", "10.0.0.0/24"),
        "b": Endpoint("eth1", "10.0.0.2", "10.0.0.0/24"),
        "c": Endpoint("ib0", "10.1.0.3", "10.1.0.0/24"),
        "d": Endpoint(),
    }
