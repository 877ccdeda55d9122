"""Spec: every key of the configuration, with its help and its default, and what a run is told.

It is the schema of the YAML, and its values are what `config.resolve` made of them. A field with
`setting(...)` is a key of the YAML; any other is set by `config.resolve`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, Optional, Tuple, Union

from runner.core.model.plan import DebugRank
from runner.core.protocol.paths import USUAL_WORKDIR

MASTER = "master"
"""The first node, as `task.decides` names it."""

SHIPPED_TASKS = ("runner.tasks.", "runner.examples.")
"""Modules below these names are sent with the run: hosts need no copy of our package."""

USUAL_PRELOAD = ("torch", "torch._dynamo")
"""What `task.preload: true` imports; the second is what an optimizer or DDP imports at first."""

MAX_BACKOFF_S = 300.0
"""The longest pause between two attempts."""

GROUPS = ("cluster", "task", "rendezvous", "container")
"""The sections whose YAML is a file of its own, in a folder of that name."""

ENGINES = ("docker", "podman", "apptainer")
"""The engines of containers, each a module of `planning.container`."""

RENDEZVOUS = ("static", "standalone", "c10d", "etcd", "etcd-v2")


Option = Any
"""A `dataclasses.Field`, which takes no type argument in Python 3.8."""


def setting(
    help_text: str, kind: Union[str, Tuple[str, ...]], default: Any = None, written: Any = None
) -> Any:
    """Return the field of a key.

    Args:
        help_text: What it means, in one line.
        kind: The name of its legal values in `config.kinds`, or the words it may be.
        default: The default as a value of the Spec; a class makes it.
        written: The default as YAML has it, where that differs from the value.
    """
    metadata = {"help": help_text, "kind": kind, "written": written}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def section_of(option: Option) -> Optional[type]:
    """Return the class of the keys below a key, None for a key with a value."""
    factory: Any = option.default_factory
    is_section = isinstance(factory, type) and dataclasses.is_dataclass(factory)
    return factory if is_section else None


def keys_of(section: type) -> Dict[str, Option]:
    """Return the keys of a section by their names."""
    fields = dataclasses.fields(section)
    return {option.name: option for option in fields if "help" in option.metadata}


def written_default(option: Option) -> Any:
    """Return the default of a key as YAML has it."""
    nested = section_of(option)
    if nested is not None:
        return written_defaults(nested)
    if option.metadata["written"] is not None:
        return option.metadata["written"]
    if option.default is dataclasses.MISSING:
        return {}
    if isinstance(option.default, tuple):
        return list(option.default)
    return None if option.default == "" else option.default


def written_defaults(section: type) -> Dict[str, Any]:
    """Return the defaults of a section as YAML has them."""
    return {name: written_default(option) for name, option in keys_of(section).items()}


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
class Mount:
    """A folder or file of the host, as containers see it; absolute paths."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True)
class Ssh:
    """SSH connections to the hosts; null leaves the choice to your `~/.ssh/config`."""

    user: Optional[str] = setting("the login name, unless a node has its own", "text")
    port: Optional[int] = setting("the SSH port, unless a node has its own", "port")
    key: Optional[str] = setting("the private key to log in with", "file here")
    config: str = setting("your ssh configuration, on this machine", "path", "~/.ssh/config")
    jump: Tuple[str, ...] = setting(
        "the hosts to go through, as ssh -J takes them", "jump hosts", ()
    )
    known_hosts: str = setting("where host keys are looked up", "path", "~/.ssh/known_hosts")
    host_keys: str = setting(
        "strict refuses a host whose key is not known; accept-new learns it",
        ("strict", "accept-new"),
        "strict",
    )
    connect_timeout: float = setting("the time one host may take to answer", "seconds", 10.0)


