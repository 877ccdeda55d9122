"""Spec: the composed configuration as plain, validated data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional, Tuple

from runner.core.secret import Secret

SHIPPED_TASKS = "runner.tasks."
"""Modules below this name are sent with the run: hosts need no copy of our package."""


@dataclass(frozen=True)
class PortRange:
    """TCP ports that may be used: `first` to `last`, inclusive; 0 to 0 is any free port."""

    first: int = 0
    last: int = 0

    @property
    def is_fixed(self) -> bool:
        """Whether there is only one port to choose from."""
        return self.first != 0 and self.first == self.last

    def __str__(self) -> str:
        if not self.first:
            return "auto"
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Ssh:
    """Log-in to the hosts of a cluster; None leaves a choice to the user's ssh configuration."""

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
    """Code that is pushed to the hosts before a run.

    Attributes:
        enabled: Whether the user's code is pushed; if not, it is in `Spec.project` on the hosts.
        max_mb: The largest size that is accepted, in units of 10**6 bytes.
        keep: The number of older releases that stay on a host.
    """

    enabled: bool = False
    max_mb: int = 200
    keep: int = 3


@dataclass(frozen=True)
class Node:
    """One machine of the cluster.

    Attributes:
        name: The name in the YAML; also a folder name.
        host: The SSH name or address (an ssh_config alias is fine).
        transport: "ssh" or "local".
        addr: The address at which other nodes reach it, if not derived.
        user: Login name, overriding `Ssh.user`.
        port: SSH port, overriding `Ssh.port`.
        gpu_count: The number of GPUs to use; None for all.
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
class Rendezvous:
    """Rendezvous of the nodes of a run.

    Attributes:
        backend: "static", "standalone", "c10d", "etcd" or "etcd-v2".
        endpoint: HOST:PORT of etcd, "" for none.
        serve: The node that runs etcd for the others, "" for none.
    """

    backend: str = "static"
    endpoint: str = ""
    serve: str = ""

    @property
    def uses_master_store(self) -> bool:
        """Whether the ranks meet at a store on the master."""
        return self.backend in ("static", "c10d")

    def reserves_port(self, node: str, master: str) -> bool:
        """Return whether `node` reserves a port: as the master, or for the etcd that it runs."""
        return node == self.serve if self.serve else self.uses_master_store and node == master

    @property
    def uses_etcd(self) -> bool:
        """Whether the nodes meet at etcd."""
        return self.backend in ("etcd", "etcd-v2")

    @property
    def torch_assigns_ranks(self) -> bool:
        """Whether torch decides which node has which ranks, again at every membership."""
        return self.backend != "static"


@dataclass(frozen=True)
class Torchrun:
    """torchrun's options by its own names, in seconds; None, "" and () leave the choice to it."""

    max_restarts: int = 0
    monitor_interval: Optional[float] = None
    rdzv_conf: Dict[str, str] = field(default_factory=dict)
    role: str = ""
    start_method: str = ""
    signals_to_handle: Tuple[str, ...] = ()
    numa_binding: str = ""
    shutdown_timeout: Optional[int] = None


@dataclass(frozen=True)
class Relaunch:
    """Number of relaunches of a failed run, and the pause before the first one in seconds."""

    max: int = 0
    backoff_s: float = 5.0


@dataclass(frozen=True)
class Task:
    """A training program and its arguments.

    Attributes:
        name: The name of its YAML file, or of the program.
        kind: "module", "script" or "command".
        target: The module's dotted name, the script's path, or the program.
        args: Its arguments as the program receives them, before torchrun's templates.
        env: Environment of the ranks, overriding the cluster's.
        outputs: Paths, or patterns of paths, in its working folder that are downloaded.
        entry: Its launcher: "torchrun", "launch" (`torch.distributed.launch`) or "plain".
    """

    name: str
    kind: str
    target: str
    args: Tuple[str, ...] = ()
    env: Dict[str, str] = field(default_factory=dict)
    outputs: Tuple[str, ...] = ()
    entry: str = "torchrun"

    @property
    def is_plain(self) -> bool:
        """Whether the supervisor starts the one process of each node itself."""
        return self.entry == "plain"

    @property
    def shipped_file(self) -> str:
        """The file name of a shipped task ("resnet18.py"), or "" for a user's program."""
        if self.kind == "module" and self.target.startswith(SHIPPED_TASKS):
            return self.target[len(SHIPPED_TASKS) :].replace(".", "/") + ".py"
        return ""


