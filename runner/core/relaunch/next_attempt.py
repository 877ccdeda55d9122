"""Next attempt of a run: its nodes, its plan, and the supervisors that may relaunch it in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, List, Mapping, Optional, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.order import Hub
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import is_numeric, peer_endpoints
from runner.core.planning.readiness import problems_of
from runner.core.relaunch.handover import (
    AttemptOrders,
    NextAttempt,
    RelaunchContext,
    Voter,
    relaunch_context,
    run_info,
)
from runner.core.spec import Node, Secret, Spec


def next_spec(spec: Spec, excluded: Collection[str], suspected: Collection[str]) -> Optional[Spec]:
    """Return the spec of the next attempt: as many nodes as before, in the order of the YAML.

    Nodes that are `excluded` (lost, or not usable) take no part. Those that are `suspected` (their
    ranks failed) take part if no spare replaces them. None if too few nodes are left, or not the
    one that decides.
    """
    available = [node for node in (*spec.nodes, *spec.spares) if node.name not in excluded]
    # The sort is stable: spares come before suspects.
    replaceable = {*suspected} - {spec.task.decides}
    ranked = sorted(available, key=lambda node: node.name in replaceable)
    chosen = {node.name for node in ranked[: len(spec.nodes)]}
    if len(chosen) < (spec.min_nodes or len(spec.nodes)) or spec.task.decides in {*excluded}:
        return None
    return replace(
        spec,
        nodes=tuple(node for node in available if node.name in chosen),
        spares=tuple(node for node in available if node.name not in chosen),
    )


def plan_next_attempt(
    context: RelaunchContext,
    past_attempt: PastAttempt,
    relaunches_left: int,
    facts: Mapping[str, Facts],
    suspected: Collection[str] = (),
) -> NextAttempt:
    """Plan, on a host, the next attempt of a run on the nodes that are left.

    `context` and `past_attempt` are those of the attempt that failed, `facts` those of every node
    that can take part; `relaunches_left` and `suspected` are as in `assign_voters`, `next_spec`.

    Raises:
        NotReady: Too few nodes are left, or they are not ready.
    """
    secrets = {name: Secret("") for name in context.secrets}
    last_spec = replace(context.spec, secrets=secrets)
    all_names = {node.name for node in (*last_spec.nodes, *last_spec.spares)}
    all_problems: List[Problem] = []
    excluded = all_names - facts.keys()
    while True:
        spec = next_spec(last_spec, excluded, suspected)
        if spec is None:
            left = len(all_names - excluded)
            message = f"{left} of {len(all_names)} nodes are left for {len(last_spec.nodes)}"
            raise NotReady([Problem("", message), *all_problems])
        found = {node.name: problems_of(spec, node, facts[node.name]) for node in spec.nodes}
        unready = {name for name, problems in found.items() if problems}
        if not unready:
            break
        all_problems += [problem for problems in found.values() for problem in problems]
        excluded |= unready
    past_attempts = (*context.info.past_attempts, past_attempt)
    return _hand_over(context, spec, facts, past_attempts, relaunches_left)


def _hand_over(
    context: RelaunchContext,
    spec: Spec,
    facts: Mapping[str, Facts],
    past_attempts: Tuple[PastAttempt, ...],
    relaunches_left: int,
) -> NextAttempt:
    """Plan an attempt that needs no controller, after those before it."""
    number = past_attempts[-1].attempt + 1 if past_attempts else 0
    plan = _without_controller(build_plan(spec, facts, code=context.code, attempt=number))
    orders = assign_voters(spec, plan, facts, relaunches_left)
    launch = (context.info.launched_by, context.info.launched_at)
    info = run_info(orders.plan, *launch, past_attempts, relaunches_left)
    next_context = relaunch_context(spec, context.code, info, context.config_yaml, orders.voters)
    return NextAttempt(orders, next_context)


def _without_controller(plan: Plan) -> Plan:
    """Have no host wait for a controller, and the hub notice members that do not start."""
    hub = plan.nodes[0].order.hub
    if hub is not None:
        hub = replace(hub, required_members=tuple(node_plan.node for node_plan in plan.nodes[1:]))
    changes = {"hub": hub, "disconnect_s": 0.0, "detached": True}
    node_plans = [
        replace(node_plan, order=replace(node_plan.order, **changes))  # type: ignore[arg-type]
        for node_plan in plan.nodes
    ]
    return replace(plan, nodes=tuple(node_plans))


def assign_voters(
    spec: Spec, plan: Plan, facts: Mapping[str, Facts], relaunches_left: int
) -> AttemptOrders:
    """Have the supervisors of a planned attempt vote on a relaunch, as long as any is left.

    `facts` are those of every node, and of the spares that can stand by.
    """
    if not relaunches_left:
        return AttemptOrders(plan)
    spares = [node for node in spec.spares if node.name in facts]
    voters = _reachable_voters(spec, [*spec.nodes, *spares], facts)
    spares = spares if voters else []
    hub = plan.nodes[0].order.hub
    if hub is None and spares:
        port = facts[spec.master.name].hub_port
        hub = Hub(spec.master.name, voters[0].addr, port, 0, spec.lost_s) if port else None
    if hub is None and len(voters) > 1:  # they could not tell each other to stop
        voters = ()
        spares = []
    if hub is not None:
        hub = replace(hub, spares=tuple(node.name for node in spares))
    order_changes = {"hub": hub, "relaunches_left": relaunches_left, "voter_count": len(voters)}
    node_plans = tuple(
        replace(node_plan, order=replace(node_plan.order, **order_changes))  # type: ignore[arg-type]
        for node_plan in plan.nodes
    )
    if not spares:
        plan = replace(plan, spares=())
    idle = {"container": None, "stall_s": 0.0, "stop_on_stall": False, "metrics": ()}
    standby = {
        order.node: replace(order, **order_changes, **idle)  # type: ignore[arg-type]
        for order in plan.spares
    }
    return AttemptOrders(replace(plan, nodes=node_plans), standby, voters)


def _reachable_voters(
    spec: Spec, nodes: List[Node], facts: Mapping[str, Facts]
) -> Tuple[Voter, ...]:
    """Return all nodes, or none: if one has no port or address, no majority is certain."""
    if len(nodes) == 1:
        return (Voter(nodes[0].name),)
    endpoints = peer_endpoints(spec, nodes, facts)
    voters = []
    for node in nodes:
        numeric_addr = node.addr if node.addr and is_numeric(node.addr) else ""
        addr = numeric_addr or (endpoints[node.name].address if node.name in endpoints else "")
        port = facts[node.name].vote_port
        if not addr or not port:
            return ()
        voters.append(Voter(node.name, addr, port))
    return tuple(voters)
