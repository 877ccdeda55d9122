"""What the hosts of a run need to start it once more by themselves, and what they make of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Collection, Dict, List, Mapping, NamedTuple, Tuple

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.order import Hub, Order
from runner.core.model.past import PastAttempt
from runner.core.model.release import CodeRef
from runner.core.model.run_info import RunInfo
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.planning.build_plan import Plan, build_plan
from runner.core.planning.readiness import problems_of
from runner.core.protocol.paths import RunPaths
from runner.core.relaunch.policy import next_spec
from runner.core.secret import Secret


@dataclass(frozen=True)
class Voter:
    """A node that takes part when the hosts decide by themselves how a run goes on.

    Attributes:
        node: Its name.
        addr: Its address on the training network, numeric.
        port: Its TCP port for that; 0 where it is alone.
    """

    node: str
    addr: str = ""
    port: int = 0


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


class AttemptOrders(NamedTuple):
    """The plan of an attempt, with all who take part in its end.

    Attributes:
        plan: With orders that say so.
        standby: The orders of the spares.
        voters: See `RelaunchContext`; () where the hosts cannot decide by themselves.
    """

    plan: Plan
    standby: Dict[str, Order]
    voters: Tuple[Voter, ...]

    @property
    def orders(self) -> Dict[str, Order]:
        """What every supervisor is told."""
        return {
            **{node_plan.node: node_plan.order for node_plan in self.plan.nodes},
            **self.standby,
        }


def assign_voters(
    spec: Spec, plan: Plan, facts: Mapping[str, Facts], relaunches_left: int
) -> AttemptOrders:
    """Have the supervisors of a planned attempt able to start the run once more.

    Spares of whom nothing is known do not stand by.

    Args:
        spec: What was asked.
        plan: The attempt.
        facts: Of every node, and of the spares that are to stand by.
        relaunches_left: How often the run may start once more.
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
    if hub is None and len(voters) > 1:  # they would not hear of each other's end
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
    """Return all of them, or none: where one has no port or address, no majority is sure."""
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


class NextAttempt(NamedTuple):
    """The next attempt: what everybody is told, and what they need for the one after it."""

    attempt_orders: AttemptOrders
    context: RelaunchContext


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


def has_quorum(voters: Collection[Voter], present: Collection[str]) -> bool:
    """Whether more than half of all are present, so that nobody else can be of the same mind."""
    return 2 * len({voter.node for voter in voters} & set(present)) > len(voters)
