"""Plan: what each host does in an attempt, and the decisions behind that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

from runner.core.model.order import Order


@dataclass(frozen=True)
class NodePlan:
    """One node's part of the plan."""

    node: str
    host: str  # its SSH name or address
    command: Tuple[str, ...]  # plain, as a person would type it on the host
    env: Dict[str, str]  # of that command, as far as it differs from the host's
    cwd: str
    ranks: Tuple[int, ...]  # global ones, by local rank; () if torch assigns them
    gpus: Tuple[int, ...]  # the devices used
    interface: str  # of the training traffic, "" when unknown
    order: Order  # for its supervisor
    nproc: int


@dataclass(frozen=True)
class Plan:
    """One attempt of a run on all its nodes, large on purpose: it is the record of the attempt."""

    run_id: str
    cluster: str
    task: str
    attempt: int  # the run's n-th start, from 0
    nodes: Tuple[NodePlan, ...]  # in rank order
    world_size: int
    backend: str  # "nccl" or "gloo"
    master_addr: str  # where the ranks meet
    master_port: int  # 0 if none was reserved
    rendezvous_reason: str = ""  # for that address, or for `etcd_endpoint`
    etcd_endpoint: str = ""  # HOST:PORT, "" for none
    setup: Tuple[str, ...] = ()  # shell lines that run on every node first
    secrets: Tuple[str, ...] = ()  # names of secret variables, never their values
    release: str = ""  # "" if the code is the hosts' own; see `CodeRef` for the next four
    commit: str = ""
    subdirectory: str = ""
    script: str = ""
    tasks_hash: str = ""
    outputs: Tuple[str, ...] = ()  # paths or patterns of what the task leaves to be downloaded
    notes: Tuple[str, ...] = ()  # decisions that the user should read
    min_nodes: int = 0  # of an elastic run, 0 for any other
    max_nodes: int = 0

    @property
    def torch_assigns_ranks(self) -> bool:
        """Whether torch decides which node has which ranks."""
        return not all(node_plan.ranks for node_plan in self.nodes)

    @property
    def restarts_ranks(self) -> bool:
        """Whether torch restarts failed ranks, and the attempt goes on."""
        return any(node_plan.order.restarts_ranks for node_plan in self.nodes)

    @property
    def node_of_rank(self) -> Dict[int, str]:
        """The node of each rank; {} if torch assigns them."""
        return {rank: node_plan.node for node_plan in self.nodes for rank in node_plan.ranks}

    @property
    def launcher(self) -> str:
        """What starts the ranks of each node, as messages name it."""
        return self.nodes[0].order.launcher or "the program"

    def node(self, name: str) -> NodePlan:
        """Return the part of one node."""
        return next(node_plan for node_plan in self.nodes if node_plan.node == name)
