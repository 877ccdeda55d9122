"""Spec: every key of the configuration, with its help and its default, and what a run is told.

It is the schema of the YAML, and its values are what `config.resolve` made of them. A field with
`setting(...)` is a key of the YAML; any other is set by `config.resolve`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from runner.core.wire.paths import USUAL_WORKDIR
from runner.core.wire.timing import MAX_BACKOFF_S

MASTER = "master"
"""The first node, as `task.decides` names it."""

SHIPPED_TASKS = ("runner.tasks.", "runner.examples.")
"""Modules below these names are sent with the run: hosts need no copy of our package."""

GROUPS = ("cluster", "task", "rendezvous", "container")
"""The sections whose YAML is a file of its own, in a folder of that name."""

ENGINES = ("docker", "podman")
"""The engines of containers, whose processes are no children of ours."""

UV_PYTHON = "$RUNNER_PREPARED/.venv/bin/python"
UV_INPUTS = ("pyproject.toml", "uv.lock", ".python-version")
UV_CHECK = (
    "said=$(uv lock --check --offline 2>&1) || case $said in "
    '*"needs to be updated"*|*"No solution"*) echo "$said"; false;; esac'
)
UV_LINES = (UV_CHECK, "uv sync --frozen --no-install-project")
"""What `environment: uv` stands for. `--frozen` alone would install what an old lock says. A check
that fails otherwise, such as for a project that needs its git, says nothing of the lock."""

DEBUG_PORT = 5678

BACKENDS = ("auto", "nccl", "gloo", "hccl", "xccl", "cncl", "mccl", "ucc")
RENDEZVOUS = ("static", "standalone", "c10d", "etcd", "etcd-v2")


Option = Any
"""A `dataclasses.Field`, which takes no type argument in Python 3.8."""


def setting(
    help_text: str, kind: str | tuple[str, ...], default: Any = None, written: Any = None
) -> Any:
    """Return the field of a key.

    Args:
        help_text: What it means, in one line.
        kind: The name of its legal values in `config.kinds`, or the words it may be.
        default: The default as a value of the Spec; a class makes it. None of words: the first.
        written: The default as YAML has it, where that differs from the value.
    """
    metadata = {"help": help_text, "kind": kind, "written": written}
    if default is None and isinstance(kind, tuple):
        default = kind[0]
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def section_of(option: Option) -> type | None:
    """Return the class of the keys below a key, None for a key with a value."""
    factory: Any = option.default_factory
    is_section = isinstance(factory, type) and dataclasses.is_dataclass(factory)
    return factory if is_section else None


def keys_of(section: type) -> dict[str, Option]:
    fields = dataclasses.fields(section)
    return {option.name: option for option in fields if "help" in option.metadata}


def written_default(option: Option) -> Any:
    """Return the default of a key as YAML has it.

    That of a list or a mapping is null, with which Hydra merges whatever a file has.
    """
    nested = section_of(option)
    if nested is not None:
        return written_defaults(nested)
    if option.metadata["written"] is not None:
        return option.metadata["written"]
    return None if option.default in ("", (), dataclasses.MISSING) else option.default


def written_defaults(section: type) -> dict[str, Any]:
    return {name: written_default(option) for name, option in keys_of(section).items()}


class Secret:
    """Text that prints as `***`; only the frame that takes it to a host calls `reveal`."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
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

    user: str | None = setting("the login name, unless a node has its own", "text")
    port: int | None = setting("the SSH port, unless a node has its own", "port")
    key: str | None = setting("the private key to log in with", "file here")
    config: str = setting("your ssh configuration, on this machine", "path", "~/.ssh/config")
    jump: tuple[str, ...] = setting("hosts to go through, as ssh -J takes them", "jump hosts", ())
    known_hosts: str = setting("where host keys are looked up", "path", "~/.ssh/known_hosts")
    host_keys: str = setting(
        "strict refuses a host with an unknown key; accept-new learns it", ("strict", "accept-new")
    )
    connect_timeout: float = setting("the time one host may take to answer", "seconds", 10.0)


