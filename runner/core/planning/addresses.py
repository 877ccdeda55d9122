"""Which address the nodes meet at, and which interface each uses on the way there.

The rule is DESIGN's: the master's `addr`; else its `host` if the master owns that address and it
is not loopback; else the master's address on a subnet all peers share; else an error.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from runner.core.errors import Problem
from runner.core.model.facts import Facts, Interface
from runner.core.model.spec import Node, Spec

Address = Union[IPv4Address, IPv6Address]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Endpoint:
    """Where a node is reached by its peers; `subnet` is that of the address. "" is unknown."""

    interface: str = ""
    address: str = ""
    subnet: str = ""


def training_address(
    nodes: Sequence[Node], facts: Mapping[str, Facts], *, alone: bool = True
) -> Tuple[str, str, Optional[Problem]]:
    """Choose the address at which the ranks meet; one node is `alone` unless others may join.

    Returns:
        The address, why it was chosen, and what is wrong if there is none.
    """
    master = nodes[0]
    if len(nodes) == 1 and alone:
        return LOOPBACK, "one node", None
    if master.addr:
        return master.addr, f"cluster.nodes.{master.name}.addr", None
    return _derived(nodes, facts)


def derived_address(nodes: Sequence[Node], facts: Mapping[str, Facts]) -> str:
    """Return an address for routes where `addr` is set: itself, or for a name the derived one."""
    addr = nodes[0].addr or ""
    return addr if _parse(addr) else _derived(nodes, facts)[0]


def endpoints(spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]) -> Dict[str, Endpoint]:
    """Return where each node is reached by its peers; {} where the ranks cannot meet.

    That is what gloo and NCCL publish: the address of the interface towards the master, of its
    several the one on the master's subnet, else the first of the same family.
    """
    alone = (spec.most or 1) == 1
    addr, _, problem = training_address(nodes, facts, alone=alone)
    if problem:
        return {}
    route = derived_address(nodes, facts) if addr == nodes[0].addr else addr
    found = {}
    for node in nodes:
        own = facts[node.name]
        interface = _by_variable(own, spec.env_of(node)) or interface_of(node, own, route)
        found[node.name] = _endpoint(own, interface, route)
    return found


def interface_of(node: Node, facts: Facts, route: str) -> str:
    """Return the interface of a node's training traffic: as named, else towards that address."""
    return node.interface or interface_towards(facts, route)


def _by_variable(facts: Facts, env: Mapping[str, str]) -> str:
    """Return the interface that a variable of the user's has ranks use in our stead, if one."""
    names = {each.name for each in facts.interfaces}
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        chosen = env.get(variable, facts.own_env.get(variable, "")).lstrip("=")
        if chosen in names:
            return chosen
    return ""


def _endpoint(facts: Facts, interface: str, route: str) -> Endpoint:
    meeting = _parse(route)
    own = [
        ip_interface(text)
        for each in facts.interfaces
        if each.name == interface
        for text in each.addresses
    ]
    usable = [
        each
        for each in own
        if not _useless(each.ip) and (meeting is None or each.version == meeting.version)
    ]
    if not usable:
        return Endpoint(interface)
    best = min(
        usable,
        key=lambda each: (each.ip != meeting, meeting is None or meeting not in each.network),
    )
    return Endpoint(interface, str(best.ip), str(best.network))


def _derived(
    nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> Tuple[str, str, Optional[Problem]]:
    master = nodes[0]
    own = facts[master.name]
    for candidate, why in (
        (master.host, "the master's host"),
        (own.reached_at, "where we reach the master"),
    ):
        address = _parse(candidate)
        if address and not _useless(address) and interface_owning(own.interfaces, address):
            return str(address), why, None
    shared = _shared_subnet_address(own, [facts[node.name] for node in nodes[1:]])
    if shared:
        return shared, "the subnet all nodes share", None
    return "", "", _no_address(master, own)


def interface_towards(facts: Facts, address: str) -> str:
    """Return the interface that `address` is reached through, "" when no route says so.

    A host's route to its own address would say `lo`; there it is the interface that owns it.
    Otherwise the longest matching prefix wins, then the lowest metric, as in the kernel.
    """
    wanted = _parse(address)
    if wanted is None:
        return ""
    owner = interface_owning(facts.interfaces, wanted)
    if owner:
        return owner
    best: Tuple[int, int, str] = (-1, 0, "")
    for route in facts.routes:
        network = ip_network(route.dest, strict=False)
        if network.version == wanted.version and wanted in network:
            best = max(best, (network.prefixlen, -route.metric, route.interface))
    return best[2]


def interface_owning(interfaces: Sequence[Interface], address: Address) -> str:
    """Return the name of the interface that has exactly this address, or ""."""
    for interface in interfaces:
        for own in interface.addresses:
            if ip_interface(own).ip == address:
                return interface.name
    return ""


def _shared_subnet_address(own: Facts, peers: Sequence[Facts]) -> str:
    for interface in own.interfaces:
        if interface.loopback or not interface.up:
            continue
        for text in interface.addresses:
            mine = ip_interface(text)
            shared = all(_on_subnet(peer, mine.network, mine.ip) for peer in peers)
            if shared and not _useless(mine.ip):
                return str(mine.ip)
    return ""


def _on_subnet(peer: Facts, network: object, master: Address) -> bool:
    """Whether the peer has its own address on the network (containers' 172.17.0.1 do not count)."""
    for interface in peer.interfaces:
        if interface.loopback or not interface.up:
            continue
        for text in interface.addresses:
            theirs = ip_interface(text)
            if theirs.network == network and theirs.ip != master:
                return True
    return False


def _useless(address: Address) -> bool:
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_numeric(address: str) -> bool:
    """Whether it is an address, and not a name."""
    return _parse(address) is not None


def _parse(text: str) -> Optional[Address]:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _no_address(master: Node, own: Facts) -> Problem:
    addresses: List[str] = [
        f"{text.split('/')[0]} ({interface.name})"
        for interface in own.interfaces
        if not interface.loopback
        for text in interface.addresses
        if not _useless(ip_interface(text).ip)
    ]
    return Problem(
        where=f"cluster.nodes.{master.name}.addr",
        what=f"no address of {master.name}, the master, lies on a subnet that every node shares",
        hint="set it to the address at which the other nodes reach it"
        + (f", one of {', '.join(addresses)}" if addresses else ""),
    )
