"""Schema of a cluster: its machines, how they are logged in to, and how they are used."""

# ruff: noqa: RUF009 (`doc` makes a field, as `dataclasses.field` does)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from runner.config.schema.fields import (
    ADDRESS,
    ENV_MAPPING,
    GPU_COUNT,
    GPUS,
    JUMP,
    KEY_FILE,
    NODE_RANGES,
    NULLABLE_PORT,
    NULLABLE_TEXT,
    PATH,
    PORTS,
    RANK_COUNT,
    SECONDS,
    TEXTS,
    VARIABLE_NAMES,
    choice,
    doc,
    section,
)
from runner.config.schema.slurm import SlurmConfig
from runner.core.protocol.paths import USUAL_WORKDIR


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
    scheduler: str = choice(
        "what starts the supervisors: direct does it over the transport; slurm submits a job",
        "direct",
        "slurm",
    )
    login_node: str | None = doc(
        "with slurm over ssh: the SSH name or address of the machine that has sbatch", ADDRESS
    )
    slurm: SlurmConfig = section(SlurmConfig, "what a job asks of Slurm")
    backend: str = choice(
        "what ranks talk over, in DIST_BACKEND; auto: nccl where every node has a GPU per rank",
        "auto",
        "nccl",
        "gloo",
        *("hccl", "xccl", "cncl", "mccl", "ucc"),
    )
    gpus_per_node: Any = doc("NVIDIA GPUs to use; auto: all of them", GPU_COUNT, "auto")
    nproc_per_node: Any = doc(
        "ranks; auto: one per GPU, one where there is none", RANK_COUNT, "auto"
    )
    master: str | None = doc(
        "the node of rank 0; null: the first one used", "name of a node, or null"
    )
    master_port: Any = doc(
        "the port of the rendezvous; auto: a free one. A range is for firewalls; NCCL uses others",
        PORTS,
        "auto",
    )
    nodes: Any = doc(
        "the machines, in rank order; with slurm: how many",
        "mapping of names or ranges to nodes, or number",
        dict,
    )
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
