"""Endpoints of an attempt: where the ranks meet, each node's interface, and the hub.

The ranks meet at the master's `addr`; else at its `host`, if the master owns that address and it
is not loopback; else at the master's address on a subnet that all nodes share; else nowhere.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.core.errors import NotReady, Problem
from runner.core.spec import Node, Spec, are_local
from runner.core.wire.facts import Facts, Interface
from runner.core.wire.order import Hub

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
OwnAddress = ipaddress.IPv4Interface | ipaddress.IPv6Interface
Owned = tuple[Interface, OwnAddress]

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Endpoint:
    """Where a node is reached by its peers; `subnet` is that of the address. "" is unknown."""

    interface: str = ""
    address: str = ""
    subnet: str = ""


@dataclass(frozen=True)
class AttemptEndpoints:
    addr: str  # the master's
    port: int  # where the ranks meet there; 0 if none was reserved
    spare_ports: tuple[int, ...]  # where those of later attempts may
    reason: str  # why they meet there
    route: str  # an address by which routing tables find the master
    local_addrs: Mapping[str, str]  # at which others reach the ranks of each node
    hub: Hub | None  # None for a single node


def choose_endpoints(
    spec: Spec, facts: Mapping[str, Facts], spares: Sequence[Node] = ()
) -> AttemptEndpoints:
    """Choose the endpoints of an attempt; `spares` stand by.

    Raises:
        NotReady: No address is known that every node can reach.
    """
    addr, reason, route = training_address(spec, spec.nodes, facts)
    master = spec.master.name
    local_addrs = {master: LOOPBACK}
    hub = None
    if not spec.is_single_node:
        # torch would publish names that may not resolve.
        peers = peer_endpoints(spec, spec.nodes, facts)
        local_addrs = {node.name: node.addr or peers[node.name].address for node in spec.nodes}
        for node in spares:
            own = _endpoint(spec, node, facts[node.name], route)
            local_addrs[node.name] = node.addr or own.address
        if facts[master].hub_port:
            hub = Hub(
                node=master,
                addr=addr if _parse(addr) else route or addr,
                port=facts[master].hub_port,
                lost_s=spec.lost_s,
                spares=tuple(node.name for node in spares),
            )
    return AttemptEndpoints(
        addr=addr,
        port=facts[master].reserved_port if spec.rendezvous.uses_master_store else 0,
        spare_ports=facts[master].spare_ports,
        reason="rendezvous.endpoint" if spec.rendezvous.endpoint else reason,
        route=route,
        local_addrs=local_addrs,
        hub=hub,
    )


def training_address(
    spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> tuple[str, str, str]:
    """Choose the address at which the ranks of `nodes` meet.

    Returns:
        The address, why it was chosen, and the address for routes: the same, or if it is a name
        the derived one, "" for none.

    Raises:
        NotReady: There is none.
    """
    master = nodes[0]
    if len(nodes) == 1 and (spec.max_nodes or 1) == 1:  # no other may join
        return LOOPBACK, "one node", LOOPBACK
    if master.addr:
        route = master.addr if _parse(master.addr) else _derive_address(nodes, facts)[0]
        return master.addr, f"cluster.nodes.{master.name}.addr", route
    if are_local(nodes):
        return LOOPBACK, "every node is this machine", LOOPBACK
    addr, reason = _derive_address(nodes, facts)
    if not addr:
        known = _usable(facts[master.name])
        own = [f"{owned.ip} ({each.name})" for each, owned in known if not each.loopback]
        subject = f"cluster.nodes.{master.name}.addr"
        message = f"no address of {master.name}, the master, is on a subnet that every node shares"
        hint = "set it to the address at which the other nodes reach it"
        hint += f", one of {', '.join(own)}" if own else ""
        raise NotReady([Problem(subject, message, hint)])
    return addr, reason, addr


def _derive_address(nodes: Sequence[Node], facts: Mapping[str, Facts]) -> tuple[str, str]:
    master = facts[nodes[0].name]
    known = _usable(master)
    for candidate, reason in (
        (nodes[0].host, "the master's host"),
        (master.ssh_address, "the address that SSH reached"),
    ):
        address = _parse(candidate)
        if any(owned.ip == address for _, owned in known):
            return str(address), reason
    peers = [_usable(facts[node.name]) for node in nodes[1:]]
    for interface, mine in known:
        if interface.up and not interface.loopback and all(_is_on(mine, peer) for peer in peers):
            return str(mine.ip), "the subnet all nodes share"
    return "", ""


def _is_on(mine: OwnAddress, peer: Sequence[Owned]) -> bool:
    """Return whether a peer has an address of its own on a subnet; docker0's does not count."""
    return any(
        each.up and not each.loopback and theirs.network == mine.network and theirs.ip != mine.ip
        for each, theirs in peer
    )


