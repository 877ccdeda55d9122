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
    changes = {"cluster.slurm.time": None, "cluster.exclude": ["n1", "n[3-5]"]}
    assert spec_of(changes).slurm == SlurmSpec(nnodes=4, exclude="n1,n[3-5]")
    (here,) = spec_of({"cluster.transport": "local", "cluster.login_node": None}).nodes
    assert (here.name, here.transport) == ("login", "local")
    assert test_config.spec_of({"cluster.slurm.partition": "gpu"}).slurm is None


@pytest.mark.parametrize(
    ("cluster", "task", "relaunch", "expected"),
    [
        (3, None, 2, (3, 0, None)),
        ("2:4", None, 0, (4, 0, 2)),
        (3, 2, 0, (2, 0, None)),
        (3, 2, 1, (3, 1, None)),
        (3, 4, 1, (4, 0, None)),
        (4, "2:3", 1, (3, 0, 2)),
    ],
)
def test_how_many_nodes_a_job_gets(
    cluster: object, task: object, relaunch: int, expected: tuple[int, int, int | None]
) -> None:
    """The task's number counts; what the cluster has beyond it is spare if the run relaunches.

    A range of nodes has no spares: what is there takes part.
    """
    changes = {"cluster.nodes": cluster, "task.nnodes": task, "relaunch.max": relaunch}
    spec = spec_of({**changes, "rendezvous.backend": "c10d"})
    assert spec.slurm is not None
    assert (spec.slurm.nnodes, spec.slurm.spares, spec.min_nodes) == expected