@dataclass(frozen=True)
class Node:
    """One machine: its name is a name or a range such as `gpu[01-16]`.

    A later entry for a member of a range adds to it and wins. What is left out is as
    `cluster.gpus_per_node`, `cluster.nproc_per_node` and so on say.
    """

    name: str  # as in the YAML; also a folder name
    host: str = setting("the SSH name or address; null: the name of the node", "address", "")
    addr: Optional[str] = setting(
        "the address at which other nodes reach it; null: detected", "address"
    )
    user: Optional[str] = setting("the login name; null: as `cluster.ssh.user`", "text")
    port: Optional[int] = setting("the SSH port; null: as `cluster.ssh.port`", "port")
    transport: str = setting("as `cluster.transport`", ("ssh", "local"), "ssh")
    gpus: Union[int, Tuple[int, ...], None] = setting("how many GPUs to use, or which", "gpus")
    nproc_per_node: Optional[int] = setting("ranks on it", "ranks per node")
    python: str = setting("as `cluster.python`", "path", "python3")
    setup: Tuple[str, ...] = setting("more lines for bash, after those of the cluster", "texts", ())
    env: Dict[str, Optional[str]] = setting(
        "environment of its ranks, over the cluster's", "environment", dict
    )
    interface: Optional[str] = setting(
        "the network interface for training traffic; null: detected", "text"
    )

    @property
    def gpu_count(self) -> Optional[int]:
        """How many GPUs are used; None for all."""
        return len(self.gpus) if isinstance(self.gpus, tuple) else self.gpus

    @property
    def gpu_ids(self) -> Tuple[int, ...]:
        """The devices, empty unless they were chosen one by one."""
        return self.gpus if isinstance(self.gpus, tuple) else ()


def are_local(nodes: Iterable[Node]) -> bool:
    """Return whether every node is this machine, without SSH."""
    return all(node.transport == "local" for node in nodes)


@dataclass(frozen=True)
class SlurmSpec:
    """What a job asks of Slurm; null leaves it to the site."""

    partition: str = setting("the partition, or several with commas", "text", "")
    account: str = setting("the account that pays", "text", "")
    time: str = setting("the time limit; null: the partition's default", "time limit", "")
    extra: Tuple[str, ...] = setting("more options of sbatch, such as [--qos=high]", "texts", ())
    srun: Tuple[str, ...] = setting(
        "more options of the srun that reaches each node, such as [--container-image=IMAGE]",
        "texts",
        (),
    )
    signal: str = setting("what ranks get before the time limit", "signal", "SIGUSR1")
    signal_before: Optional[int] = setting(
        "how many seconds before it, about: Slurm may be a minute early; null: never",
        "count from 1 or null",
    )
    requeue: bool = setting(
        "start the job again after that signal, a preemption or the loss of a node, as a new "
        "attempt of the run",
        "bool",
        default=False,
    )
    nodes: str = ""  # how many the job asks for, as --nodes takes it
    nnodes: int = 1  # the most of them
    job_id: str = ""  # the job whose nodes the run is on; "" where one is to be submitted
    cores: Dict[str, int] = field(default_factory=dict)  # that it has on each of them


