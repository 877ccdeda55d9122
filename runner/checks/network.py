"""Addresses and interfaces of the training traffic, and the master's port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.context import CheckContext, most_common
from runner.core.errors import NotReady
from runner.core.model.endpoint import Endpoint
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.planning.addresses import peer_endpoints
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import problems_of


def network(context: CheckContext) -> Iterator[Finding]:
    """Report an error where the hosts that answered have no usable address or port."""
    nodes = context.ready_nodes
    if not nodes:
        return
    facts_by_node = {node.name: facts for node, facts in context.ready}
    try:
        plan = build_plan(replace(context.spec, nodes=nodes), facts_by_node)
    except NotReady as error:
        yield from (error for node in nodes for error in context.unmet("network", node))
        of_hosts = [
            p for node, facts in context.ready for p in problems_of(context.spec, node, facts)
        ]
        others = [problem for problem in error.problems if problem not in of_hosts]
        yield from map(Finding.from_problem, others)  # other checks report those of hosts
        return
    if len(nodes) == 1:
        yield Finding(Level.OK, nodes[0].name, "single node")
        return
    node_endpoints = peer_endpoints(context.spec, nodes, facts_by_node)
    for name, endpoint in node_endpoints.items():
        subnet = f" in {endpoint.subnet}" if endpoint.subnet else ""
        via = f" via {endpoint.interface}{subnet}" if endpoint.interface else ""
        yield Finding(
            Level.OK, name, f"meets at {plan.master_addr} ({plan.rendezvous_reason}){via}"
        )
    yield from _mtu_findings(node_endpoints, facts_by_node)


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
            message = (
                f"{endpoint.interface} has MTU {mtu}, most have {common}: large packets may be lost"
            )
            hint = f"there: ip link set dev {endpoint.interface} mtu {common}"
            yield Finding(Level.WARNING, name, message, hint)
