"""What the hosts of a run need to start it once more by themselves, and what they make of it."""

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
    """A run as it was asked for, and who may take it over.

    Attributes:
        spec: What this attempt was asked to be; its secrets are named below, and have no values.
        secrets: Their names.
        code: What travelled with the run.
        info: What is on record of the whole run.
        config_yaml: Its configuration, as YAML.
        voters: Those who decide, in the order in which they lead: by rank, then the spares.
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
    """Return what every host is to know, without the values of the secrets."""
    secret_names = tuple(spec.secrets)
    return RelaunchContext(replace(spec, secrets={}), secret_names, code, info, config_yaml, voters)


def run_info(
    plan: Plan,
    launched_by: str,
    launched_at: float,
    past_attempts: Tuple[PastAttempt, ...],
    relaunches_left: int,
) -> RunInfo:
    """Return what every host has on record of the whole run; it may start `relaunches_left` times more."""
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
    """Plan the next attempt of a run by what those say of themselves who are left.

    Args:
        context: What the last one was.
        past_attempt: How that ended.
        relaunches_left: How often the run may start once more after that.
        facts: Of every node that can take part.
        suspected: Nodes on which it failed: they do so where there is nobody else.

    Raises:
        NotReady: There are too few, or they cannot.
    """
    secrets = {name: Secret("") for name in context.secrets}
    last_spec = replace(context.spec, secrets=secrets)
    all_names = {node.name for node in (*last_spec.nodes, *last_spec.spares)}
    all_problems: List[Problem] = []
    excluded = all_names - facts.keys()
    while True:
        spec = next_spec(last_spec, excluded, suspected)
        if spec is None:
            message = f"{len(all_names - excluded)} of {len(all_names)} nodes are left for {len(last_spec.nodes)}"
            raise NotReady([Problem("", message), *all_problems])
        node_problems = _problems_by_node(spec, facts)
        if not node_problems:
            break
        all_problems += [problem for problems in node_problems.values() for problem in problems]
        excluded |= node_problems.keys()
    plan = _without_controller(
        build_plan(spec, facts, code=context.code, attempt=past_attempt.attempt + 1)
    )
    attempt_orders = assign_voters(spec, plan, facts, relaunches_left)
    info = run_info(
        attempt_orders.plan,
        context.info.launched_by,
        context.info.launched_at,
        (*context.info.past_attempts, past_attempt),
        relaunches_left,
    )
    return NextAttempt(
        attempt_orders,
        relaunch_context(spec, context.code, info, context.config_yaml, attempt_orders.voters),
    )


def _without_controller(plan: Plan) -> Plan:
    """Have nobody wait for a controller, and the hub notice who does not come to the start."""
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
