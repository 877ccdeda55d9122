"""Plan: what each host does in an attempt, and the decisions behind that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Tuple

from runner.core.model.order import Order


@dataclass(frozen=True)
class NodePlan:
    """One node's part of the plan.

    Attributes:
        node: The node's name in the YAML.
        host: Its SSH name or address.
        command: The plain command, as a person would type it on the host.
        env: The environment of that command, as far as it differs from the host's.
        cwd: Its working directory.
        ranks: The global ranks on this node, by local rank; () if torch assigns them.
        gpus: The devices used, () for none.
        interface: The interface of the training traffic, "" when unknown.
        order: The order for its supervisor.
        nproc: The number of ranks it starts.
    """

    node: str
    host: str
    command: Tuple[str, ...]
    env: Dict[str, str]
    cwd: str
    ranks: Tuple[int, ...]
    gpus: Tuple[int, ...]
    interface: str
    order: Order
    nproc: int


@dataclass(frozen=True)
class Plan:
    """One attempt of a run on all its nodes, large on purpose: it is the record of the attempt.

    Attributes:
        run_id: The run.
        cluster: The cluster's name.
        task: The task's name.
        attempt: The run's n-th start, from 0.
        nodes: The part of each node, in rank order.
        world_size: The number of ranks.
        backend: "nccl" or "gloo".
        master_addr: The address at which the ranks meet.
        master_port: The port there; 0 if none was reserved.
        rendezvous_reason: The reason for that address, or for `etcd_endpoint`.
        etcd_endpoint: HOST:PORT of etcd, "" for none.
        setup: Shell lines that run on every node first.
        secrets: Names of secret variables, never their values.
        release: The code that runs, "" if it is the hosts' own; see `CodeRef` for the next four.
        outputs: Paths or patterns of what the task leaves to be downloaded.
        notes: Decisions that the user should read.
        min_nodes: The fewest nodes of an elastic run, 0 for any other.
        max_nodes: The most nodes of an elastic run.
    """

    run_id: str
    cluster: str
    task: str
    attempt: int
    nodes: Tuple[NodePlan, ...]
    world_size: int
    backend: str
    master_addr: str
    master_port: int
    rendezvous_reason: str = ""
    etcd_endpoint: str = ""
    setup: Tuple[str, ...] = ()
    secrets: Tuple[str, ...] = ()
    release: str = ""
    commit: str = ""
    subdirectory: str = ""
    script: str = ""
    tasks_hash: str = ""
    outputs: Tuple[str, ...] = ()
    notes: Tuple[str, ...] = ()
    min_nodes: int = 0
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
