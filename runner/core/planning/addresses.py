"""Addresses of the training traffic: where the nodes meet, and the interface of each.

The ranks meet at the master's `addr`; else at its `host`, if the master owns that address and it
is not loopback; else at the master's address on a subnet that all nodes share; else nowhere.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Dict, List, Mapping, Optional, Sequence, Tuple, Union

from runner.core.errors import Problem
from runner.core.model.facts import Endpoint, Facts, Interface
from runner.core.model.spec import Node, Spec

Address = Union[IPv4Address, IPv6Address]

LOOPBACK = "127.0.0.1"


def training_address(
    nodes: Sequence[Node], facts: Mapping[str, Facts], *, single_node: bool = True
) -> Tuple[str, str, Optional[Problem]]:
    """Choose the address at which the ranks meet; with `single_node`, no other may join.

    Returns:
        The address, why it was chosen, and the problem if there is none.
    """
    master = nodes[0]
    if len(nodes) == 1 and single_node:
        return LOOPBACK, "one node", None
    if master.addr:
        return master.addr, f"cluster.nodes.{master.name}.addr", None
    return _derive_address(nodes, facts)


def derived_address(nodes: Sequence[Node], facts: Mapping[str, Facts]) -> str:
    """Return the address for routes if `addr` is set: itself, or for a name the derived one."""
    addr = nodes[0].addr or ""
    return addr if _parse(addr) else _derive_address(nodes, facts)[0]


def peer_endpoints(
    spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> Dict[str, Endpoint]:
    """Return the endpoint of each node, as gloo and NCCL publish it; {} if the ranks cannot meet.

    It is an address of the interface towards the master: the one on the master's subnet, else the
    first one of the same family.
    """
    single_node = (spec.max_nodes or 1) == 1
    addr, _, problem = training_address(nodes, facts, single_node=single_node)
    if problem:
        return {}
    route = derived_address(nodes, facts) if addr == nodes[0].addr else addr
    result = {}
    for node in nodes:
        node_facts = facts[node.name]
        interface = _interface_from_env(node_facts, spec.env_of(node)) or training_interface(
            node, node_facts, route
        )
        result[node.name] = _endpoint_on(node_facts, interface, route)
    return result


def duplicate_addresses(
    spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> List[Problem]:
    """Return a problem per node that has another's address: bridges such as docker0 are alike."""
    problems = []
    first: Dict[str, str] = {}
    for name, endpoint in peer_endpoints(spec, nodes, facts).items():
        other = first.setdefault(endpoint.address, name)
        if not endpoint.address or _is_same_machine(facts[name], facts[other], endpoint.interface):
            continue
        message = f"{endpoint.address} ({endpoint.interface}) is the address of {other}, too"
        hint = (
            f"set cluster.nodes.{other}.addr to one that it alone has, or set "
            f"cluster.nodes.{name}.interface"
        )
        problems.append(Problem(name, message, hint))
    return problems


def _is_same_machine(facts: Facts, other: Facts, name: str) -> bool:
    """Return whether two nodes are one machine: its other interfaces may come and go."""
    interfaces = [[i for i in each.interfaces if i.name == name] for each in (facts, other)]
    return facts.hostname == other.hostname and interfaces[0] == interfaces[1]


def training_interface(node: Node, facts: Facts, route: str) -> str:
    """Return the interface of a node's training traffic: as configured, else towards `route`."""
    return node.interface or route_interface(facts, route)


def _interface_from_env(facts: Facts, env: Mapping[str, str]) -> str:
    """Return the interface that a variable of the user's makes ranks use, if any."""
    names = {interface.name for interface in facts.interfaces}
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        chosen = env.get(variable, facts.preset_env.get(variable, "")).lstrip("=")
        if chosen in names:
            return chosen
    return ""


def _endpoint_on(facts: Facts, interface: str, route: str) -> Endpoint:
    target = _parse(route)
    addresses = [
        ip_interface(text)
        for candidate in facts.interfaces
        if candidate.name == interface
        for text in candidate.addresses
    ]
    usable = [
        candidate
        for candidate in addresses
        if not _unusable(candidate.ip) and (target is None or candidate.version == target.version)
    ]
    if not usable:
        return Endpoint(interface)
    best = min(
        usable,
        key=lambda candidate: (
            candidate.ip != target,
            target is None or target not in candidate.network,
        ),
    )
    return Endpoint(interface, str(best.ip), str(best.network))


def _derive_address(
    nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> Tuple[str, str, Optional[Problem]]:
    master = nodes[0]
    master_facts = facts[master.name]
    for candidate, reason in (
        (master.host, "the master's host"),
        (master_facts.ssh_address, "where we reach the master"),
    ):
        address = _parse(candidate)
        if address and not _unusable(address) and interface_with(master_facts.interfaces, address):
            return str(address), reason, None
    shared_address = _shared_subnet_address(master_facts, [facts[node.name] for node in nodes[1:]])
    if shared_address:
        return shared_address, "the subnet all nodes share", None
    return "", "", _no_address(master, master_facts)


def route_interface(facts: Facts, address: str) -> str:
    """Return the interface that `address` is reached through, "" when no route says so.

    A host's route to its own address would say `lo`; there it is the interface that owns it.
    Otherwise the longest matching prefix wins, then the lowest metric, as in the kernel.
    """
    target = _parse(address)
    if target is None:
        return ""
    owner = interface_with(facts.interfaces, target)
    if owner:
        return owner
    best: Tuple[int, int, str] = (-1, 0, "")
    for route in facts.routes:
        network = ip_network(route.dest, strict=False)
        if network.version == target.version and target in network:
            best = max(best, (network.prefixlen, -route.metric, route.interface))
    return best[2]


def interface_with(interfaces: Sequence[Interface], address: Address) -> str:
    """Return the name of the interface that has exactly this address, or ""."""
    for interface in interfaces:
        for owned in interface.addresses:
            if ip_interface(owned).ip == address:
                return interface.name
    return ""


def _shared_subnet_address(master_facts: Facts, peers: Sequence[Facts]) -> str:
    for interface in master_facts.interfaces:
        if interface.loopback or not interface.up:
            continue
        for text in interface.addresses:
            mine = ip_interface(text)
            shared = all(_on_subnet(peer, mine.network, mine.ip) for peer in peers)
            if shared and not _unusable(mine.ip):
                return str(mine.ip)
    return ""


def _on_subnet(peer: Facts, network: object, master: Address) -> bool:
    """Return whether the peer has an address of its own there; docker0's does not count."""
    for interface in peer.interfaces:
        if interface.loopback or not interface.up:
            continue
        for text in interface.addresses:
            theirs = ip_interface(text)
            if theirs.network == network and theirs.ip != master:
                return True
    return False


def _unusable(address: Address) -> bool:
    return address.is_loopback or address.is_link_local or address.is_unspecified


def is_numeric(address: str) -> bool:
    """Return whether it is an address and not a name."""
    return _parse(address) is not None


def _parse(text: str) -> Optional[Address]:
    try:
        return ip_address(text)
    except ValueError:
        return None


def _no_address(master: Node, master_facts: Facts) -> Problem:
    addresses: List[str] = [
        f"{text.split('/')[0]} ({interface.name})"
        for interface in master_facts.interfaces
        if not interface.loopback
        for text in interface.addresses
        if not _unusable(ip_interface(text).ip)
    ]
    return Problem(
        subject=f"cluster.nodes.{master.name}.addr",
        message=f"no address of {master.name}, the master, is on a subnet that every node shares",
        hint="set it to the address at which the other nodes reach it"
        + (f", one of {', '.join(addresses)}" if addresses else ""),
    )
