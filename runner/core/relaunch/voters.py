"""Voters of an attempt: the supervisors that may relaunch the run without a controller."""

from __future__ import annotations

from dataclasses import replace
from typing import List, Mapping, Tuple

from runner.core.model.facts import Facts
from runner.core.model.order import Hub, Order
from runner.core.model.plan import Plan
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.protocol.paths import RunPaths
from runner.core.relaunch.handover import AttemptOrders, Voter


def assign_voters(
    spec: Spec, plan: Plan, facts: Mapping[str, Facts], relaunches_left: int
) -> AttemptOrders:
    """Have the supervisors of a planned attempt vote on a relaunch.

    Args:
        spec: The spec of the attempt.
        plan: The attempt.
        facts: The facts of every node, and of the spares that can stand by.
        relaunches_left: How many relaunches may follow the attempt.
    """
    if not relaunches_left:
        return AttemptOrders(plan, {}, ())
    spares = [node for node in spec.spares if node.name in facts]
    voters = _reachable_voters(spec, [*spec.nodes, *spares], facts)
    spares = spares if voters else []
    hub = plan.nodes[0].order.hub
    if hub is None and spares:
        port = facts[spec.master.name].hub_port
        hub = Hub(spec.master.name, voters[0].addr, port, 0, spec.lost_s) if port else None
    if hub is None and len(voters) > 1:  # they could not tell each other to stop
        voters, spares = (), []
    if hub is not None:
        hub = replace(hub, spares=tuple(node.name for node in spares))
    order_changes = {"hub": hub, "relaunches_left": relaunches_left, "voter_count": len(voters)}
    node_plans = tuple(
        replace(node_plan, order=replace(node_plan.order, **order_changes))  # type: ignore[arg-type]
        for node_plan in plan.nodes
    )
    template = node_plans[0].order
    standby = {node.name: _standby_order(template, node, facts[node.name]) for node in spares}
    return AttemptOrders(replace(plan, nodes=node_plans), standby, voters)


def _reachable_voters(
    spec: Spec, nodes: List[Node], facts: Mapping[str, Facts]
) -> Tuple[Voter, ...]:
    """Return all nodes, or none: if one has no port or address, no majority is certain."""
    if len(nodes) == 1:
        return (Voter(nodes[0].name),)
    endpoints = addresses.peer_endpoints(spec, nodes, facts)
    voters = []
    for node in nodes:
        numeric_addr = node.addr if node.addr and addresses.is_numeric(node.addr) else ""
        addr = numeric_addr or (endpoints[node.name].address if node.name in endpoints else "")
        port = facts[node.name].vote_port
        if not addr or not port:
            return ()
        voters.append(Voter(node.name, addr, port))
    return tuple(voters)


def _standby_order(template: Order, node: Node, facts: Facts) -> Order:
    run_paths = RunPaths(facts.workdir, template.run_id, node.name)
    return replace(
        template,
        node=node.name,
        workdir=facts.workdir,
        argv=(),
        env={},
        cwd=run_paths.work,
        ranks=(),
        shim=run_paths.shim,
        reserve_port=0,
        stall_s=0.0,
        stop_on_stall=False,
        metrics=(),
    )