@dataclass(frozen=True)
class Spec:
    """The configuration of one run, large on purpose: a field for each key of the YAML.

    Attributes:
        run_id: `MMDD-HHMM-TASK-xxxx`, `[a-z0-9-]`: a file name, a label, a rendezvous id.
        cluster: The cluster's name.
        nodes: The chosen nodes in rank order: the master first, then as in the YAML.
        master_port: The rule for torch's store on the master.
        backend: "auto", "nccl" or "gloo".
        task: The program.
        rendezvous: The rendezvous of the nodes.
        torchrun: Options of torchrun.
        relaunch: The relaunch after an attempt failed.
        min_nodes: The fewest nodes of an elastic run; None for all of `nodes`.
        max_nodes: The most nodes that may take part; None if that is all of `nodes`.
        spares: Nodes that may replace a failed one, in the order of the YAML.
        ssh: The log-in to the hosts.
        python: The task's interpreter on the hosts.
        host_python: The interpreter of our own host-side code.
        setup: Shell lines that bash runs once per host before the task.
        project: The folder of the code on the hosts.
        workdir: The folder of runs and releases on the hosts.
        deploy: The code that is pushed first.
        skip_checks: Checks that are left out.
        pull_outputs: Whether `Task.outputs` are downloaded at the end.
        env: Environment of all ranks (`pass_env` included).
        secrets: Environment of the ranks that is never written to disk.
        grace_s: Seconds between TERM and KILL.
        lost_s: Seconds of silence after which a host is declared lost.
        disconnect_s: Seconds without a controller after which the run stops; 0 for never.
        stall_s: Seconds without progress on any rank after which that is reported; 0 for never.
        stop_on_stall: Whether a stalled run (with `relaunch_on_stall`: attempt) is stopped.
        relaunch_on_stall: Whether a stalled run is relaunched.
        metrics: Paths, or patterns, of files in the working folder that grow with each step.
        stacks: Whether ranks are prepared to dump their Python stacks.
        detach: Whether the launch exits once every rank runs.
    """

    run_id: str
    cluster: str
    nodes: Tuple[Node, ...]
    task: Task
    master_port: PortRange = PortRange()
    backend: str = "auto"
    rendezvous: Rendezvous = Rendezvous()
    torchrun: Torchrun = field(default_factory=Torchrun)
    relaunch: Relaunch = Relaunch()
    min_nodes: Optional[int] = None
    max_nodes: Optional[int] = None
    spares: Tuple[Node, ...] = ()
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
    stop_on_stall: bool = False
    relaunch_on_stall: bool = False
    metrics: Tuple[str, ...] = ()
    stacks: bool = True
    detach: bool = False

    @property
    def pushes_code(self) -> bool:
        """Whether the ranks run in a release; shipped tasks need none."""
        return self.deploy.enabled and not self.task.shipped_file

    def env_of(self, node: Node) -> Dict[str, str]:
        """Return what the user sets for the ranks of a node: the task overrides the node."""
        return {**self.env, **node.env, **self.task.env}

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go, or torchrun restarts ranks, during an attempt."""
        may_shrink = self.min_nodes is not None and self.min_nodes < (
            self.max_nodes or len(self.nodes)
        )
        standalone = self.rendezvous.backend == "standalone"
        return (
            self.rendezvous.torch_assigns_ranks
            and not standalone
            and (may_shrink or self.torchrun.max_restarts > 0)
        )

    @property
    def master(self) -> Node:
        """The node of rank 0, where torch's store listens."""
        return self.nodes[0]
