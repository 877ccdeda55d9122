"""Configuration schema: every key with its default, legal values and help."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from runner.config.schema.cluster import ClusterConfig, NodeConfig, SshConfig
from runner.config.schema.container import ContainerConfig
from runner.config.schema.fields import (
    COUNT,
    ENDPOINT,
    ENV_MAPPING,
    LINE_PATTERN,
    METRICS,
    NODE_OR_MASTER,
    NODE_RANGES,
    NOTIFY,
    NULLABLE_PORT,
    NULLABLE_RANK,
    NULLABLE_SECONDS,
    NULLABLE_WHOLE_SECONDS,
    OUTPUTS,
    PATH,
    POSITIVE,
    PRELOAD,
    RANKS,
    RDZV_CONF,
    RUN_ID,
    SAMPLE_INTERVAL,
    SECONDS,
    SECONDS_OR_NEVER,
    SECONDS_OR_OFF,
    SIGNALS,
    TEXT,
    choice,
    doc,
    section,
)
from runner.config.schema.slurm import SlurmConfig
from runner.core.history.comparison import flat_config
from runner.core.planning.rendezvous_flags import BACKENDS

GROUPS = ("cluster", "task", "rendezvous", "container")


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
        "what starts the ranks; launch: torch.distributed.launch, plain: one process per node, "
        "srun: one per rank, as Slurm does",
        "torchrun",
        "launch",
        "plain",
        "srun",
    )
    local_rank_arg: str | None = doc(
        "a flag by which an old script takes its local rank, such as `--local_rank`", TEXT
    )
    args_style: str = choice(
        "equals makes `--lr=0.1` of it, hydra `lr=0.1`; raw keeps words",
        *("argparse", "equals", "hydra", "raw"),
    )
    preload: Any = doc(
        "imports these once per node, where ranks are then forked; true: torch and torch._dynamo",
        *(PRELOAD, False),
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
    decides: str | None = doc(
        "for entry plain: the node that decides the end; others are stopped then, as no failure",
        NODE_OR_MASTER,
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
        "the pause before the first relaunch; each one after doubles it, up to 300", SECONDS, 5.0
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
        "for programs that print neither JSON nor a usual form: groups step, loss and others",
        LINE_PATTERN,
    )


@dataclass
class DebugConfig:
    """A rank under a debugger, which it waits for before its first line."""

    rank: int | None = doc("start this rank under debugpy; the others wait for it", NULLABLE_RANK)
    port: int | None = doc(
        "where it listens, at 127.0.0.1 of its node; null: 5678", NULLABLE_PORT, 5678
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
        "plain: lines only, as for a file; raw: all of them, as the programs wrote them",
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
    sample_s: Any = doc(
        "how often `samples.jsonl` gets the load of hosts and GPUs while a run is on",
        *(SAMPLE_INTERVAL, 5.0),
    )
    progress: ProgressConfig = section(ProgressConfig, "what ranks print of their progress")
    debug: DebugConfig = section(DebugConfig, "a rank under a debugger")
    notify: Any = doc(
        "commands that are told of end, failure, relaunch and stall, as JSON; see see-a-run.md",
        *(NOTIFY, list),
    )
    grace_s: float = doc("the time from TERM to KILL when a run is stopped", SECONDS, 15.0)
    lost_s: float = doc("a host counts as lost after this time without a heartbeat", SECONDS, 15.0)
    disconnect_s: Any = doc(
        "for how long a run goes on without its launch and without attach; never: to its end",
        SECONDS_OR_NEVER,
        "never",
    )
    detach: bool = doc(
        "return once every rank runs, and leave the run to the hosts", "true or false", False
    )


SECTIONS: Mapping[str, type] = {
    "": RunnerConfig,
    "cluster": ClusterConfig,
    "cluster.nodes.NODE": NodeConfig,
    "cluster.ssh": SshConfig,
    "cluster.slurm": SlurmConfig,
    "task": TaskConfig,
    "rendezvous": RendezvousConfig,
    "container": ContainerConfig,
    "torchrun": TorchrunConfig,
    "relaunch": RelaunchConfig,
    "deploy": DeployConfig,
    "watch": WatchConfig,
    "debug": DebugConfig,
    "progress": ProgressConfig,
}
"""Every dataclass of the schema by the key it stands below."""


def default_values() -> dict[str, str]:
    """Return the default of each dotted key as a text."""
    return flat_config(asdict(RunnerConfig()))
