"""What the user asked for: the composed configuration as plain, validated data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.secret import Secret

SHIPPED_TASKS = "runner.tasks."
"""Modules below this name travel with the run: hosts need no copy of our package."""


@dataclass(frozen=True)
class PortRule:
    """Which TCP ports may be used: `first` to `last`, both included; 0 to 0 is any free port."""

    first: int = 0
    last: int = 0

    @property
    def fixed(self) -> bool:
        """Whether there is only one port to choose from."""
        return self.first != 0 and self.first == self.last

    def __str__(self) -> str:
        if not self.first:
            return "auto"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Ssh:
    """How the hosts of a cluster are logged in to. Times in seconds.

    `None` leaves a choice to the user's ssh configuration.
    """

    user: Optional[str] = None
    port: Optional[int] = None
    key: Optional[str] = None
    config: str = "~/.ssh/config"
    jump: Tuple[str, ...] = ()
    known_hosts: str = "~/.ssh/known_hosts"
    host_keys: str = "strict"
    connect_timeout: float = 10.0


@dataclass(frozen=True)
class Deploy:
    """What is pushed to the hosts before a run.

    Attributes:
        on: Whether the user's code is pushed; else it is in `Spec.project` there.
        max_mb: More than that is refused, in units of 10**6 bytes.
        keep: How many older releases stay on a host.
    """

    on: bool = False
    max_mb: int = 200
    keep: int = 3


@dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes:
        name: Its name in the YAML; also a folder name.
        host: The SSH name or address (an ssh_config alias is fine).
        transport: "ssh" or "local".
        addr: The address other nodes use to reach it, if not derived.
        user: Login name, over `Ssh.user`.
        port: SSH port, over `Ssh.port`.
        gpu_count: How many GPUs to use; None for all that are there.
        gpu_ids: The devices to use; empty unless chosen one by one.
        nproc: Ranks on this node; None for one per GPU.
        env: Environment of the ranks on this node.
        interface: The interface for the training traffic, if not derived.
    """

    name: str
    host: str
    transport: str = "ssh"
    addr: Optional[str] = None
    user: Optional[str] = None
    port: Optional[int] = None
    gpu_count: Optional[int] = None
    gpu_ids: Tuple[int, ...] = ()
    nproc: Optional[int] = None
    env: Dict[str, str] = field(default_factory=dict)
    interface: Optional[str] = None


@dataclass(frozen=True)
class Task:
    """A training program and its arguments.

    Attributes:
        name: The name of its YAML file, or of the program.
        kind: "module", "script" or "command".
        target: The module's dotted name, the script's path, or the program.
        args: Its arguments as the program shall see them, before torchrun's templates.
        env: Environment of the ranks, over the cluster's.
        outputs: What it leaves in its working folder to be fetched: paths, or patterns of them.
    """

    name: str
    kind: str
    target: str
    args: Tuple[str, ...] = ()
    env: Dict[str, str] = field(default_factory=dict)
    outputs: Tuple[str, ...] = ()

    @property
    def shipped(self) -> str:
        """The file name of a task of ours ("resnet18.py"), or "" for a user's program."""
        if self.kind == "module" and self.target.startswith(SHIPPED_TASKS):
            return self.target[len(SHIPPED_TASKS) :].replace(".", "/") + ".py"
        return ""


@dataclass(frozen=True)
class Spec:
    """Everything one run was asked to be.

    Attributes:
        run_id: `MMDD-HHMM-TASK-xxxx`, `[a-z0-9-]`: a file name, a label, a rendezvous id.
        cluster: The cluster's name.
        nodes: The chosen nodes in rank order: the master first, then as in the YAML.
        master_port: The rule for torch's store on the master.
        backend: "auto", "nccl" or "gloo".
        task: The program.
        ssh: Log-in.
        python: The task's interpreter on the hosts.
        host_python: The interpreter of our own host-side code.
        setup: Shell lines run by bash once per host before anything else of the task.
        project: The folder of the code on the hosts.
        workdir: Where runs and releases are kept on the hosts.
        deploy: What is pushed there first.
        skip_checks: The checks that are left out.
        pull_outputs: Whether what the task leaves is fetched at the end.
        env: Environment of all ranks (`pass_env` included).
        secrets: Environment of the ranks that is never written anywhere.
        grace_s: Seconds between TERM and KILL.
        lost_s: Seconds of silence after which a host counts as lost.
        disconnect_s: Seconds without a controller after which supervisors stop the run; 0: never.
        stall_s: Seconds without progress of any rank after which that is said; 0 for never.
        stall_stops: Whether the run is stopped then.
        metrics: Files below the ranks' working folder that grow with each step: paths, or patterns.
        stacks: Whether ranks are prepared to tell their Python stacks.
        detach: Whether to leave once every rank runs; from then on none is needed.
    """

    run_id: str
    cluster: str
    nodes: Tuple[Node, ...]
    task: Task
    master_port: PortRule = PortRule()
    backend: str = "auto"
    ssh: Ssh = Ssh()
    python: str = "python3"
    host_python: str = "python3"
    setup: Tuple[str, ...] = ()
    project: str = "."
    workdir: str = "~/.runner"
    deploy: Deploy = Deploy()
    pull_outputs: bool = True
    skip_checks: Tuple[str, ...] = ()
    env: Dict[str, str] = field(default_factory=dict)
    secrets: Dict[str, Secret] = field(default_factory=dict)
    grace_s: float = 15.0
    lost_s: float = 15.0
    disconnect_s: float = 600.0
    stall_s: float = 300.0
    stall_stops: bool = False
    metrics: Tuple[str, ...] = ()
    stacks: bool = True
    detach: bool = False

    @property
    def pushes(self) -> bool:
        """Whether the ranks run in a release: our shipped tasks need none."""
        return self.deploy.on and not self.task.shipped

    def env_of(self, node: Node) -> Dict[str, str]:
        """What the user sets for the ranks of a node: the task's wins, then the node's."""
        return {**self.env, **node.env, **self.task.env}

    @property
    def master(self) -> Node:
        """The node of rank 0, where torch's store listens."""
        return self.nodes[0]