@dataclass(frozen=True)
class Cluster:
    """The keys of the files in `conf/cluster`, many on purpose: machines, and how they are used."""

    transport: str = setting(
        "local starts processes on this machine in place of SSH", ("ssh", "local"), "ssh"
    )
    scheduler: str = setting(
        "direct: launch on the nodes below; slurm: submit a job that launches on its own nodes",
        ("direct", "slurm"),
        "direct",
    )
    slurm: SlurmSpec = setting("what a job asks of Slurm", "section", SlurmSpec)
    backend: str = setting(
        "what ranks talk over, in DIST_BACKEND; auto: nccl where every node has a GPU per rank",
        ("auto", "nccl", "gloo", "hccl", "xccl", "cncl", "mccl", "ucc"),
        "auto",
    )
    gpus_per_node: Optional[int] = setting(
        "NVIDIA GPUs to use; auto: all of them", "count or auto", written="auto"
    )
    nproc_per_node: Optional[int] = setting(
        "ranks; auto: one per GPU, one where there is none", "ranks per node", written="auto"
    )
    master: Optional[str] = setting("the node of rank 0; null: the first one used", "text")
    master_port: PortRange = setting(
        "the port of the rendezvous; auto: a free one. A range is for firewalls; NCCL uses others",
        "ports",
        PortRange(),
        written="auto",
    )
    nodes: Any = setting("the machines, in rank order; with slurm: how many", "nodes", dict)
    only: Tuple[str, ...] = setting("the nodes to use; empty: all", "names of nodes", ())
    exclude: Tuple[str, ...] = setting("nodes to leave out", "names of nodes", ())
    ssh: Ssh = setting("how the hosts are logged in to", "section", Ssh)
    python: str = setting(
        "interpreter of the task on the hosts, with torch; a path puts its folder first on PATH",
        "path",
        "python3",
    )
    host_python: str = setting(
        "the interpreter of the agent and the supervisor on the hosts, 3.8 or newer; "
        "setup may bring it",
        "path",
        "python3",
        written="${.python}",
    )
    setup: Tuple[str, ...] = setting(
        "lines for bash, once per host before the task, such as `module load cuda`", "texts", ()
    )
    project: str = setting(
        "null pushes the code you stand in; a path names its folder on the hosts, `.` the same "
        "path as here",
        "path",
        "",
    )
    workdir: str = setting("where runs are kept on the hosts", "path", USUAL_WORKDIR)
    env: Dict[str, Optional[str]] = setting(
        "environment of all ranks; null takes a name out, whoever sets it", "environment", dict
    )
    pass_env: Tuple[str, ...] = setting(
        "variables to copy from your environment; on record", "names of variables", ()
    )
    secrets: Tuple[str, ...] = setting(
        "the same, but never written anywhere", "names of variables", ()
    )
    name: str = ""  # of its file


