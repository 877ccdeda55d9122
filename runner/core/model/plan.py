"""Plan: the orders of all hosts in an attempt, and the decisions behind them."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Dict, Tuple

from runner.core.codec import abbreviate, parsed_by
from runner.core.model.facts import PORT
from runner.core.model.order import Order
from runner.core.protocol.events import COUNT
from runner.core.protocol.paths import ATTEMPT, NODE_NAME, RUN_ID, RunPaths

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
    """One node's part of the plan."""

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
        return next(node_plan for node_plan in self.nodes if node_plan.node == name)
