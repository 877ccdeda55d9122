"""Plan: the orders of all hosts in an attempt, the decisions behind them, and the next attempt.

Without its launch a run's next attempt is not planned: the numbers in the orders change. A launch
that is there plans anew, with fresh facts (`core/outcome/losses.py`).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Collection, Dict, Mapping, Sequence, Tuple, Union

from runner.core.wire.codec import abbreviate, parsed_by
from runner.core.wire.events import COUNT
from runner.core.wire.facts import PORT
from runner.core.wire.order import Order
from runner.core.wire.paths import ATTEMPT, NODE_NAME, RUN_ID, RunPaths
from runner.core.wire.run_info import PastAttempt, RunInfo
from runner.core.wire.timing import MAX_BACKOFF_S

_REFUSED = " '\"`;&<>|(){}"


def _parse_user(text: str, refused: str = _REFUSED) -> None:
    """Raise ValueError for what OpenSSH's client refuses: it may come to stand in a command."""
    if text.startswith("-") or not text.isprintable() or {*text} & {*refused}:
        raise ValueError(f"{abbreviate(text)} is no host or user")


def _parse_host(text: str) -> None:
    """Raise ValueError likewise; the name of a user may have that of a domain before it."""
    _parse_user(text, _REFUSED + "$\\")


HOST = parsed_by(_parse_host)
USER = parsed_by(_parse_user)


@dataclass(frozen=True)
class NodePlan:
    node: str = field(metadata=NODE_NAME)
    host: str = field(metadata=HOST)  # its SSH name or address
    command: Tuple[str, ...]  # plain, as a person would type it on the host
    env: Dict[str, str]  # of that command, as far as it differs from the host's
    ranks: Tuple[int, ...]  # global ones, by local rank; () if torch assigns them
    gpus: Tuple[int, ...]  # the devices used
    interface: str  # of the training traffic, "" when unknown
    order: Order  # for its supervisor
    user: str = field(default="", metadata=USER)  # "" and 0: by the ssh configuration
    port: int = field(default=0, metadata=PORT)
    arg_count: int = field(default=0, metadata=COUNT)  # words at the end of `command` for the task
    setup: Tuple[str, ...] = ()  # shell lines that run there first

    @property
    def cwd(self) -> str:
        return self.order.cwd

    @property
    def nproc(self) -> int:
        return self.order.nproc


@dataclass(frozen=True)
class Plan:
    """One attempt of a run on all its nodes, large on purpose: it is the record of the attempt."""

    run_id: str = field(metadata=RUN_ID)
    cluster: str
    task: str
    attempt: int = field(metadata=ATTEMPT)  # the run's n-th start, from 0
    nodes: Tuple[NodePlan, ...]  # in rank order
    world_size: int
    backend: str  # such as "nccl"
    master_addr: str  # where the ranks meet
    master_port: int  # 0 if none was reserved
    rendezvous_reason: str = ""  # for that address, or for `etcd_endpoint`
    etcd_endpoint: str = ""  # HOST:PORT, "" for none
    secrets: Tuple[str, ...] = ()  # names of secret variables, never their values
    release: str = ""  # "" if the code is the hosts' own; see `CodeRef` for the next six
    commit: str = ""
    subdirectory: str = ""
    script: str = ""
    tasks_hash: str = ""
    python_path: Tuple[str, ...] = ()
    keep_place: str = ""
    image: str = ""  # that ranks run in, "" without containers
    outputs: Tuple[str, ...] = ()  # paths or patterns of what the task leaves to be downloaded
    notes: Tuple[str, ...] = ()  # decisions that the user should read
    min_nodes: int = 0  # of an elastic run, 0 for any other
    max_nodes: int = 0
    spares: Tuple[NodePlan, ...] = ()  # nodes that stand by for later attempts

    @functools.cached_property
    def torch_assigns_ranks(self) -> bool:
        return not all(node_plan.ranks for node_plan in self.nodes)

    @functools.cached_property
    def restarts_ranks(self) -> bool:
        return any(node_plan.order.restarts_ranks for node_plan in self.nodes)

    @property
    def deciding_node(self) -> str:
        """The node whose program's success is that of the run, "" where each has to succeed."""
        return next((part.node for part in self.nodes if part.order.decides), "")

    @property
    def progress_pattern(self) -> str:
        return self.nodes[0].order.progress_pattern

    @property
    def node_of_rank(self) -> Dict[int, str]:
        """The node of each rank; {} if torch assigns them."""
        return {rank: node_plan.node for node_plan in self.nodes for rank in node_plan.ranks}

    @property
    def work_folders(self) -> Dict[str, str]:
        """Where each node has its copy of the code; {} if that is the hosts' own."""
        if not self.release:
            return {}
        return {
            share.node: RunPaths(share.order.workdir, self.run_id, share.node).work
            for share in self.nodes
        }

    @property
    def launcher(self) -> str:
        """What starts the ranks of each node, as messages name it."""
        return self.nodes[0].order.launcher or "the program"

    def node(self, name: str) -> NodePlan:
        return next(node_plan for node_plan in self.nodes if node_plan.node == name)


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
            hub = replace(hub, spares=tuple(spares))
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
        task=plan.task,
        launched_by=launched_by,
        launched_at=launched_at,
        nnodes=plan.max_nodes or len(plan.nodes),
        min_nodes=plan.min_nodes,
        gpus={share.node: len(share.gpus) for share in plan.nodes if share.gpus},
        attempt=plan.attempt,
        past_attempts=past_attempts,
        standby_nodes=first.hub.spares if first.hub else (),
        relaunches_left=first.relaunches_left,
    )


@dataclass(frozen=True)
class CodeRef:
    tasks_hash: str = ""  # of the shipped tasks; "" for a task of the user's
    release: str = ""  # that ranks run in; "" if they run in `project`
    subdirectory: str = ""  # the user's working directory within the release
    script: str = ""  # `task.script` relative to that; "" if it is used as it is
    commit: str = ""  # of git, with "+" if files differ from it
    python_path: Tuple[str, ...] = ()  # what Python sees first, relative to where ranks run
    keep_place: str = ""  # PROJECT/TASK, by which hosts have the folders of `task.keep`