@dataclass(frozen=True)
class Task:
    """The keys of the files in `conf/task`, many on purpose.

    A program is one of module, script and command.
    """

    module: Optional[str] = setting("a Python module, as for `python -m`", "text")
    script: Optional[str] = setting("a Python file, relative to the folder you stand in", "text")
    command: Any = setting("a program other than Python, without a shell", "command")
    args: Any = setting(
        "the arguments: `lr: 0.1` is `--lr 0.1`, true a flag alone, a list several values, a list "
        "of lists a flag several times, a mapping dotted flags",
        "arguments",
    )
    args_style: str = setting(
        "equals makes `--lr=0.1` of it, hydra `lr=0.1`; raw keeps words",
        ("argparse", "equals", "hydra", "raw"),
        "argparse",
    )
    args_false: str = setting(
        "what `amp: false` becomes: omit leaves it out, no makes `--no-amp`, value `--amp false`, "
        "and `--amp true` of true; null: omit, and a launch says so",
        ("omit", "no", "value"),
        "",
    )
    args_before: Tuple[str, ...] = setting(
        "words before these arguments, such as a subcommand", "words", ()
    )
    args_after: Tuple[str, ...] = setting(
        "words after them; those after `--` that are no flags follow these", "words", ()
    )
    entry: str = setting(
        "what starts the ranks; launch: torch.distributed.launch, plain: one process per node, "
        "srun: one per rank, as Slurm does",
        ("torchrun", "launch", "plain", "srun"),
        "torchrun",
    )
    local_rank_arg: str = setting(
        "a flag by which an old script takes its local rank, such as `--local_rank`", "text", ""
    )
    preload: Tuple[str, ...] = setting(
        "imports these once per node, where ranks are then forked; true: torch and torch._dynamo",
        "modules",
        (),
        written=False,
    )
    args_expand: bool = setting(
        "for entry plain: replaces `$RANK`, `$MASTER_ADDR` and the like in arguments",
        "bool",
        default=False,
    )
    env: Dict[str, Optional[str]] = setting(
        "environment of the ranks, over the cluster's and the node's", "environment", dict
    )
    outputs: Tuple[str, ...] = setting(
        "what to bring home of what ranks leave where they run; of a folder all; `**`: any folders",
        "patterns of files",
        (),
    )
    decides: str = setting(
        "for entry plain: the node that decides the end; others are stopped then, as no failure",
        "node or master",
        "",
    )
    nodes: Tuple[str, ...] = setting(
        "the nodes to use; empty: all of the cluster", "names of nodes", ()
    )
    nnodes: Optional[Tuple[Optional[int], Optional[int]]] = setting(
        "how many nodes to use, the first ones; null: all; `2:4`: what of 2 to 4 is there", "nnodes"
    )
    name: str = ""  # of its YAML file, or of the program
    kind: str = "module"  # or "script" or "command"
    target: str = ""  # the module's dotted name, the script's path, or the program
    words: Tuple[str, ...] = ()  # as the program receives them, before torchrun's templates

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
class Rendezvous:
    """The keys of the files in `conf/rendezvous`: how the nodes of a run find each other."""

    backend: str = setting(
        "static: the plan assigns the ranks; otherwise torch does, again whenever a node joins or "
        "leaves",
        RENDEZVOUS,
        "static",
    )
    endpoint: str = setting("where etcd listens; it has to speak its v2 API", "endpoint", "")

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
class ContainerSpec:
    """The keys of the files in `conf/container`: the image that ranks run in, and its engine.

    [containers.md](containers.md) says how such a run works.
    """

    engine: str = setting(
        "null: none, ranks run on the host itself; apptainer is untested", ENGINES, ""
    )
    program: str = setting("the engine on the hosts; null: its name, on the PATH", "text", "")
    image: str = setting("the image, as the engine names it", "text", "")
    prepare_timeout_s: float = setting(
        "the time a host may take to pull the image", "seconds", 3600.0
    )
    python: str = setting("the interpreter of the task in the image", "path", "python3")
    mounts: Tuple[Mount, ...] = setting(
        "what else of a host ranks see, as SOURCE:TARGET or SOURCE:TARGET:ro; absolute paths",
        "mounts",
        (),
    )
    shm_size: str = setting("the size of /dev/shm, such as 16g; null: the engine's own", "size", "")
    ipc: str = setting(
        "host shares /dev/shm with the host, all of it", ("private", "host"), "private"
    )
    user: str = setting(
        "login: ranks are the user and the groups of the login; image: what the image says",
        ("login", "image"),
        "login",
    )
    ulimits: Dict[str, str] = setting("limits such as {nofile: 65536, memlock: -1}", "limits", dict)
    pull: str = setting(
        "missing pulls an image that is not on a host; always: at each launch",
        ("missing", "always", "never"),
        "missing",
    )
    entrypoint: str = setting(
        "none leaves the image's entry point out; image runs it, with the program as arguments",
        ("none", "image"),
        "none",
    )
    extra: Tuple[str, ...] = setting(
        "more options of the engine, each one word with its value, such as --memory=64g",
        "texts",
        (),
    )
    fetches: bool = True  # whether hosts that lack it may pull it now: not in a dry run

    def __bool__(self) -> bool:
        return bool(self.engine)


