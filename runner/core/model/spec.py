"""Spec: the composed configuration as plain, validated data, and the launch request around it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Dict, FrozenSet, Iterable, Optional, Sequence, Tuple

from runner.core import shell
from runner.core.model.container import ContainerSpec
from runner.core.model.plan import DebugRank
from runner.core.model.release import CodeRef
from runner.core.model.slurm import SlurmSpec
from runner.core.protocol.paths import USUAL_WORKDIR

MASTER = "master"
"""The first node, as `task.decides` names it."""

SHIPPED_TASKS = ("runner.tasks.", "runner.examples.")
"""Modules below these names are sent with the run: hosts need no copy of our package."""

USUAL_PRELOAD = ("torch", "torch._dynamo")
"""What `task.preload: true` imports; the second is what an optimizer or DDP imports at first."""

MAX_BACKOFF_S = 300.0
"""The longest pause between two attempts."""


class Secret:
    """Text that prints as `***`; only the frame that takes it to a host calls `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text itself."""
        return self._text

    def __repr__(self) -> str:
        return "***"

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


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
    """Code that is pushed to the hosts before a run."""

    enabled: bool = False  # if not, the user's code is in `Spec.project` on the hosts
    max_mb: int = 200  # in units of 10**6 bytes
    keep: int = 3  # the number of older releases that stay on a host


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    name: str  # as in the YAML; also a folder name
    host: str  # the SSH name or address (an ssh_config alias is fine)
    transport: str = "ssh"  # or "local"
    addr: Optional[str] = None  # at which other nodes reach it, if not derived
    user: Optional[str] = None
    port: Optional[int] = None
    gpu_count: Optional[int] = None  # None for all
    gpu_ids: Tuple[int, ...] = ()  # empty unless chosen one by one
    nproc: Optional[int] = None  # ranks on this node; None for one per GPU
    env: Dict[str, Optional[str]] = field(default_factory=dict)  # None takes a name out
    interface: Optional[str] = None  # of the training traffic, if not derived
    in_job: bool = False  # of Slurm: `host` is the login node, where its agent is


def are_local(nodes: Iterable[Node]) -> bool:
    """Return whether every node is this machine, without SSH."""
    return all(node.transport == "local" and not node.in_job for node in nodes)


@dataclass(frozen=True)
class Rendezvous:
    """Rendezvous of the nodes of a run."""

    backend: str = "static"  # or "standalone", "c10d", "etcd", "etcd-v2"
    endpoint: str = ""  # HOST:PORT of etcd

    @property
    def uses_master_store(self) -> bool:
        """Whether the ranks meet at a store on the master."""
        return self.backend in ("static", "c10d")

    @property
    def uses_etcd(self) -> bool:
        """Whether the nodes meet at etcd."""
        return self.backend in ("etcd", "etcd-v2")

    @property
    def store_risk(self) -> str:
        """What whoever reaches the store of torch's agents could do, "" where there is none."""
        if self.backend == "static":
            return ""
        if self.backend == "etcd":
            return "change what the nodes agree on"
        return "run code on the nodes (torch unpickles what it finds there)"

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

    def delay_s(self, attempt: int) -> float:
        """Return how long to wait before an attempt, the first relaunch being 1."""
        return min(MAX_BACKOFF_S, self.backoff_s * 2.0 ** (attempt - 1))


@dataclass(frozen=True)
class Task:
    """A training program and its arguments."""

    name: str  # of its YAML file, or of the program
    kind: str  # "module", "script" or "command"
    target: str  # the module's dotted name, the script's path, or the program
    args: Tuple[str, ...] = ()  # as the program receives them, before torchrun's templates
    env: Dict[str, Optional[str]] = field(default_factory=dict)  # overrides the cluster's
    outputs: Tuple[str, ...] = ()  # paths or patterns in its working folder, to be downloaded
    entry: str = "torchrun"  # or "launch" (`torch.distributed.launch`), "plain" or "srun"
    decides: str = ""  # the node whose program's success is that of the run, or `MASTER`
    expands_args: bool = False  # whether `$RANK` and the like in `args` are replaced
    preload: Tuple[str, ...] = ()  # modules that one process of a node imports for its ranks

    @property
    def is_plain(self) -> bool:
        """Whether the supervisor starts the one process of each node itself."""
        return self.entry == "plain"

    @property
    def without_torchrun(self) -> bool:
        """Whether ranks are started without it or its predecessor."""
        return self.entry in ("plain", "srun")

    @property
    def shipped_file(self) -> str:
        """The file name of a shipped task ("resnet18.py"), or "" for a user's program."""
        if self.kind != "module":
            return ""
        for package in SHIPPED_TASKS:
            if self.target.startswith(package):
                return self.target[len(package) :].replace(".", "/") + ".py"
        return ""


@dataclass(frozen=True)
class Spec:
    """The configuration of one run, large on purpose: a field for each key of the YAML."""

    run_id: str  # `MMDD-HHMM-TASK-xxxx`, `[a-z0-9-]`: a file name, a label, a rendezvous id
    cluster: str
    nodes: Tuple[Node, ...]  # in rank order: the master first, then as in the YAML
    task: Task
    slurm: Optional[SlurmSpec] = None  # where it starts the supervisors; `nodes` is the login node
    master_port: PortRange = PortRange()  # of torch's store on the master
    backend: str = "auto"  # or what the ranks are told
    rendezvous: Rendezvous = Rendezvous()
    torchrun: Torchrun = field(default_factory=Torchrun)
    relaunch: Relaunch = Relaunch()
    min_nodes: Optional[int] = None  # of an elastic run; None for all of `nodes`
    max_nodes: Optional[int] = None  # None if that is all of `nodes`
    spares: Tuple[Node, ...] = ()  # may replace a failed node, in the order of the YAML
    ssh: Ssh = Ssh()
    python: str = "python3"  # the task's interpreter on the hosts
    host_python: str = "python3"  # the interpreter of our own host-side code
    setup: Tuple[str, ...] = ()  # shell lines that bash runs once per host before the task
    project: str = "."  # the folder of the code on the hosts
    workdir: str = USUAL_WORKDIR  # the folder of runs and releases on the hosts
    deploy: Deploy = Deploy()
    container: ContainerSpec = field(default_factory=ContainerSpec)
    pull_outputs: bool = True  # whether `Task.outputs` are downloaded at the end
    skip_checks: Tuple[str, ...] = ()
    env: Dict[str, Optional[str]] = field(default_factory=dict)  # of all ranks, with `pass_env`
    secrets: Dict[str, Secret] = field(default_factory=dict)  # never written to disk
    grace_s: float = 15.0  # between TERM and KILL
    lost_s: float = 15.0  # of silence, after which a host is declared lost
    disconnect_s: float = 0.0  # without a controller, before the run stops; 0 for never
    sample_s: float = 5.0  # between two samples of the load of hosts and GPUs; 0 for never
    stall_s: float = 300.0  # without progress on any rank, before a report; 0 for never
    stop_on_stall: bool = False  # stops the run (with `relaunch_on_stall`: the attempt)
    relaunch_on_stall: bool = False
    metrics: Tuple[str, ...] = ()  # paths or patterns of files that grow with each step
    progress_pattern: str = ""  # of the program's own progress lines; "" for none
    debug: Optional[DebugRank] = None  # the rank that waits for a debugger, if one does
    stacks: bool = True  # whether ranks are prepared to dump their Python stacks
    detach: bool = False  # whether the launch exits once every rank runs
    notify: Tuple[str, ...] = ()  # commands that are told of the end, as they are written
    program: str = "runner"  # what starts this program, as it was typed

    @property
    def pushes_code(self) -> bool:
        """Whether the ranks run in a release; shipped tasks need none."""
        return self.deploy.enabled and not self.task.shipped_file

    def env_of(self, node: Node) -> Dict[str, str]:
        """Return what the user sets for the ranks of a node: the task overrides the node."""
        env = {**self.env, **node.env, **self.task.env}
        return {name: value for name, value in env.items() if value is not None}

    def removed_env_of(self, node: Node) -> Tuple[str, ...]:
        """Return the names that the user takes out of the environment of a node's ranks."""
        env = {**self.env, **node.env, **self.task.env}
        return tuple(name for name, value in env.items() if value is None)

    def on_nodes(self, names: Sequence[str]) -> Spec:
        """Return the spec of a run on these nodes of its job, by rank, the last ones as spares.

        `nodes` has the login node, from which they differ in their names.
        """
        nodes = tuple(replace(self.nodes[0], name=name, in_job=True) for name in names)
        wanted = self.slurm.nnodes - self.slurm.spares if self.slurm else len(nodes)
        count = min(wanted, len(nodes))
        max_nodes = count if self.min_nodes else None
        return replace(self, nodes=nodes[:count], spares=nodes[count:], max_nodes=max_nodes)

    @property
    def is_single_node(self) -> bool:
        """Whether no other node ever takes part."""
        return (self.max_nodes or len(self.nodes)) == 1

    @property
    def may_shrink(self) -> bool:
        """Whether fewer nodes than take part would do."""
        max_nodes = self.max_nodes or len(self.nodes)
        return self.min_nodes is not None and self.min_nodes < max_nodes

    @property
    def elastic(self) -> bool:
        """Whether nodes may come and go, or torchrun restarts ranks, during an attempt."""
        may_change = self.may_shrink or self.torchrun.max_restarts > 0
        return may_change and self.rendezvous.backend not in ("static", "standalone")

    @property
    def deciding_node(self) -> str:
        """The node whose program's success is that of the run, "" where each has to succeed."""
        is_role = self.task.decides == MASTER and all(node.name != MASTER for node in self.nodes)
        return self.master.name if is_role else self.task.decides

    @property
    def master(self) -> Node:
        """The node of rank 0, where torch's store listens."""
        return self.nodes[0]


class DryRun(str, enum.Enum):
    """Whether to show the plan in place of a launch, and whether to contact hosts for it."""

    OFF = "false"
    ON = "true"
    OFFLINE = "offline"


@dataclass(frozen=True)
class RecordedCode:
    """The code of a past run that is to run again."""

    run_id: str
    code: CodeRef
    places: Tuple[Path, ...]  # folders on this machine where it may be kept


@dataclass(frozen=True)
class SweepPlace:
    """The place of a run in a sweep."""

    sweep: str  # its id
    number: int  # from 1
    count: int
    changes: Tuple[str, ...]  # the overrides that not all of its runs have


@dataclass(frozen=True)
class LaunchRequest:
    """One run, as the command line and the YAML ask for it; large on purpose, as those are."""

    spec: Spec
    dry_run: DryRun
    run_dir: Path  # the run's folder on this machine, absolute
    ui: str  # "auto", "plain" or "raw"
    console_ranks: Optional[FrozenSet[int]]  # whose output is shown; None for all
    config_yaml: str  # all of it, with interpolations unresolved
    notes: Tuple[str, ...] = ()  # about what was typed
    file_notes: Tuple[str, ...] = ()  # files that shadow others
    overrides: Tuple[str, ...] = ()  # of the command line
    contact_words: Tuple[str, ...] = ()  # those by which any verb reaches the same hosts
    config_dirs: Tuple[str, ...] = ()  # the folders of YAML that it named
    recorded_code: Optional[RecordedCode] = None  # to run with, if this is a past run again
    record_hosts: Tuple[str, ...] = ()  # whose record it repeats, if no launch here made that
    plan_as_json: bool = False  # whether a dry run prints the plan as JSON
    sweep: Optional[SweepPlace] = None  # if it is one of a sweep
    on_record: bool = False  # whether the record in `run_dir` says all of this by the run's id
    launched_at: float = 0.0  # since 1970; with the run's id it tells a run from all others
    launched_from: str = ""  # the folder
    names_program: bool = True  # else the task is the shipped default

    @property
    def selector(self) -> str:
        """The words, as shell text, by which any verb finds the same hosts; "" if it needs none."""
        if self.on_record:
            return ""
        folders = [word for folder in self.config_dirs for word in ("--config-dir", folder)]
        return shell.line([*self.contact_words, *folders])

    def run_flags(self, run_id: str) -> str:
        """Return the words, as shell text, by which any verb finds a run of these hosts."""
        return " ".join(filter(None, (f"--run {run_id}", self.selector)))
