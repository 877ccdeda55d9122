"""Handover of a run to its hosts: what they need to relaunch it, and the next attempt they plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Dict, List, Mapping, NamedTuple, Optional, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.plan import Plan
from runner.core.model.release import CodeRef
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.model.spec import Spec
from runner.core.outcome.stacks import STALL_REASON
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import problems_of
from runner.core.protocol.events import StopCause
from runner.core.relaunch.policy import next_spec
from runner.core.relaunch.voters import AttemptOrders, Voter, assign_voters
from runner.core.secret import Secret


@dataclass(frozen=True)
class RelaunchContext:
    """What every host must know to relaunch a run without a controller.

    Attributes:
        spec: The spec of this attempt, without its secrets.
        secrets: The names of the secrets.
        code: The code that the run uses.
        info: What is on record of the whole run.
        config_yaml: The run's configuration, as YAML.
        voters: The nodes that decide, in the order in which they lead: by rank, then the spares.
    """

    spec: Spec
    secrets: Tuple[str, ...]
    code: CodeRef
    info: RunInfo
    config_yaml: str
    voters: Tuple[Voter, ...]


class AttemptEnd(NamedTuple):
    """How an attempt ended on one host.

    Attributes:
        reason: Why it was stopped, "" if it was not.
        cause: Who or what wanted that.
        failed_at: When something of it failed here that no other host is to blame for, monotonic;
            None if nothing did.
        lost_nodes: The nodes it lost.
        joined_hub: Whether this host was in touch with the hub.
        detach_agreed: Whether the hosts agree that the run goes on without a controller.
    """

    reason: str
    cause: StopCause
    failed_at: Optional[float]
    lost_nodes: Collection[str]
    joined_hub: bool
    detach_agreed: bool

    @property
    def is_stall(self) -> bool:
        """Whether it ended because no rank made progress: which host noticed that says nothing."""
        return self.reason.startswith(STALL_REASON)


@dataclass(frozen=True)
class NextAttempt:
    """The next attempt of a run: what every host needs for it, and for the one after it."""

    orders: AttemptOrders
    context: RelaunchContext


def relaunch_context(
    spec: Spec, code: CodeRef, info: RunInfo, config_yaml: str, voters: Tuple[Voter, ...]
) -> RelaunchContext:
    """Return the context of an attempt, without the values of the secrets."""
    secret_names = tuple(spec.secrets)
    return RelaunchContext(replace(spec, secrets={}), secret_names, code, info, config_yaml, voters)


def run_info(
    plan: Plan,
    launched_by: str,
    launched_at: float,
    past_attempts: Tuple[PastAttempt, ...],
    relaunches_left: int,
) -> RunInfo:
    """Return what every host has on record of the whole run."""
    hub = plan.nodes[0].order.hub
    return RunInfo(
        run_id=plan.run_id,
        cluster=plan.cluster,
        task=plan.task,
        launched_by=launched_by,
        launched_at=launched_at,
        nnodes=plan.max_nodes or len(plan.nodes),
        min_nodes=plan.min_nodes,
        world_size=plan.world_size,
        gpus={node_plan.node: len(node_plan.gpus) for node_plan in plan.nodes if node_plan.gpus},
        attempt=plan.attempt,
        past_attempts=past_attempts,
        standby_nodes=hub.spares if hub else (),
        relaunches_left=relaunches_left,
    )


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