@dataclass(frozen=True)
class Torchrun:
    """Options of torchrun, by its own names; null leaves the choice to torchrun."""

    max_restarts: int = setting(
        "how often torchrun restarts the ranks after a failure; with a static rendezvous: "
        "`relaunch.max`",
        "count",
        0,
    )
    monitor_interval: Optional[float] = setting(
        "the interval at which it looks at its ranks", "seconds or null"
    )
    rdzv_conf: Dict[str, str] = setting(
        "more settings of the rendezvous", "settings of a rendezvous", dict
    )
    role: str = setting("a name for the ranks", "text", "")
    start_method: str = setting("how it makes processes", ("spawn", "fork", "forkserver"), "")
    signals_to_handle: Tuple[str, ...] = setting(
        "the signals that it forwards", "signals", (), written=None
    )
    numa_binding: str = setting(
        "binds ranks to the cores near their GPU",
        ("node", "socket", "exclusive", "core-complex"),
        "",
    )
    shutdown_timeout: Optional[int] = setting(
        "the time it waits for its ranks to end; null: somewhat longer than `grace_s`",
        "count from 1 or null",
    )


@dataclass(frozen=True)
class Relaunch:
    """Relaunch: a new attempt on all nodes after an attempt failed."""

    max: int = setting("the largest number of relaunches", "count", 0)
    backoff_s: float = setting(
        "the pause before the first relaunch; each one after doubles it, up to 300", "seconds", 5.0
    )

    def delay_s(self, attempt: int) -> float:
        """Return how long to wait before an attempt, the first relaunch being 1."""
        return min(MAX_BACKOFF_S, self.backoff_s * 2.0 ** (attempt - 1))


@dataclass(frozen=True)
class Deploy:
    """Limits of pushed code."""

    max_mb: int = setting("the largest size of the code, in megabytes", "count from 1", 200)
    keep: int = setting("the number of old releases that stay on the hosts", "count", 3)
    enabled: bool = False  # if not, the user's code is in `Cluster.project` on the hosts


@dataclass(frozen=True)
class Watch:
    """Hang watchdog: a run hangs when no rank prints, computes, or reads or writes files."""

    stall_s: float = setting("the run reports a hang after this time", "seconds or off", 300.0)
    action: str = setting(
        "report shows where every rank is; stop also ends the run, restart relaunches it",
        ("report", "stop", "restart"),
        "report",
    )
    metrics: Tuple[str, ...] = setting(
        "files the ranks write a line to per step; where named, nothing else is progress",
        "patterns of files",
        (),
    )
    stacks: str = setting(
        "auto has ranks load a `sitecustomize` by which their stacks can be had without py-spy",
        ("auto", "never"),
        "auto",
    )

    @property
    def stops(self) -> bool:
        """Whether a stall ends the run, or with `relaunches` the attempt."""
        return self.action != "report"

    @property
    def relaunches(self) -> bool:
        """Whether an attempt that stalled is followed by another one."""
        return self.action == "restart"


@dataclass(frozen=True)
class Progress:
    """Progress of the ranks: the bar, `ps` and `metrics.jsonl` show what they print of it."""

    pattern: str = setting(
        "for programs that print neither JSON nor a usual form: groups step, loss and others",
        "pattern of lines",
        "",
    )


@dataclass(frozen=True)
class Debug:
    """A rank under a debugger, which it waits for before its first line."""

    rank: Optional[int] = setting(
        "start this rank under debugpy; the others wait for it", "count or null"
    )
    port: Optional[int] = setting(
        "where it listens, at 127.0.0.1 of its node; null: 5678", "port", 5678
    )


