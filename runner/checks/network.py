"""Where the ranks would meet, and over which interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.context import CheckContext, most_common
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.planning.addresses import Endpoint, peer_endpoints
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import port_problems, problems_of


def network(context: CheckContext) -> Iterator[Finding]:
    """An error where no address or port can be had; of the hosts that answered."""
    nodes = context.ready_nodes
    if not nodes:
        return
    ports = [
        problem
        for node, facts in context.ready
        for problem in port_problems(context.spec, node, facts)
    ]
    facts_by_node = {node.name: facts for node, facts in context.ready}
    try:
        plan = build_plan(replace(context.spec, nodes=nodes), facts_by_node)
    except NotReady as error:
        others = [
            problem
            for node, facts in context.ready
            for problem in problems_of(context.spec, node, facts)
        ]
        own_problems = [
            problem for problem in error.problems if problem in ports or problem not in others
        ]  # theirs say the rest
        yield from map(Finding.from_problem, own_problems)
        return
    if len(nodes) == 1:
        yield Finding(Level.OK, nodes[0].name, "alone")
        return
    node_endpoints = peer_endpoints(context.spec, nodes, facts_by_node)
    for name, endpoint in node_endpoints.items():
        subnet = f" in {endpoint.subnet}" if endpoint.subnet else ""
        via = f" via {endpoint.interface}{subnet}" if endpoint.interface else ""
        yield Finding(
            Level.OK, name, f"meets at {plan.master_addr} ({plan.rendezvous_reason}){via}"
        )
    yield from _duplicate_addresses(node_endpoints, facts_by_node)
    yield from _mtu_findings(node_endpoints, facts_by_node)


def _duplicate_addresses(
    node_endpoints: Mapping[str, Endpoint], facts: Mapping[str, Facts]
) -> Iterator[Finding]:
    """Name machines with the address of another: bridges such as docker0 are alike everywhere."""
    first: dict[str, str] = {}
    for name, endpoint in node_endpoints.items():
        other = first.setdefault(endpoint.address, name)
        if not endpoint.address or _machine_identity(facts[name]) == _machine_identity(
            facts[other]
        ):
            continue
        message = f"{endpoint.address} ({endpoint.interface}) is the address of {other}, too"
        hint = (
            f"cluster.nodes.{other}.addr is to be one that it alone has; or set "
            f"cluster.nodes.{name}.interface"
        )
        yield Finding(Level.ERROR, name, message, hint)


def _machine_identity(facts: Facts) -> tuple[object, ...]:
    """Return what only one machine has: several nodes may be the same one."""
    return facts.hostname, facts.interfaces


def _mtu_findings(
    node_endpoints: Mapping[str, Endpoint], facts: Mapping[str, Facts]
) -> Iterator[Finding]:
    mtus = {
        name: str(interface.mtu)
        for name, endpoint in node_endpoints.items()
        for interface in facts[name].interfaces
        if interface.name == endpoint.interface and interface.mtu and not interface.loopback
    }
    common = most_common(mtus)
    for name, mtu in mtus.items():
        if mtu != common:
            endpoint = node_endpoints[name]
            message = f"{endpoint.interface} has MTU {mtu}, most have {common}: large packets may get lost"
            hint = (
                f"ip link set dev {endpoint.interface} mtu {common}, there, or the same everywhere"
            )
            yield Finding(Level.WARNING, name, message, hint)
