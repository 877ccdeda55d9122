"""Commands of the launchers that are compared."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.hosts import Cluster

PORT = 29511
TORCHRUN = "torchrun"


@dataclass(frozen=True)
class Launcher:
    """One launcher.

    Attributes:
        name: What the tables call it.
        starts: What it starts on a host: torchrun, or the ranks themselves.
        launch: Returns its command for ranks, one per node: given the cluster, the programs of its
            environment, and the words after `rank.py`.
        execute: Returns its command for `true` on every node.
        distribution: What PyPI has it as, unless it is the runner or a program of the system.
        package: The system's package.
        needs_torch: Whether its environment has to see torch.
        interrupts: How often one has to press Ctrl-C within a second.
        only: The scenes that it is there for, if not for all.
    """

    name: str
    starts: str
    launch: Callable[[Cluster, Path, Sequence[str]], list[str]] | None = None
    execute: Callable[[Cluster, Path], list[str]] | None = None
    distribution: str = ""
    package: str = ""
    needs_torch: bool = False
    interrupts: int = 1
    only: tuple[str, ...] = ()


def torchrun(cluster: Cluster, words: Sequence[str], rank: str) -> str:
    """Return the shell command that starts torchrun on a host, as one types it by hand."""
    return (
        f"cd {cluster.project} && OMP_NUM_THREADS=1 {sys.executable} -m torch.distributed.run "
        f"--nnodes={cluster.world_size} --nproc_per_node=1 --node_rank={rank} "
        f"--master_addr={cluster.master} --master_port={PORT} rank.py {shlex.join(words)}"
    )


def torchrun_by_hostname(cluster: Cluster, words: Sequence[str]) -> str:
    """Return one that is the same for all hosts: node1 has rank 0."""
    return torchrun(cluster, words, "$((${HOSTNAME#node} - 1))")


def runner(cluster: Cluster, programs: Path, words: Sequence[str], *keys: str) -> list[str]:
    """Ours."""
    del programs
    settings = ["cluster=lab", "task.script=rank.py", "cluster.nproc_per_node=1", *keys]
    flags = ["--config-dir", str(cluster.conf)]
    return [sys.executable, "-m", "runner", *flags, *settings, "--", *words]


def runner_plain(cluster: Cluster, programs: Path, words: Sequence[str]) -> list[str]:
    """Ours, without torchrun."""
    return runner(cluster, programs, words, "task.entry=plain")


def runner_alone(cluster: Cluster, programs: Path, words: Sequence[str]) -> list[str]:
    """Ours, where a run may be without its launch for 5 s only."""
    return runner(cluster, programs, words, "disconnect_s=5")


def runner_exec(cluster: Cluster, programs: Path) -> list[str]:
    """Our verb."""
    del programs
    flags = ["--cluster", "lab", "--config-dir", str(cluster.conf)]
    return [sys.executable, "-m", "runner", "exec", *flags, "--", "true"]


def ssh_script(cluster: Cluster, commands: Sequence[str]) -> list[str]:
    """A shell script with one ssh per node, side by side."""
    lines = [
        f"ssh {name} {shlex.quote(command)} &"
        for name, command in zip(cluster.nodes, commands, strict=True)
    ]
    script = cluster.project / "by_hand.sh"
    script.write_text("\n".join([*lines, "for job in $(jobs -p); do wait $job || exit 1; done\n"]))
    return ["bash", str(script)]


def ssh(cluster: Cluster, programs: Path, words: Sequence[str]) -> list[str]:
    """By hand."""
    del programs
    ranks = range(cluster.world_size)
    return ssh_script(cluster, [torchrun(cluster, words, str(rank)) for rank in ranks])


def ssh_true(cluster: Cluster, programs: Path) -> list[str]:
    """By hand."""
    del programs
    return ssh_script(cluster, ["true"] * cluster.world_size)


def fan_out(cluster: Cluster, programs: Path, name: str, command: str) -> list[str]:
    """Return the command line of a program that runs one command on all hosts."""
    hosts = ",".join(cluster.nodes)
    return {
        "clush": [str(programs / "clush"), "-f", "64", "-w", hosts, command],
        "pdsh": ["pdsh", "-R", "ssh", "-f", "64", "-w", hosts, command],
        "Fabric": [str(programs / "python"), "with_fabric.py", hosts, command],
    }[name]


def by_fan_out(
    name: str, *, distribution: str = "", package: str = "", interrupts: int = 1
) -> Launcher:
    """Return the launcher that such a program makes together with torchrun."""
    return Launcher(
        name,
        TORCHRUN,
        lambda cluster, programs, words: fan_out(
            cluster, programs, name, torchrun_by_hostname(cluster, words)
        ),
        lambda cluster, programs: fan_out(cluster, programs, name, "true"),
        distribution=distribution,
        package=package,
        interrupts=interrupts,
    )


def torchrunx(cluster: Cluster, programs: Path, words: Sequence[str]) -> list[str]:
    """A Python function on every host."""
    python = str(programs / "python")
    return [python, "with_torchrunx.py", ",".join(cluster.nodes), *words]


def deepspeed(cluster: Cluster, programs: Path, words: Sequence[str]) -> list[str]:
    """Its own launcher on every host, started by pdsh."""
    hostfile = cluster.folder / "hostfile"
    hostfile.write_text("".join(f"{name} slots=1\n" for name in cluster.nodes))
    flags = ["--hostfile", str(hostfile), "--master_port", str(PORT), "--no_local_rank"]
    return [str(programs / "python"), str(programs / "deepspeed"), *flags, "rank.py", *words]


def mpirun(cluster: Cluster, words: Sequence[str]) -> list[str]:
    """Open MPI over ssh; every lab host has the same two cores, hence no binding."""
    hosts = ",".join(f"{name}:1" for name in cluster.nodes)
    flags = ["-np", str(cluster.world_size), "--bind-to", "none"]
    return ["mpirun", "--host", hosts, *flags, "--mca", "plm_rsh_no_tree_spawn", "1", *words]


LAUNCHERS = (
    Launcher("runner", TORCHRUN, runner, runner_exec),
    Launcher("runner, entry: plain", "ranks", runner_plain, only=("launch", "lines")),
    Launcher("runner, disconnect_s: 5", TORCHRUN, runner_alone, only=("kill",)),
    Launcher("torchrunx", "ranks", torchrunx, distribution="torchrunx", needs_torch=True),
    Launcher(
        "DeepSpeed", "ranks", deepspeed, distribution="deepspeed", package="pdsh", needs_torch=True
    ),
    Launcher(
        "mpirun",
        "ranks",
        lambda cluster, _, words: mpirun(cluster, [sys.executable, "rank.py", *words]),
        lambda cluster, _: mpirun(cluster, ["true"]),
        package="openmpi-bin",
    ),
    by_fan_out("clush", distribution="ClusterShell"),
    by_fan_out("pdsh", package="pdsh", interrupts=2),
    by_fan_out("Fabric", distribution="fabric"),
    Launcher("ssh", TORCHRUN, ssh, ssh_true),
)
"""All, in the order of the tables."""