def peer_endpoints(
    spec: Spec, nodes: Sequence[Node], facts: Mapping[str, Facts]
) -> dict[str, Endpoint]:
    """Return the endpoint of each node, as gloo and NCCL publish it; {} if the ranks cannot meet.

    It is an address of the interface towards the master: the one on the master's subnet, else the
    first one of the same family.
    """
    try:
        _, _, route = training_address(spec, nodes, facts)
    except NotReady:
        return {}
    return {node.name: _endpoint(spec, node, facts[node.name], route) for node in nodes}


def _endpoint(spec: Spec, node: Node, facts: Facts, route: str) -> Endpoint:
    interface = node.interface or route_interface(facts, route)
    env = {**facts.preset_env, **spec.env_of(node)}
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):  # NCCL's has the last word
        chosen = env.get(variable, "").lstrip("=")
        if any(chosen == each.name for each in facts.interfaces):
            interface = chosen
    target = _parse(route)
    usable = [
        owned
        for each, owned in _usable(facts)
        if each.name == interface and (target is None or owned.version == target.version)
    ]
    if not usable:
        return Endpoint(interface)
    best = min(
        usable,
        key=lambda owned: (owned.ip != target, target is None or target not in owned.network),
    )
    return Endpoint(interface, str(best.ip), str(best.network))


def duplicate_addresses(spec: Spec, facts: Mapping[str, Facts]) -> list[Problem]:
    """Return a problem per node that has another's address: bridges such as docker0 are alike."""
    problems = []
    first: dict[str, str] = {}
    for name, endpoint in peer_endpoints(spec, spec.nodes, facts).items():
        other = first.setdefault(endpoint.address, name)
        pair = (facts[name], facts[other])
        # Two nodes may be one machine, whose other interfaces may come and go.
        named = [[i for i in each.interfaces if i.name == endpoint.interface] for each in pair]
        is_same_machine = pair[0].hostname == pair[1].hostname and named[0] == named[1]
        if not endpoint.address or is_same_machine:
            continue
        message = f"{endpoint.address} ({endpoint.interface}) is the address of {other}, too"
        hint = (
            f"set cluster.nodes.{other}.addr to one that it alone has, or set "
            f"cluster.nodes.{name}.interface"
        )
        problems.append(Problem(name, message, hint))
    return problems


def interface_problems(node: Node, facts: Facts) -> Iterator[Problem]:
    """Yield a problem per configured interface that the host lacks, or that has no address."""
    known = {interface.name: interface.addresses for interface in facts.interfaces}
    usable = dict.fromkeys(interface.name for interface, _ in _usable(facts))
    hint = f"legal here: {', '.join(usable) or 'null'}"
    for name in (node.interface or "").split(",") if known else ():
        if name and not known.get(name):
            why = f"{name} has no address" if name in known else f"there is no interface {name}"
            yield Problem(node.name, f"cluster.nodes.{node.name}.interface: {why}", hint)


def route_interface(facts: Facts, address: str) -> str:
    """Return the interface that `address` is reached through, "" when no route says so.

    A host's route to its own address would say `lo`; there it is the interface that owns it.
    Otherwise the longest matching prefix wins, then the lowest metric, as in the kernel.
    """
    target = _parse(address)
    if target is None:
        return ""
    for interface, owned in _owned(facts):
        if owned.ip == target:
            return interface.name
    best: tuple[int, int, str] = (-1, 0, "")
    for route in facts.routes:
        network = ipaddress.ip_network(route.dest, strict=False)
        if network.version == target.version and target in network:
            best = max(best, (network.prefixlen, -route.metric, route.interface))
    return best[2]


def _owned(facts: Facts) -> list[Owned]:
    own = [(interface, text) for interface in facts.interfaces for text in interface.addresses]
    return [(interface, ipaddress.ip_interface(text)) for interface, text in own]


def _usable(facts: Facts) -> list[Owned]:
    """Return the addresses at which others may reach a host."""
    return [
        (interface, owned)
        for interface, owned in _owned(facts)
        if not (owned.ip.is_loopback or owned.ip.is_link_local or owned.ip.is_unspecified)
    ]


def _parse(text: str) -> Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None
