"""Next attempt of a run without its launch: its nodes, and the numbers that change in their orders.

Nothing is planned; a launch, which is there, plans anew with fresh facts (`losses`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Collection, Dict, Mapping, Sequence, Tuple, Union

from runner.core.model.order import Order
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt, RunInfo
from runner.core.protocol.timing import MAX_BACKOFF_S


def next_attempt(
    orders: Mapping[str, Order],
    lost: Collection[str],
    standing_by: Sequence[str],
    suspected: str = "",
) -> Union[Dict[str, Order], str]:
    """Return the orders of the next attempt, spares last; or why there is none.

    `orders` are those of this attempt in rank order, the hub's first, and those of its spares. The
    hub stays the first. The node that is `suspected` takes part if no spare replaces it.
    """
    working = [name for name, order in orders.items() if not order.is_standby]
    hub = working[0]
    for name in working:
        if orders[name].decides and name in lost:
            return f"{name} decides the end, and cannot be used"
    available = [name for name in working if name not in lost]
    available += [name for name in standing_by if name in orders and name not in lost]
    replaceable = suspected != hub and not (suspected in orders and orders[suspected].decides)
    # The sort is stable: spares come before the suspect.
    ranked = sorted(available, key=lambda name: replaceable and name == suspected)
    chosen = ranked[: len(working)]
    needed = orders[hub].min_nodes or len(working)
    if len(chosen) < needed:
        return f"{len(available)} of {len(orders)} nodes are left for {needed}"
    nodes = [name for name in available if name in chosen]
    spares = [name for name in available if name not in chosen]
    return renumbered(orders, nodes, spares)


def renumbered(
    orders: Mapping[str, Order], nodes: Sequence[str], spares: Sequence[str]
) -> Dict[str, Order]:
    """Return the orders of an attempt on `nodes`, in rank order, with `spares` that stand by.

    No host waits for a controller in it.
    """
    torch_assigns_ranks = orders[nodes[0]].first_rank is None
    first_rank = 0
    result: Dict[str, Order] = {}
    for name in (*nodes, *spares):
        order = orders[name]
        hub = order.hub
        notify = order.notify
        is_standby = name in spares
        if hub is not None:
            hub = replace(hub, member_count=len(nodes) - 1, spares=tuple(spares))
        if notify is not None:
            notify = replace(notify, nodes=tuple(nodes))
        result[name] = replace(
            order,
            attempt=order.attempt + 1,
            node_rank=0 if is_standby else nodes.index(name),
            nnodes=len(nodes),
            first_rank=None if torch_assigns_ranks or is_standby else first_rank,
            world_size=sum(orders[node].nproc for node in nodes),
            master_port=order.ports[0] if order.ports else order.master_port,
            ports=order.ports[1:],
            is_standby=is_standby,
            hub=hub,
            notify=notify,
            disconnect_s=0.0,
            detached=True,
            rejoin_count=0,
            relaunches_left=order.relaunches_left - 1,
            relaunch_pause_s=min(MAX_BACKOFF_S, 2 * order.relaunch_pause_s),
        )
        first_rank += 0 if is_standby else order.nproc
    return result


def plan_of(plan: Plan, orders: Mapping[str, Order]) -> Plan:
    """Return the plan of the attempt with these orders, after another one."""
    shares = {share.node: share for share in (*plan.nodes, *plan.spares)}
    updated = [
        replace(shares[name], order=order, ranks=order.ranks) for name, order in orders.items()
    ]
    first = updated[0].order
    return replace(
        plan,
        attempt=first.attempt,
        nodes=tuple(share for share in updated if not share.order.is_standby),
        spares=tuple(share for share in updated if share.order.is_standby),
        world_size=first.world_size,
        master_port=first.master_port,
    )


def run_info(
    plan: Plan, launched_by: str, launched_at: float, past_attempts: Tuple[PastAttempt, ...]
) -> RunInfo:
    """Return what every host has on record of the whole run."""
    first = plan.nodes[0].order
    return RunInfo(
        run_id=plan.run_id,
        cluster=plan.cluster,
        task=plan.task,
        launched_by=launched_by,
        launched_at=launched_at,
        nnodes=plan.max_nodes or len(plan.nodes),
        min_nodes=plan.min_nodes,
        world_size=plan.world_size,
        gpus={share.node: len(share.gpus) for share in plan.nodes if share.gpus},
        attempt=plan.attempt,
        past_attempts=past_attempts,
        standby_nodes=first.hub.spares if first.hub else (),
        relaunches_left=first.relaunches_left,
    )
