"""Handover of a run to its hosts: what they need to relaunch it, and the next attempt they plan."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Collection, Dict, NamedTuple, Optional, Tuple

from runner.core.model.order import Order
from runner.core.model.plan import Plan
from runner.core.model.release import CodeRef
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.outcome.stacks import is_stall
from runner.core.protocol.events import StopCause
from runner.core.spec import Spec


@dataclass(frozen=True)
class Voter:
    """A node that takes part in the election of an attempt."""

    node: str
    addr: str = ""  # on the training network, numeric
    port: int = 0  # of its election; 0 if it is the only voter


@dataclass(frozen=True)
class AttemptOrders:
    """The plan of an attempt, with the supervisors that may relaunch the run after it."""

    plan: Plan  # with the voters in its orders
    standby: Dict[str, Order] = field(default_factory=dict)  # the orders of the spares
    voters: Tuple[Voter, ...] = ()  # () where the hosts cannot decide without a controller

    @property
    def orders(self) -> Dict[str, Order]:
        """The order of every supervisor, by node."""
        planned = {node_plan.node: node_plan.order for node_plan in self.plan.nodes}
        return {**planned, **self.standby}


@dataclass(frozen=True)
class RelaunchContext:
    """What every host must know to relaunch a run without a controller."""

    spec: Spec  # of this attempt, without its secrets
    secrets: Tuple[str, ...]  # their names
    code: CodeRef
    info: RunInfo
    config_yaml: str
    voters: Tuple[Voter, ...]  # in the order in which they lead: by rank, then the spares

    def has_quorum(self, present: Collection[str]) -> bool:
        """Return whether more than half of the voters are present: no two leaders can have that."""
        return 2 * len({voter.node for voter in self.voters} & {*present}) > len(self.voters)


class AttemptEnd(NamedTuple):
    """How an attempt ended on one host."""

    reason: str  # why it was stopped, "" if it was not
    cause: StopCause
    failed_at: Optional[float]
    """When something of it failed here that no other host is to blame for, monotonic; or None."""
    lost_nodes: Collection[str]
    joined_hub: bool  # whether this host was in touch with the hub

    @property
    def is_stall(self) -> bool:
        """Whether it ended because no rank made progress."""
        return is_stall(self.reason)


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