@dataclass(frozen=True)
class Spec:
    """The configuration of one run, large on purpose."""

    run_id: str = setting(
        "the name of the run; null: one is made, MMDD-HHMM-TASK-xxxx", "run id", ""
    )
    cluster: Cluster = setting("the machines", "section", Cluster)
    task: Task = setting("the program", "section", Task)
    rendezvous: Rendezvous = setting("how the nodes find each other", "section", Rendezvous)
    container: ContainerSpec = setting("the container that ranks run in", "section", ContainerSpec)
    torchrun: Torchrun = setting("options of torchrun", "section", Torchrun)
    relaunch: Relaunch = setting("new attempts after a failure", "section", Relaunch)
    deploy: Deploy = setting("limits of pushed code", "section", Deploy)
    watch: Watch = setting("the hang watchdog", "section", Watch)
    progress: Progress = setting("what ranks print of their progress", "section", Progress)
    debug: Debug = setting("a rank under a debugger", "section", Debug)
    dry_run: Tuple[str, ...] = setting(
        "true prints the commands of each host, offline without asking any; json prints the plan",
        "dry run",
        (),
        written=False,
    )
    run_dir: str = setting(
        "the record of the run on this machine", "path", "", written="runs/${run_id}"
    )
    rerun: Optional[str] = setting(
        "repeat a past run with its recorded configuration and code; on the command line only",
        "text",
    )
    ui: str = setting(
        "plain: lines only, as for a file; raw: all of them, as the programs wrote them",
        ("auto", "plain", "raw"),
        "auto",
    )
    console_ranks: Optional[Tuple[int, ...]] = setting(
        "the ranks whose output the console shows; the files hold all of it",
        "ranks",
        written="all",
    )
    pull_outputs: str = setting(
        "auto downloads `task.outputs` at the end of a watched run; never leaves it to `pull`",
        ("auto", "never"),
        "auto",
    )
    skip_checks: Tuple[str, ...] = setting(
        "checks to leave out, such as [gpus]; `check` has all", "names", ()
    )
    sample_s: float = setting(
        "how often `samples.jsonl` gets the load of hosts and GPUs while a run is on",
        "interval or off",
        5.0,
    )
    notify: Tuple[str, ...] = setting(
        "commands that are told of end, failure, relaunch and stall, as JSON; see see-a-run.md",
        "commands of a shell",
        (),
    )
    grace_s: float = setting("the time from TERM to KILL when a run is stopped", "seconds", 15.0)
    lost_s: float = setting(
        "a host counts as lost after this time without a heartbeat", "seconds", 15.0
    )
    disconnect_s: float = setting(
        "for how long a run goes on without its launch and without attach; never: to its end",
        "seconds or never",
        0.0,
        written="never",
    )
    detach: bool = setting(
        "return once every rank runs, and leave the run to the hosts", "bool", default=False
    )
    nodes: Tuple[Node, ...] = ()  # in rank order: the master first, then as in the YAML
    spares: Tuple[Node, ...] = ()  # may replace a failed node, in the order of the YAML
    min_nodes: Optional[int] = None  # of an elastic run; None for all of `nodes`
    max_nodes: Optional[int] = None  # None if that is all of `nodes`
    secrets: Dict[str, Secret] = field(default_factory=dict)  # never written to disk
    program: str = "runner"  # what starts this program, as it was typed

    @property
    def slurm(self) -> Optional[SlurmSpec]:
        """What a job asks of Slurm; None where the supervisors are started directly."""
        return self.cluster.slurm if self.cluster.scheduler == "slurm" else None

    @property
    def debug_rank(self) -> Optional[DebugRank]:
        """The rank that waits for a debugger, if one does."""
        if self.debug.rank is None:
            return None
        return DebugRank(self.debug.rank, self.debug.port or DebugRank(0).port)

    @property
    def pushes_code(self) -> bool:
        """Whether the ranks run in a release; shipped tasks need none."""
        return self.deploy.enabled and not self.task.shipped_file

    def setup_of(self, node: Node) -> Tuple[str, ...]:
        """Return the lines for bash on a node."""
        return (*self.cluster.setup, *node.setup)

    def env_of(self, node: Node) -> Dict[str, str]:
        """Return what the user sets for the ranks of a node: the task overrides the node."""
        env = {**self.cluster.env, **node.env, **self.task.env}
        return {name: value for name, value in env.items() if value is not None}

    def removed_env_of(self, node: Node) -> Tuple[str, ...]:
        """Return the names that the user takes out of the environment of a node's ranks."""
        env = {**self.cluster.env, **node.env, **self.task.env}
        return tuple(name for name, value in env.items() if value is None)

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