@dataclass(frozen=True)
class Node:
    """One machine. What is left out is as `cluster.gpus_per_node` and so on say."""

    name: str  # as in the YAML; also a folder name
    host: str = setting("the SSH name or address; null: the name of the node", "address", "")
    addr: str | None = setting("how other nodes reach it; null: detected", "address")
    user: str | None = setting("the login name; null: as `cluster.ssh.user`", "text")
    port: int | None = setting("the SSH port; null: as `cluster.ssh.port`", "port")
    transport: str = setting("as `cluster.transport`", ("ssh", "openssh", "local"))
    gpus: int | tuple[int, ...] | None = setting("how many GPUs to use, or which", "gpus")
    nproc_per_node: int | None = setting("ranks on it", "ranks per node")
    python: str = setting("as `cluster.python`", "path", "python3")
    setup: tuple[str, ...] = setting("more lines for bash, after those of the cluster", "texts", ())
    env: dict[str, str | None] = setting("for its ranks, over the cluster's", "environment", dict)
    interface: str | None = setting("the interface of training traffic; null: detected", "text")

    @property
    def gpu_count(self) -> int | None:
        return len(self.gpus) if isinstance(self.gpus, tuple) else self.gpus

    @property
    def gpu_ids(self) -> tuple[int, ...]:
        """The devices, empty unless they were chosen one by one."""
        return self.gpus if isinstance(self.gpus, tuple) else ()


def are_local(nodes: Iterable[Node]) -> bool:
    return all(node.transport == "local" for node in nodes)


@dataclass(frozen=True)
class SlurmSpec:
    """What a job asks of Slurm; null leaves it to the site."""

    partition: str = setting("the partition, or several with commas", "text", "")
    account: str = setting("the account that pays", "text", "")
    time: str = setting("the time limit; null: the partition's default", "time limit", "")
    extra: tuple[str, ...] = setting("more options of sbatch, such as [--qos=high]", "texts", ())
    signal: str = setting("what ranks get before the time limit", "signal", "SIGUSR1")
    signal_before: int | None = setting("seconds before it; null: never", "count from 1 or null")
    requeue: bool = setting("a new attempt after that signal, or a lost node", "bool", False)
    nodes: str = ""  # how many the job asks for, as --nodes takes it
    nnodes: int = 1  # the most of them
    job_id: str = ""  # the job whose nodes the run is on; "" where one is to be submitted


@dataclass(frozen=True)
class Cluster:
    """The keys of the files in `conf/cluster`: machines, and how they are used.

    Many on purpose.
    """

    transport: str = setting(
        "ssh logs in by itself, openssh by your own ssh client; local starts processes here",
        ("ssh", "openssh", "local"),
    )
    scheduler: str = setting("slurm launches in a job, on its nodes", ("direct", "slurm"))
    slurm: SlurmSpec = setting("what a job asks of Slurm", "section", SlurmSpec)
    backend: str = setting("DIST_BACKEND of ranks; auto: nccl where each has a GPU", BACKENDS)
    gpus_per_node: int | None = setting("NVIDIA GPUs; auto: all", "count or auto", written="auto")
    nproc_per_node: int | None = setting("auto: one per GPU", "ranks per node", written="auto")
    master: str | None = setting("the node of rank 0; null: the first one used", "text")
    master_port: PortRange = setting(
        "the port of the rendezvous; auto: a free one", "ports", PortRange(), written="auto"
    )
    nodes: Any = setting("the machines, in rank order; with slurm: how many", "nodes", dict)
    only: tuple[str, ...] = setting("the nodes to use; empty: all", "names of nodes", ())
    exclude: tuple[str, ...] = setting("nodes to leave out", "names of nodes", ())
    ssh: Ssh = setting("how the hosts are logged in to", "section", Ssh)
    python: str = setting("the task's interpreter; its folder is first on PATH", "path", "python3")
    host_python: str = setting(
        "that of our processes on the hosts, 3.8 or newer", "path", "python3", written="${.python}"
    )
    setup: tuple[str, ...] = setting(
        "lines for bash, once per host before the task, such as `module load cuda`", "texts", ()
    )
    environment: str = setting("uv makes the task's there, from your uv.lock", ("uv",), "")
    prepare: tuple[str, ...] = setting(
        "lines for bash, in $RUNNER_PREPARED: once per host and content of the inputs", "texts", ()
    )
    prepare_inputs: tuple[str, ...] = setting("what they read", "patterns of files", ())
    prepare_timeout_s: float = setting("how long they may take", "seconds", 1800.0)
    project: str = setting(
        "null pushes the code here; a path is its folder on the hosts, `.` the same", "path", ""
    )
    workdir: str = setting("where runs are kept on the hosts", "path", USUAL_WORKDIR)
    env: dict[str, str | None] = setting("of all ranks; null takes a name out", "environment", dict)
    pass_env: tuple[str, ...] = setting(
        "copied from your shell, and on record", "patterns of variables", ()
    )
    secrets: tuple[str, ...] = setting(
        "variables of your shell that only ranks see, never written", "names of variables", ()
    )
    name: str = ""  # of its file


