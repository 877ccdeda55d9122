"""Configuration schema: every key with its default, legal values and help."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

TEXT, PATH, SECONDS = "text", "path", "seconds, more than 0"
ENV_MAPPING = "mapping of names to texts, numbers or bools"
VARIABLE_NAMES = "list of names of variables"
NODE_RANGES = "list of names and ranges"


def doc(default: Any, help_text: str, legal: str = TEXT) -> Any:
    """Return a dataclass field with its help; a class as the default is the factory."""
    metadata = {"help": help_text, "legal": legal}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@dataclass
class SshConfig:
    """SSH connections to the hosts; null leaves the choice to your `~/.ssh/config`."""

    user: str | None = doc(None, "the login name, unless a node has its own", "text or null")
    port: int | None = doc(None, "the SSH port, unless a node has its own", "1 to 65535 or null")
    key: str | None = doc(None, "the private key to log in with", "path of a file here, or null")
    config: str = doc("~/.ssh/config", "your ssh configuration, on this machine", PATH)
    jump: Any = doc(
        None, "the hosts to go through, as ssh -J takes them", "text, list of texts or null"
    )
    known_hosts: str = doc("~/.ssh/known_hosts", "where host keys are looked up", PATH)
    host_keys: str = doc(
        "strict",
        "strict refuses a host whose key is not known; accept-new learns it",
        "strict or accept-new",
    )
    connect_timeout: float = doc(10.0, "the time one host may take to answer", SECONDS)


@dataclass
class NodeConfig:
    """One machine: its name is a name or a range such as `gpu[01-16]`.

    A later entry for a member of a range adds to it and wins.
    """

    host: str | None = doc(
        None, "the SSH name or address; null: the name of the node", "name, address or null"
    )
    addr: str | None = doc(
        None, "the address at which other nodes reach it; null: detected", "name, address or null"
    )
    user: str | None = doc(None, "the login name; null: as `cluster.ssh.user`", "text or null")
    port: int | None = doc(None, "the SSH port; null: as `cluster.ssh.port`", "1 to 65535 or null")
    gpus: Any = doc(
        "",
        "how many GPUs to use, or which; left out: as `cluster.gpus_per_node`",
        "number from 0, list of devices such as [0, 2], or auto",
    )
    nproc_per_node: Any = doc(
        "", "ranks on it; left out: as `cluster.nproc_per_node`", "number from 1, or auto"
    )
    env: Any = doc(dict, "environment of its ranks, over the cluster's", ENV_MAPPING)
    transport: str | None = doc(None, "null: as `cluster.transport`", "ssh, local or null")
    interface: str | None = doc(
        None, "the network interface for training traffic; null: detected", "text or null"
    )


@dataclass
class ClusterConfig:
    """The keys of the files in `conf/cluster`, many on purpose: machines, and how they are used."""

    transport: str = doc(
        "ssh", "local starts processes on this machine in place of SSH", "ssh or local"
    )
    backend: str = doc(
        "auto",
        "what ranks talk over, in DIST_BACKEND; auto: nccl where every node has a GPU per rank",
        "auto, nccl or gloo",
    )
    gpus_per_node: Any = doc("auto", "GPUs to use; auto: all of them", "number from 0, or auto")
    nproc_per_node: Any = doc(
        "auto", "ranks; auto: one per GPU, one where there is none", "number from 1, or auto"
    )
    master: str | None = doc(
        None, "the node of rank 0; null: the first one used", "name of a node, or null"
    )
    master_port: Any = doc(
        "auto",
        "the port of the rendezvous; auto: a free port. A range is for firewalls",
        "port, range such as 29500-29600, or auto",
    )
    nodes: Any = doc(dict, "the machines, in rank order", "mapping of names or ranges to nodes")
    only: Any = doc(list, "the nodes to use; empty: all", NODE_RANGES)
    exclude: Any = doc(list, "nodes to leave out", NODE_RANGES)
    ssh: SshConfig = doc(SshConfig, "how the hosts are logged in to", "see below")
    python: str = doc("python3", "the interpreter of the task on the hosts: it has torch", PATH)
    host_python: str = doc(
        "${.python}",
        "the interpreter of the agent and the supervisor on the hosts, 3.8 or newer",
        PATH,
    )
    setup: Any = doc(
        list,
        "lines for bash, once per host before the task, such as `module load cuda`",
        "list of texts",
    )
    project: str | None = doc(
        None,
        "null pushes the code you stand in; a path names its folder on the hosts, `.` the same "
        "path as here",
        "path or null",
    )
    workdir: str = doc("~/.runner", "where runs are kept on the hosts", PATH)
    env: Any = doc(dict, "environment of all ranks; null takes a name out", ENV_MAPPING)
    pass_env: Any = doc(list, "variables to copy from your environment; on record", VARIABLE_NAMES)
    secrets: Any = doc(list, "the same, but never written anywhere", VARIABLE_NAMES)


@dataclass
class TaskConfig:
    """The keys of the files in `conf/task`: a program, as one of module, script and command."""

    module: str | None = doc(
        None, "a Python module, as for `python -m`", "name such as package.train, or null"
    )
    script: str | None = doc(
        None, "a Python file, relative to the folder you stand in", "path or null"
    )
    command: Any = doc(
        None, "a program other than Python, without a shell", "text, list of texts or null"
    )
    args: Any = doc(
        None,
        "the arguments: `lr: 0.1` is `--lr 0.1`, true a flag alone, a list several values",
        "mapping; text or list of texts where args_style is raw; or null",
    )
    entry: str = doc(
        "torchrun",
        "what starts the ranks; launch is torch.distributed.launch, plain one process per node "
        "without torch's launcher",
        "torchrun, launch or plain",
    )
    local_rank_arg: str | None = doc(
        None,
        "a flag by which an old script takes its local rank, such as `--local_rank`",
        "text, or null",
    )
    args_style: str = doc(
        "argparse", "hydra makes `lr=0.1` of it; raw keeps words", "argparse, hydra or raw"
    )
    env: Any = doc(dict, "environment of the ranks, over the cluster's and the node's", ENV_MAPPING)
    outputs: Any = doc(
        list,
        "what to bring home of what ranks leave where they run; of a folder all; `**`: any folders",
        "list of paths or patterns such as results/*.pt",
    )
    nodes: Any = doc(list, "the nodes to use; empty: all of the cluster", NODE_RANGES)
    nnodes: Any = doc(
        None,
        "how many nodes to use, the first ones; null: all; `2:4`: what of 2 to 4 is there",
        "number from 1, range such as 2:4, or null",
    )


@dataclass
class RendezvousConfig:
    """The keys of the files in `conf/rendezvous`: how the nodes of a run find each other."""

    backend: str = doc(
        "static",
        "static: the plan assigns the ranks; otherwise torch does, again whenever a node joins or "
        "leaves",
        "static, standalone, c10d, etcd or etcd-v2",
    )
    endpoint: str | None = doc(
        None, "where etcd listens; it has to speak its v2 API", "HOST:PORT, or null"
    )
    serve: str | None = doc(
        None, "the node that runs etcd for as long as the run", "name of a node, or null"
    )


@dataclass
class TorchrunConfig:
    """Options of torchrun, by its own names; null leaves the choice to torchrun."""

    max_restarts: int = doc(
        0,
        "how often torchrun restarts the ranks after a failure; with a static rendezvous: "
        "`relaunch.max`",
        "whole number from 0",
    )
    monitor_interval: float | None = doc(
        None, "the interval at which it looks at its ranks", "seconds, more than 0, or null"
    )
    rdzv_conf: Any = doc(
        dict, "more settings of the rendezvous", "mapping such as {join_timeout: 600}"
    )
    role: str | None = doc(None, "a name for the ranks", "text, or null")
    start_method: str | None = doc(
        None, "how it makes processes", "spawn, fork, forkserver or null"
    )
    signals_to_handle: Any = doc(
        None, "the signals that it forwards", "list such as [SIGTERM, SIGUSR1], or null"
    )
    numa_binding: str | None = doc(
        None,
        "binds ranks to the cores near their GPU",
        "node, socket, exclusive, core-complex or null",
    )
    shutdown_timeout: int | None = doc(
        None,
        "the time it waits for its ranks to end; null: somewhat longer than `grace_s`",
        "whole seconds from 1, or null",
    )


@dataclass
class RelaunchConfig:
    """Relaunch: a new attempt on all nodes after an attempt failed."""

    max: int = doc(0, "the largest number of relaunches", "whole number from 0")
    backoff_s: float = doc(
        5.0, "the pause before the first relaunch; each one after doubles it", SECONDS
    )


@dataclass
class DeployConfig:
    """Limits of pushed code."""

    max_mb: int = doc(200, "the largest size of the code, in megabytes", "whole number from 1")
    keep: int = doc(3, "the number of old releases that stay on the hosts", "whole number from 0")


@dataclass
class WatchConfig:
    """Hang watchdog: a run hangs when no rank prints, computes, or reads or writes files."""

    stall_s: Any = doc(
        300.0, "the run reports a hang after this time", "seconds, more than 0, or off"
    )
    action: str = doc(
        "report",
        "report shows where every rank is; stop also ends the run, restart relaunches it",
        "report, stop or restart",
    )
    metrics: Any = doc(
        list,
        "files the ranks write a line to per step; where named, nothing else is progress",
        "list of paths or patterns such as metrics.jsonl",
    )
    stacks: str = doc(
        "auto",
        "auto has ranks load a `sitecustomize` by which their stacks can be had without py-spy",
        "auto or never",
    )


@dataclass
class RunnerConfig:
    """The whole configuration, large on purpose: a field for each key of the top level."""

    cluster: ClusterConfig = doc(ClusterConfig, "the machines", "see below")
    task: TaskConfig = doc(TaskConfig, "the program", "see below")
    rendezvous: RendezvousConfig = doc(
        RendezvousConfig, "how the nodes find each other", "see below"
    )
    torchrun: TorchrunConfig = doc(TorchrunConfig, "options of torchrun", "see below")
    relaunch: RelaunchConfig = doc(RelaunchConfig, "new attempts after a failure", "see below")
    dry_run: Any = doc(
        False,
        "true prints the commands of each host, offline without asking any; json prints the plan",
        "false, true, offline, json or [offline, json]",
    )
    run_id: str | None = doc(
        None,
        "the name of the run; null: one is made, MMDD-HHMM-TASK-xxxx",
        "up to 63 of a-z, 0-9 and '-', or null",
    )
    run_dir: str = doc("runs/${run_id}", "the record of the run on this machine", PATH)
    rerun: str | None = doc(
        None,
        "repeat a past run with its recorded configuration and code; on the command line only",
        "name of a run in runs, latest, path of its folder, or null",
    )
    ui: str = doc("auto", "plain: lines only, as for a file", "auto or plain")
    deploy: DeployConfig = doc(DeployConfig, "limits of pushed code", "see below")
    pull_outputs: str = doc(
        "auto",
        "auto downloads `task.outputs` at the end of a watched run; never leaves it to `pull`",
        "auto or never",
    )
    skip_checks: Any = doc(
        list, "checks to leave out", "list of names such as [gpus]; `check` has all"
    )
    console_ranks: Any = doc(
        "all",
        "the ranks whose output the console shows; the files hold all of it",
        "all, a rank, or a list such as [0, 3]",
    )
    watch: WatchConfig = doc(WatchConfig, "the hang watchdog", "see below")
    grace_s: float = doc(15.0, "the time from TERM to KILL when a run is stopped", SECONDS)
    lost_s: float = doc(15.0, "a host counts as lost after this time without a heartbeat", SECONDS)
    disconnect_s: Any = doc(
        600.0,
        "after this time without the launch or another agent connected, the hosts stop the run; "
        "never: it goes on",
        "seconds, more than 0, or never",
    )
    detach: bool = doc(
        False, "return once every rank runs, and leave the run to the hosts", "true or false"
    )


SECTIONS: Mapping[str, type] = {
    "": RunnerConfig,
    "cluster": ClusterConfig,
    "cluster.nodes.NODE": NodeConfig,
    "cluster.ssh": SshConfig,
    "task": TaskConfig,
    "rendezvous": RendezvousConfig,
    "torchrun": TorchrunConfig,
    "relaunch": RelaunchConfig,
    "deploy": DeployConfig,
    "watch": WatchConfig,
}
"""Every dataclass of the schema by the key it stands below."""


def register() -> None:
    """Register the schema with Hydra, as `runner_base`, `cluster/base` and so on."""
    store = ConfigStore.instance()
    store.store(name="runner_base", node=_accept_any_key(OmegaConf.structured(RunnerConfig)))
    store.store(
        group="cluster", name="base", node=_accept_any_key(OmegaConf.structured(ClusterConfig))
    )
    store.store(group="task", name="base", node=_accept_any_key(OmegaConf.structured(TaskConfig)))
    store.store(
        group="rendezvous",
        name="base",
        node=_accept_any_key(OmegaConf.structured(RendezvousConfig)),
    )
    # For clusters of this machine: the first python3 on PATH may lack torch.
    OmegaConf.register_new_resolver("this_python", lambda: sys.executable, replace=True)


def with_defaults(config: DictConfig) -> DictConfig:
    """Return a configuration with every key of the schema, including those that ~KEY removed."""
    merged = OmegaConf.merge(_accept_any_key(OmegaConf.structured(RunnerConfig)), config)
    assert isinstance(merged, DictConfig)  # noqa: S101 (for mypy: a mapping was merged)
    return merged


def _accept_any_key(config: DictConfig) -> DictConfig:
    """Open a schema to any key: after composition all unknown ones are reported at once."""
    OmegaConf.set_struct(config, value=False)
    for node in config.values():
        if isinstance(node, DictConfig):
            _accept_any_key(node)
    return config
