"""A cluster that Slurm schedules: what its YAML asks of a job."""

from __future__ import annotations

from typing import Any

import pytest

from runner.core.spec import Node, SlurmSpec, Spec
from tests.unit.config import test_config

SLURM: dict[str, Any] = {
    "cluster.scheduler": "slurm",
    "cluster.login_node": "hpc.example",
    "cluster.nodes": 4,
}


def spec_of(changes: dict[str, Any]) -> Spec:
    return test_config.spec_of({**SLURM, **changes})


def test_nodes_are_those_of_slurm() -> None:
    """The spec has the login node alone, and the job so many nodes; null is left to the site."""
    spec = spec_of({"cluster.gpus_per_node": 8, "cluster.nproc_per_node": 4})
    login = Node(name="login", host="hpc.example", gpus=8, nproc_per_node=4)
    assert (spec.nodes, spec.spares, spec.min_nodes) == ((login,), (), None)
    assert spec.slurm == SlurmSpec(nnodes=4)
    assert spec_of({"cluster.slurm.time": None}).slurm == SlurmSpec(nnodes=4)
    (here,) = spec_of({"cluster.transport": "local", "cluster.login_node": None}).nodes
    assert (here.name, here.transport) == ("login", "local")
    assert test_config.spec_of({"cluster.slurm.partition": "gpu"}).slurm is None


def test_every_key_reaches_the_job() -> None:
    """What the YAML says is what sbatch is asked for."""
    same: dict[str, Any] = {
        "partition": "gpu,long",
        "account": "acme",
        "qos": "high",
        "time": "1-12",
        "constraint": "a100&ib",
        "nodelist": "n[1-2]",
        "reservation": "course",
        "licenses": "foo:4",
        "gres": "gpu:a100:4",
        "cpus_per_rank": 6,
        "mem_per_rank": "8G",
        "signal": "SIGUSR2",
        "requeue": True,
    }
    changes = {f"cluster.slurm.{key}": value for key, value in same.items()}
    changes["cluster.slurm.signal_before"] = 120
    changes["cluster.slurm.srun"] = ["--container-image=a"]
    changes["cluster.slurm.extra"] = ["--exclusive", "--mail-type=END"]
    changes["cluster.exclude"] = ["n1", "n[3-5]"]
    assert spec_of(changes).slurm == SlurmSpec(
        nnodes=4,
        signal_before=120,
        srun=("--container-image=a",),
        extra=("--exclusive", "--mail-type=END"),
        exclude="n1,n[3-5]",
        **same,
    )


@pytest.mark.parametrize(
    ("cluster", "task", "relaunch", "expected"),
    [
        (3, None, 2, (3, 0, None)),
        ("2:4", None, 0, (4, 0, 2)),
        (3, 2, 0, (2, 0, None)),
        (3, 2, 1, (3, 1, None)),
        (3, 4, 1, (4, 0, None)),
        (3, "2:3", 0, (3, 0, 2)),
    ],
)
def test_how_many_nodes_a_job_gets(
    cluster: object, task: object, relaunch: int, expected: tuple[int, int, int | None]
) -> None:
    """The task's number counts; what the cluster has beyond it is spare if the run relaunches."""
    changes = {"cluster.nodes": cluster, "task.nnodes": task, "relaunch.max": relaunch}
    spec = spec_of({**changes, "rendezvous.backend": "c10d"})
    assert spec.slurm is not None
    assert (spec.slurm.nnodes, spec.slurm.spares, spec.min_nodes) == expected
