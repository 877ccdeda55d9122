"""Plan: the orders of all hosts in an attempt, and the decisions behind them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.codec import abbreviate, bounded, parsed_by
from runner.core.model.container import Container
from runner.core.model.facts import MAX_PORT, PORT
from runner.core.protocol.events import COUNT
from runner.core.protocol.paths import ATTEMPT, NODE_NAME, RANK, RUN_ID, RunPaths

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

SPAWNER = "srun"
"""The launcher in messages where our spawner starts ranks as srun starts its tasks."""


@dataclass(frozen=True)
class Hub:
    """The hub of an attempt: supervisors connect to it, so that the failure of one ends all."""

    node: str  # whose supervisor listens: the master
    addr: str  # on the training network
    port: int
    member_count: int = 0  # the number of other nodes
    lost_s: float = 15.0  # of silence, after which a node is declared lost
    min_nodes: int = 0  # with which the attempt goes on; 0 for all of them
    required: bool = True  # it cannot go on without `node`, which has the ranks' store
    spares: Tuple[str, ...] = ()  # stand by: no member waits for them, and their loss ends nothing
    required_members: Tuple[str, ...] = ()  # lost if they do not join, without a controller


@dataclass(frozen=True)
class DebugRank:
    """A rank that debugpy starts, and the port of its node's loopback where a client is awaited."""

    rank: int = field(metadata=RANK)
    port: int = field(default=5678, metadata=bounded(1, MAX_PORT))


@dataclass(frozen=True)
class Notify:
    """Where a run is told about, and what is told of it that a supervisor does not know."""

    targets: Tuple[str, ...]  # commands
    cluster: str
    task: str
    nodes: Tuple[str, ...]  # in rank order
    secrets: Tuple[str, ...] = ()  # names of variables whose values are not told
    program: str = "runner"  # what starts this program where the run was launched


@dataclass(frozen=True)
class Order:
    """A host's part of the plan, large on purpose: all that its supervisor is to know."""

    run_id: str = field(metadata=RUN_ID)
    node: str = field(metadata=NODE_NAME)
    attempt: int = field(metadata=ATTEMPT)  # the run's n-th start, from 0
    workdir: str  # of runs on this host, absolute
    argv: Tuple[str, ...]  # the launcher process, ready for exec; () for a spare
    env: Dict[str, str]  # overrides the host's own (after `setup`)
    cwd: str  # created if it is in the run folder
    ranks: Tuple[int, ...]  # global ones, by local rank; () if torch assigns them
    release: str = ""  # copied into the run's `work` first; "" for none
    reserve_port: int = 0  # until the program listens on it; 0 for none
    grace_s: float = 15.0  # between TERM and KILL
    disconnect_s: float = 0.0  # without a controller, before the run is stopped; 0: never
    detached: bool = False  # whether the hosts decide about it from its start
    hub: Optional[Hub] = None  # None if there is no other node
    container: Optional[Container] = None  # in which `argv` runs
    stall_s: float = 0.0  # without progress on any rank, before a report; 0 for never
    stop_on_stall: bool = False  # whether a stalled attempt is stopped
    metrics: Tuple[str, ...] = ()  # files below `cwd` that grow; if there are any, only they count
    progress_pattern: str = ""  # of the program's own lines
    sample_s: float = 0.0  # between two samples of the host's load; 0 for never
    path_folder: str = ""  # put first on the PATH of the program, "" for none
    launcher: str = "torchrun"  # starts the ranks, forwards TERM; "" if `argv` is the one rank
    nproc: int = 0  # ranks that it starts here
    restarts_ranks: bool = False  # whether the program restarts failed ranks itself
    rejoin_count: int = 0  # how often this node was lost in this attempt and rejoined it
    relaunches_left: int = 0  # after this attempt
    decides: bool = False  # whether its program's success is that of the run
    voter_count: int = 0  # supervisors that decide where no launch does; 0 if they cannot
    notify: Optional[Notify] = None  # for the first node, where someone is to be told

    @property
    def spawns_ranks(self) -> bool:
        """Whether our spawner starts the ranks."""
        return self.launcher == SPAWNER

    @property
    def is_standby(self) -> bool:
        """Whether it is that of a spare, which starts nothing."""
        return not self.argv


@dataclass(frozen=True)
class NodePlan:
    """One node's part of the plan."""

    node: str = field(metadata=NODE_NAME)
    host: str = field(metadata=HOST)  # its SSH name or address
    command: Tuple[str, ...]  # plain, as a person would type it on the host
    env: Dict[str, str]  # of that command, as far as it differs from the host's
    cwd: str
    ranks: Tuple[int, ...]  # global ones, by local rank; () if torch assigns them
    gpus: Tuple[int, ...]  # the devices used
    interface: str  # of the training traffic, "" when unknown
    order: Order  # for its supervisor
    nproc: int
    user: str = field(default="", metadata=USER)  # "" and 0: by the ssh configuration
    port: int = field(default=0, metadata=PORT)
    arg_count: int = field(default=0, metadata=COUNT)  # words at the end of `command` for the task
    setup: Tuple[str, ...] = ()  # shell lines that run there first


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
    release: str = ""  # "" if the code is the hosts' own; see `CodeRef` for the next four
    commit: str = ""
    subdirectory: str = ""
    script: str = ""
    tasks_hash: str = ""
    image: str = ""  # that ranks run in, "" without containers
    outputs: Tuple[str, ...] = ()  # paths or patterns of what the task leaves to be downloaded
    notes: Tuple[str, ...] = ()  # decisions that the user should read
    min_nodes: int = 0  # of an elastic run, 0 for any other
    max_nodes: int = 0

    @functools.cached_property
    def torch_assigns_ranks(self) -> bool:
        """Whether torch decides which node has which ranks."""
        return not all(node_plan.ranks for node_plan in self.nodes)

    @functools.cached_property
    def restarts_ranks(self) -> bool:
        """Whether torch restarts failed ranks, and the attempt goes on."""
        return any(node_plan.order.restarts_ranks for node_plan in self.nodes)

    @property
    def deciding_node(self) -> str:
        """The node whose program's success is that of the run, "" where each has to succeed."""
        return next((part.node for part in self.nodes if part.order.decides), "")

    @property
    def progress_pattern(self) -> str:
        """That of the program's own progress lines, "" for none."""
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
        """Return the part of one node."""
        return next(node_plan for node_plan in self.nodes if node_plan.node == name)