@dataclass(frozen=True)
class Task:
    """The keys of the files in `conf/task`. A program is one of module, script and command.

    Many on purpose.
    """

    module: str | None = setting("a Python module, as for `python -m`", "text")
    script: str | None = setting("a Python file, relative to the folder you stand in", "text")
    command: Any = setting("a program other than Python, without a shell", "command")
    args: Any = setting("`lr: 0.1` is `--lr 0.1`; see programs.md for more", "arguments")
    args_style: str = setting("`--lr 0.1`, `--lr=0.1`, `lr=0.1`", ("argparse", "equals", "hydra"))
    args_false: str = setting(
        "`amp: false`: omit leaves it out, no: `--no-amp`, value: `--amp false`; null: omit, said",
        ("omit", "no", "value"),
        "",
    )
    args_before: tuple[str, ...] = setting("words before them, such as a subcommand", "words", ())
    args_after: tuple[str, ...] = setting("words after them, such as paths", "words", ())
    entry: str = setting(
        "plain: a process per node; srun: one per rank, in a job of Slurm",
        ("torchrun", "plain", "srun"),
    )
    local_rank_arg: str = setting("a flag for the local rank, such as `--local_rank`", "text", "")
    preload: tuple[str, ...] = setting(
        "imports once per node, where ranks are forked; true: torch", "modules", (), written=False
    )
    env: dict[str, str | None] = setting("over the cluster's and the node's", "environment", dict)
    outputs: tuple[str, ...] = setting(
        "files to bring home from where ranks run; `**`: any folders", "patterns of files", ()
    )
    keep: tuple[str, ...] = setting(
        "folders where ranks run that outlive a run, such as [checkpoints]", "folders", ()
    )
    decides: str = setting("entry plain: the node that decides the end", "node or master", "")
    nnodes: tuple[int | None, int | None] | None = setting(
        "how many nodes to use, the first ones; null: all; `2:4`: what of 2 to 4 is there", "nnodes"
    )
    name: str = ""  # of its YAML file, or of the program
    kind: str = "module"  # or "script" or "command"
    target: str = ""  # the module's dotted name, the script's path, or the program
    words: tuple[str, ...] = ()  # as the program receives them, before torchrun's templates

    @property
    def is_plain(self) -> bool:
        return self.entry == "plain"

    @property
    def without_torchrun(self) -> bool:
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
        "static: the plan assigns ranks; else torch does, when nodes join or leave", RENDEZVOUS
    )
    endpoint: str = setting("where etcd listens; it has to speak its v2 API", "endpoint", "")

    @property
    def uses_master_store(self) -> bool:
        return self.backend in ("static", "c10d")

    @property
    def uses_etcd(self) -> bool:
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
    """The keys of the files in `conf/container`; [containers.md](containers.md) explains them."""

    engine: str = setting("null: ranks run on the host, or by `prefix`", ENGINES, "")
    prefix: tuple[str, ...] = setting(
        "words before a command, such as [apptainer, exec, --nv, x.sif]", "texts", ()
    )
    program: str = setting("the engine on the hosts; null: its name, on the PATH", "text", "")
    image: str = setting("the image, as the engine names it", "text", "")
    prepare_timeout_s: float = setting("how long a host may pull the image", "seconds", 3600.0)
    python: str = setting("the interpreter of the task in the image", "path", "python3")
    mounts: tuple[Mount, ...] = setting("what else of a host ranks see", "mounts", ())
    shm_size: str = setting("the size of /dev/shm, such as 16g; null: the engine's own", "size", "")
    user: str = setting(
        "login: ranks are the user of the login; image: that of the image", ("login", "image")
    )
    pull: str = setting(
        "missing: where it is not there; always: at each launch", ("missing", "always", "never")
    )
    extra: tuple[str, ...] = setting("more options, such as --memory=64g", "texts", ())
    fetches: bool = True  # whether hosts that lack it may pull it now: not in a dry run

    def __bool__(self) -> bool:
        return bool(self.engine or self.prefix)


@dataclass(frozen=True)
class Torchrun:
    """Options of torchrun."""

    max_restarts: int = setting("of failed ranks; static: see `relaunch.max`", "count", 0)
    rdzv_conf: dict[str, str] = setting("more of the rendezvous", "settings of a rendezvous", dict)
    extra: tuple[str, ...] = setting(
        "more of its options, such as [--numa-binding=node]", "options of torchrun", ()
    )


