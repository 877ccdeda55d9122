"""Next attempt of a run, planned by a host from the handover and the facts of its nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Dict, List, Mapping

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt
from runner.core.model.spec import Secret, Spec
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import problems_of
from runner.core.relaunch.handover import NextAttempt, RelaunchContext, relaunch_context, run_info
from runner.core.relaunch.policy import next_spec
from runner.core.relaunch.voters import assign_voters


def plan_next_attempt(
    context: RelaunchContext,
    past_attempt: PastAttempt,
    relaunches_left: int,
    facts: Mapping[str, Facts],
    suspected: Collection[str] = (),
) -> NextAttempt:
    """Plan the next attempt of a run on the nodes that are left.

    Args:
        context: The attempt that failed.
        past_attempt: How it ended.
        relaunches_left: How many relaunches may follow the next attempt.
        facts: The facts of every node that can take part.
        suspected: Nodes on which the attempt failed: they take part only if there is no other.

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
            left, needed = len(all_names - excluded), len(last_spec.nodes)
            message = f"{left} of {len(all_names)} nodes are left for {needed}"
            raise NotReady([Problem("", message), *all_problems])
        node_problems = _problems_by_node(spec, facts)
        if not node_problems:
            break
        all_problems += [problem for problems in node_problems.values() for problem in problems]
        excluded |= node_problems.keys()
    plan = _without_controller(
        build_plan(spec, facts, code=context.code, attempt=past_attempt.attempt + 1)
    )
    orders = assign_voters(spec, plan, facts, relaunches_left)
    launch = (context.info.launched_by, context.info.launched_at)
    past_attempts = (*context.info.past_attempts, past_attempt)
    info = run_info(orders.plan, *launch, past_attempts, relaunches_left)
    next_context = relaunch_context(spec, context.code, info, context.config_yaml, orders.voters)
    return NextAttempt(orders, next_context)


def _without_controller(plan: Plan) -> Plan:
    """Have no host wait for a controller, and the hub notice members that do not start."""
    hub = plan.nodes[0].order.hub
    if hub is not None:
        hub = replace(hub, required_members=tuple(node_plan.node for node_plan in plan.nodes[1:]))
    node_plans = [
        replace(node_plan, order=replace(node_plan.order, hub=hub, disconnect_s=0.0))
        for node_plan in plan.nodes
    ]
    return replace(plan, nodes=tuple(node_plans))


def _problems_by_node(spec: Spec, facts: Mapping[str, Facts]) -> Dict[str, List[Problem]]:
    node_problems = {node.name: problems_of(spec, node, facts[node.name]) for node in spec.nodes}
    return {name: problems for name, problems in node_problems.items() if problems}
