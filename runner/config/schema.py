"""Configuration schema: every key with its default, legal values and help."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from runner.config.validation import Kind, Validator, join_or, kind, or_null
from runner.core.planning.container.base import ENGINES
from runner.core.planning.rendezvous_flags import BACKENDS
from runner.core.protocol.paths import USUAL_WORKDIR

GROUPS = ("cluster", "task", "rendezvous", "container")
VARIABLE_NAMES = "list of names of variables"
NODE_RANGES = "list of names and ranges"
PATH = Kind("path", Validator.line)
TEXT = Kind("text, or null", Validator.text)
NULLABLE_TEXT = Kind("text or null", Validator.optional_line)
KEY_FILE = Kind("path of a file here, or null", Validator.optional_line)
NODE_NAME = Kind("name of a node, or null", Validator.text)
ADDRESS = Kind("name, address or null", Validator.address)
NULLABLE_PORT = Kind("1 to 65535 or null", Validator.port)
PORTS = Kind("port, range such as 29500-29600, or auto", Validator.ports)
ENDPOINT = Kind("HOST:PORT, or null", Validator.endpoint)
SECONDS = Kind("seconds, more than 0", Validator.seconds)
SECONDS_OR_OFF = kind(f"{SECONDS.legal}, or off", Validator.seconds_or, word="off")
SECONDS_OR_NEVER = kind(f"{SECONDS.legal}, or never", Validator.seconds_or, word="never")
NULLABLE_SECONDS = or_null(SECONDS, f"{SECONDS.legal}, or null")
COUNT = kind("whole number from 0", Validator.integer, minimum=0)
POSITIVE = kind("whole number from 1", Validator.integer, minimum=1)
NULLABLE_WHOLE_SECONDS = or_null(POSITIVE, "whole seconds from 1, or null")
GPU_COUNT = kind("number from 0, or auto", Validator.int_or_auto, minimum=0)
RANK_COUNT = kind("number from 1, or auto", Validator.int_or_auto, minimum=1)
TEXTS = Kind("list of texts", Validator.text_list)
JUMP = Kind("text, list of texts or null", Validator.text_list)
ENV_MAPPING = Kind("mapping of names to texts, numbers, bools or null", Validator.env)
GPUS = Kind("number from 0, list of devices such as [0, 2], or auto", Validator.gpus)
RANKS = Kind("all, a rank, or a list such as [0, 3]", Validator.ranks)
RUN_ID = Kind("up to 63 of a-z, 0-9 and '-', or null", Validator.run_id)
OUTPUTS = Kind("list of paths or patterns such as results/*.pt", Validator.outputs)
METRICS = Kind("list of paths or patterns such as metrics.jsonl", Validator.outputs)
RDZV_CONF = Kind("mapping such as {join_timeout: 600}", Validator.rdzv_conf)
LINE_PATTERN = Kind(
    r"regular expression such as `epoch (\d+)/(\d+)`, or null", Validator.line_pattern
)
MOUNTS = Kind("list of texts such as /data:/data:ro", Validator.text_list)
SIZE = Kind("number with b, k, m or g, or null", Validator.text)
SIGNALS = Kind("list such as [SIGTERM, SIGUSR1], or null", Validator.signals)


def doc(help_text: str, of: Kind | str, default: Any = None) -> Any:
    """Return a dataclass field; a class as the default is its factory.

    A value is read by its kind; one that is described in words alone stays as it is.
    """
    of = Kind(of) if isinstance(of, str) else of
    metadata = {"help": help_text, "legal": of.legal, "read": of.read}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def choice(help_text: str, *words: str, null: bool = False) -> Any:
    """Return the field of a key that takes one of a few words, by default the first.

    With `null` the default is null, which is read as "".
    """
    one_of = kind(join_or(words), Validator.choice, legal=words)
    if null:
        return doc(help_text, or_null(one_of, join_or([*words, "null"]), ""))
    return doc(help_text, one_of, words[0])


def section(schema: type, help_text: str) -> Any:
    """Return the field of a section of keys."""
    return doc(help_text, "see below", schema)


@dataclass
class SshConfig:
    """SSH connections to the hosts; null leaves the choice to your `~/.ssh/config`."""

    user: str | None = doc("the login name, unless a node has its own", NULLABLE_TEXT)
    port: int | None = doc("the SSH port, unless a node has its own", NULLABLE_PORT)
    key: str | None = doc("the private key to log in with", KEY_FILE)
    config: str = doc("your ssh configuration, on this machine", PATH, "~/.ssh/config")
    jump: Any = doc("the hosts to go through, as ssh -J takes them", JUMP)
    known_hosts: str = doc("where host keys are looked up", PATH, "~/.ssh/known_hosts")
    host_keys: str = choice(
        "strict refuses a host whose key is not known; accept-new learns it", "strict", "accept-new"
    )
    connect_timeout: float = doc("the time one host may take to answer", SECONDS, 10.0)


@dataclass
class NodeConfig:
    """One machine: its name is a name or a range such as `gpu[01-16]`.

    A later entry for a member of a range adds to it and wins.
    """

    host: str | None = doc("the SSH name or address; null: the name of the node", ADDRESS)
    addr: str | None = doc("the address at which other nodes reach it; null: detected", ADDRESS)
    user: str | None = doc("the login name; null: as `cluster.ssh.user`", NULLABLE_TEXT)
    port: int | None = doc("the SSH port; null: as `cluster.ssh.port`", NULLABLE_PORT)
    gpus: Any = doc(
        "how many GPUs to use, or which; left out: as `cluster.gpus_per_node`", GPUS, ""
    )
    nproc_per_node: Any = doc("ranks on it; left out: as `cluster.nproc_per_node`", RANK_COUNT, "")
    env: Any = doc("environment of its ranks, over the cluster's", ENV_MAPPING, dict)
    transport: str | None = choice("null: as `cluster.transport`", "ssh", "local", null=True)
    interface: str | None = doc(
        "the network interface for training traffic; null: detected", NULLABLE_TEXT
    )


@dataclass
class ClusterConfig:
    """The keys of the files in `conf/cluster`, many on purpose: machines, and how they are used."""

    transport: str = choice(
        "local starts processes on this machine in place of SSH", "ssh", "local"
    )
    backend: str = choice(
        "what ranks talk over, in DIST_BACKEND; auto: nccl where every node has a GPU per rank",
        "auto",
        "nccl",
        "gloo",
    )
    gpus_per_node: Any = doc("GPUs to use; auto: all of them", GPU_COUNT, "auto")
    nproc_per_node: Any = doc(
        "ranks; auto: one per GPU, one where there is none", RANK_COUNT, "auto"
    )
    master: str | None = doc(
        "the node of rank 0; null: the first one used", "name of a node, or null"
    )
    master_port: Any = doc(
        "the port of the rendezvous; auto: a free port. A range is for firewalls", PORTS, "auto"
    )
    nodes: Any = doc("the machines, in rank order", "mapping of names or ranges to nodes", dict)
    only: Any = doc("the nodes to use; empty: all", NODE_RANGES, list)
    exclude: Any = doc("nodes to leave out", NODE_RANGES, list)
    ssh: SshConfig = section(SshConfig, "how the hosts are logged in to")
    python: str = doc(
        "interpreter of the task on the hosts, with torch; a path puts its folder first on PATH",
        *(PATH, "python3"),
    )
    host_python: str = doc(
        "the interpreter of the agent and the supervisor on the hosts, 3.8 or newer; "
        "setup may bring it",
        PATH,
        "${.python}",
    )
    setup: Any = doc(
        "lines for bash, once per host before the task, such as `module load cuda`", TEXTS, list
    )
    project: str | None = doc(
        "null pushes the code you stand in; a path names its folder on the hosts, `.` the same "
        "path as here",
        "path or null",
    )
    workdir: str = doc("where runs are kept on the hosts", PATH, USUAL_WORKDIR)
    env: Any = doc(
        "environment of all ranks; null takes a name out, whoever sets it", ENV_MAPPING, dict
    )
    pass_env: Any = doc("variables to copy from your environment; on record", VARIABLE_NAMES, list)
    secrets: Any = doc("the same, but never written anywhere", VARIABLE_NAMES, list)


@dataclass
class TaskConfig:
    """The keys of the files in `conf/task`: a program, as one of module, script and command."""

    module: str | None = doc(
        "a Python module, as for `python -m`", "name such as package.train, or null"
    )
    script: str | None = doc("a Python file, relative to the folder you stand in", "path or null")
    command: Any = doc(
        "a program other than Python, without a shell", "text, list of texts or null"
    )
    args: Any = doc(
        "the arguments: `lr: 0.1` is `--lr 0.1`, true a flag alone, a list several values",
        "mapping; text or list of texts where args_style is raw; or null",
    )
    entry: str = choice(
        "what starts the ranks; launch is torch.distributed.launch, plain one process per node "
        "without torch's launcher",
        "torchrun",
        "launch",
        "plain",
    )
    local_rank_arg: str | None = doc(
        "a flag by which an old script takes its local rank, such as `--local_rank`", TEXT
    )
    args_style: str = choice(
        "equals makes `--lr=0.1` of it, hydra `lr=0.1`; raw keeps words",
        *("argparse", "equals", "hydra", "raw"),
    )
    args_expand: bool = doc(
        "for entry plain: replaces `$RANK`, `$MASTER_ADDR` and the like in arguments",
        *("true or false", False),
    )
    extra_args: Any = doc(
        "more arguments, after the others and as they are; words after `--` follow these",
        "list of texts, or text that is split as a shell does",
        list,
    )
    env: Any = doc("environment of the ranks, over the cluster's and the node's", ENV_MAPPING, dict)
    outputs: Any = doc(
        "what to bring home of what ranks leave where they run; of a folder all; `**`: any folders",
        OUTPUTS,
        list,
    )
    nodes: Any = doc("the nodes to use; empty: all of the cluster", NODE_RANGES, list)
    nnodes: Any = doc(
        "how many nodes to use, the first ones; null: all; `2:4`: what of 2 to 4 is there",
        "number from 1, range such as 2:4, or null",
    )


@dataclass
class RendezvousConfig:
    """The keys of the files in `conf/rendezvous`: how the nodes of a run find each other."""

    backend: str = choice(
        "static: the plan assigns the ranks; otherwise torch does, again whenever a node joins or "
        "leaves",
        *BACKENDS,
    )
    endpoint: str | None = doc("where etcd listens; it has to speak its v2 API", ENDPOINT)
    serve: str | None = doc("the node that runs etcd for as long as the run", NODE_NAME)


@dataclass
class ContainerConfig:
    """The keys of the files in `conf/container`: the image that ranks run in, and its engine."""

    engine: str | None = choice("null: none, ranks run on the host itself", *ENGINES, null=True)
    program: str | None = doc("the engine on the hosts; null: its name, on the PATH", TEXT)
    image: str | None = doc("the image, as the engine names it", TEXT)
    build: str | None = doc(
        "a Dockerfile here, or its folder: a launch builds the image from it on the hosts", TEXT
    )
    push_image: bool = doc(
        "whether a launch sends the image from here to hosts that lack it, without a registry",
        *("true or false", False),
    )
    prepare_timeout_s: float = doc(
        "the time a host may take to pull, build or load the image", SECONDS, 3600.0
    )
    python: str = doc("the interpreter of the task in the image", *(PATH, "python3"))
    mounts: Any = doc(
        "what else of a host ranks see, as SOURCE:TARGET or SOURCE:TARGET:ro; absolute paths",
        *(MOUNTS, list),
    )
    shm_size: str | None = doc("the size of /dev/shm, such as 16g; null: the engine's own", SIZE)
    ipc: str = choice("host shares /dev/shm with the host, all of it", "private", "host")
    user: str = choice(
        "login: ranks are the user and the groups of the login; image: what the image says",
        *("login", "image"),
    )
    ulimits: Any = doc(
        "limits such as {nofile: 65536, memlock: -1}", "mapping of names to a number", dict
    )
    pull: str = choice(
        "missing pulls an image that is not on a host; always: at each launch",
        *("missing", "always", "never"),
    )
    entrypoint: str = choice(
        "none leaves the image's entry point out; image runs it, with the program as arguments",
        *("none", "image"),
    )
    extra: Any = doc("more options of the engine, such as --memory=64g", TEXTS, list)


@dataclass
class TorchrunConfig:
    """Options of torchrun, by its own names; null leaves the choice to torchrun."""

    max_restarts: int = doc(
        "how often torchrun restarts the ranks after a failure; with a static rendezvous: "
        "`relaunch.max`",
        COUNT,
        0,
    )
    monitor_interval: float | None = doc(
        "the interval at which it looks at its ranks", NULLABLE_SECONDS
    )
    rdzv_conf: Any = doc("more settings of the rendezvous", RDZV_CONF, dict)
    role: str | None = doc("a name for the ranks", TEXT)
    start_method: str | None = choice(
        "how it makes processes", "spawn", "fork", "forkserver", null=True
    )
    signals_to_handle: Any = doc("the signals that it forwards", SIGNALS)
    numa_binding: str | None = choice(
        "binds ranks to the cores near their GPU",
        "node",
        "socket",
        "exclusive",
        "core-complex",
        null=True,
    )
    shutdown_timeout: int | None = doc(
        "the time it waits for its ranks to end; null: somewhat longer than `grace_s`",
        NULLABLE_WHOLE_SECONDS,
    )


@dataclass
class RelaunchConfig:
    """Relaunch: a new attempt on all nodes after an attempt failed."""

    max: int = doc("the largest number of relaunches", COUNT, 0)
    backoff_s: float = doc(
        "the pause before the first relaunch; each one after doubles it", SECONDS, 5.0
    )


@dataclass
class DeployConfig:
    """Limits of pushed code."""

    max_mb: int = doc("the largest size of the code, in megabytes", POSITIVE, 200)
    keep: int = doc("the number of old releases that stay on the hosts", COUNT, 3)


@dataclass
class WatchConfig:
    """Hang watchdog: a run hangs when no rank prints, computes, or reads or writes files."""

    stall_s: Any = doc("the run reports a hang after this time", SECONDS_OR_OFF, 300.0)
    action: str = choice(
        "report shows where every rank is; stop also ends the run, restart relaunches it",
        "report",
        "stop",
        "restart",
    )
    metrics: Any = doc(
        "files the ranks write a line to per step; where named, nothing else is progress",
        METRICS,
        list,
    )
    stacks: str = choice(
        "auto has ranks load a `sitecustomize` by which their stacks can be had without py-spy",
        "auto",
        "never",
    )


@dataclass
class ProgressConfig:
    """Progress of the ranks: the bar, `ps` and `metrics.jsonl` show what they print of it."""

    pattern: str | None = doc(
        "for programs that print no metrics lines: a group for the step, one for all steps",
        LINE_PATTERN,
    )


@dataclass
class RunnerConfig:
    """The whole configuration, large on purpose: a field for each key of the top level."""

    cluster: ClusterConfig = section(ClusterConfig, "the machines")
    task: TaskConfig = section(TaskConfig, "the program")
    rendezvous: RendezvousConfig = section(RendezvousConfig, "how the nodes find each other")
    container: ContainerConfig = section(ContainerConfig, "the container that ranks run in")
    torchrun: TorchrunConfig = section(TorchrunConfig, "options of torchrun")
    relaunch: RelaunchConfig = section(RelaunchConfig, "new attempts after a failure")
    dry_run: Any = doc(
        "true prints the commands of each host, offline without asking any; json prints the plan",
        "false, true, offline, json or [offline, json]",
        False,
    )
    run_id: str | None = doc("the name of the run; null: one is made, MMDD-HHMM-TASK-xxxx", RUN_ID)
    run_dir: str = doc("the record of the run on this machine", PATH, "runs/${run_id}")
    rerun: str | None = doc(
        "repeat a past run with its recorded configuration and code; on the command line only",
        "name of a run in runs, latest, path of its folder, or null",
    )
    ui: str = choice(
        "plain: lines only, as for a file; raw: those with the escape sequences of the programs",
        *("auto", "plain", "raw"),
    )
    deploy: DeployConfig = section(DeployConfig, "limits of pushed code")
    pull_outputs: str = choice(
        "auto downloads `task.outputs` at the end of a watched run; never leaves it to `pull`",
        "auto",
        "never",
    )
    skip_checks: Any = doc(
        "checks to leave out", "list of names such as [gpus]; `check` has all", list
    )
    console_ranks: Any = doc(
        "the ranks whose output the console shows; the files hold all of it", RANKS, "all"
    )
    watch: WatchConfig = section(WatchConfig, "the hang watchdog")
    progress: ProgressConfig = section(ProgressConfig, "what ranks print of their progress")
    grace_s: float = doc("the time from TERM to KILL when a run is stopped", SECONDS, 15.0)
    lost_s: float = doc("a host counts as lost after this time without a heartbeat", SECONDS, 15.0)
    disconnect_s: Any = doc(
        "after this time without the launch or another agent connected, the hosts stop the run; "
        "never: it goes on",
        SECONDS_OR_NEVER,
        600.0,
    )
    detach: bool = doc(
        "return once every rank runs, and leave the run to the hosts", "true or false", False
    )


SECTIONS: Mapping[str, type] = {
    "": RunnerConfig,
    "cluster": ClusterConfig,
    "cluster.nodes.NODE": NodeConfig,
    "cluster.ssh": SshConfig,
    "task": TaskConfig,
    "rendezvous": RendezvousConfig,
    "container": ContainerConfig,
    "torchrun": TorchrunConfig,
    "relaunch": RelaunchConfig,
    "deploy": DeployConfig,
    "watch": WatchConfig,
    "progress": ProgressConfig,
}
"""Every dataclass of the schema by the key it stands below."""