@dataclass(frozen=True)
class Relaunch:
    """Relaunch: a new attempt on all nodes after an attempt failed."""

    max: int = setting("the largest number of relaunches", "count", 0)
    backoff_s: float = setting("before the first; doubles, up to 300", "seconds", 5.0)

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
    """Hang watchdog."""

    stall_s: float = setting(
        "a run hangs if no rank prints, computes or uses files for so long", "seconds or off", 300.0
    )
    action: str = setting(
        "report shows where every rank is; stop also ends the run, restart relaunches it",
        ("report", "stop", "restart"),
    )
    stacks: str = setting("auto: by a `sitecustomize` in ranks", ("auto", "never"))

    @property
    def relaunches(self) -> bool:
        return self.action == "restart"


@dataclass(frozen=True)
class Progress:
    """Progress of the ranks: the bar, `ps` and `metrics.jsonl` show what they print of it."""

    pattern: str = setting("of your own lines: groups step, loss, …", "pattern of lines", "")


@dataclass(frozen=True)
class Debug:
    """A rank under a debugger, which it waits for before its first line."""

    rank: int | None = setting("this rank starts under debugpy; the others wait", "count or null")
    port: int | None = setting("where it listens, at 127.0.0.1 of its node", "port", DEBUG_PORT)


@dataclass(frozen=True)
class Spec:
    """The configuration of one run.

    Large on purpose.
    """

    run_id: str = setting("null: one is made, MMDD-HHMM-TASK-xxxx", "run id", "")
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
    dry_run: tuple[str, ...] = setting(
        "prints the plan as commands or json; offline asks no host", "dry run", (), written=False
    )
    run_dir: str = setting("the record of the run here", "path", "", written="runs/${run_id}")
    rerun: str | None = setting("a past run to repeat; on the command line only", "text")
    ui: str = setting("plain: lines only, as for a file", ("auto", "plain"))
    console_ranks: tuple[int, ...] | None = setting("whose output is shown", "ranks", written="all")
    pull_outputs: str = setting("of `task.outputs`, at the end", ("auto", "never"))
    skip_checks: tuple[str, ...] = setting("checks to leave out, such as [gpus]", "texts", ())
    sample_s: float = setting("load of hosts, to `samples.jsonl`", "interval or off", 5.0)
    notify: tuple[str, ...] = setting("shell commands, told of the end", "texts", ())
    grace_s: float = setting("the time from TERM to KILL when a run is stopped", "seconds", 15.0)
    lost_s: float = setting("a host that is silent for so long is lost", "seconds", 15.0)
    disconnect_s: float = setting(
        "how long a run goes on without launch and attach", "seconds or never", 0.0, written="never"
    )
    detach: bool = setting("leave the run to its hosts once all ranks run", "bool", False)
    nodes: tuple[Node, ...] = ()  # in rank order: the master first, then as in the YAML
    spares: tuple[Node, ...] = ()  # may replace a failed node, in the order of the YAML
    min_nodes: int | None = None  # of an elastic run; None for all of `nodes`
    max_nodes: int | None = None  # None if that is all of `nodes`
    secrets: dict[str, Secret] = field(default_factory=dict)  # never written to disk
    program: str = "runner"  # what starts this program, as it was typed

    @property
    def slurm(self) -> SlurmSpec | None:
        """What a job asks of Slurm; None where the supervisors are started directly."""
        return self.cluster.slurm if self.cluster.scheduler == "slurm" else None

    @property
    def pushes_code(self) -> bool:
        return self.deploy.enabled and not self.task.shipped_file

    def setup_of(self, node: Node) -> tuple[str, ...]:
        return (*self.cluster.setup, *node.setup)

    def python_of(self, node: Node) -> str:
        """Return the task's interpreter; that of the node is what uv makes it with."""
        return UV_PYTHON if self.cluster.environment else node.python

    def env_of(self, node: Node) -> dict[str, str]:
        """Return what the user sets for the ranks of a node: the task overrides the node."""
        env = {**self.cluster.env, **node.env, **self.task.env}
        return {name: value for name, value in env.items() if value is not None}

    def removed_env_of(self, node: Node) -> tuple[str, ...]:
        """Return the names that the user takes out of the environment of a node's ranks."""
        env = {**self.cluster.env, **node.env, **self.task.env}
        return tuple(name for name, value in env.items() if value is None)

    @property
    def is_single_node(self) -> bool:
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
