"""A cluster that Slurm schedules: what its YAML asks of a job, and what the job has."""

from __future__ import annotations

from typing import Any

import pytest

from runner.core.spec import Node, SlurmSpec, Spec
from tests.unit.config import test_config

SLURM: dict[str, Any] = {"cluster.scheduler": "slurm", "cluster.nodes": 4}
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "n[1-3],m5",
}


def spec_of(changes: dict[str, Any], environ: dict[str, str] | None = None) -> Spec:
    return test_config.spec_of({**SLURM, **changes}, environ or {})


def test_outside_of_a_job_there_is_this_machine_alone() -> None:
    """And what is asked for; null is left to the site."""
    spec = spec_of({"cluster.gpus_per_node": 8, "cluster.nproc_per_node": 4})
    here = Node(name="login", host="login", transport="local", gpus=8, nproc_per_node=4)
    assert (spec.nodes, spec.spares, spec.min_nodes) == ((here,), (), None)
    assert spec.slurm == SlurmSpec(nodes="4", nnodes=4)
    assert test_config.spec_of({"cluster.slurm.partition": "gpu"}).slurm is None


def test_inside_of_a_job_there_are_its_nodes() -> None:
    """In its order, not more of an allocation than are wanted."""
    spec = spec_of({"cluster.nodes": 3, "cluster.exclude": ["gone"]}, JOB)
    assert [node.name for node in spec.nodes] == ["n1", "n2", "n3"]
    assert {node.transport for node in spec.nodes} == {"srun"}
    assert spec.cluster.slurm.job_id == "7"


@pytest.mark.parametrize(
    ("cluster", "task", "relaunch", "expected"),
    [
        (3, None, 2, ("3", 3, 0, None)),
        ("2:4", None, 0, ("2-4", 4, 0, 2)),
        (3, 2, 0, ("2", 2, 0, None)),
        (3, 2, 1, ("3", 2, 1, None)),
        (3, 4, 1, ("4", 4, 0, None)),
        (4, "2:3", 1, ("2-3", 3, 0, 2)),
    ],
)
def test_how_many_nodes_a_job_gets(
    cluster: object, task: object, relaunch: int, expected: tuple[str, int, int, int | None]
) -> None:
    """The task's number counts; what the cluster has beyond it is spare if the run relaunches."""
    changes = {"cluster.nodes": cluster, "task.nnodes": task, "relaunch.max": relaunch}
    changes["rendezvous.backend"] = "c10d"
    asked = spec_of(changes).cluster.slurm.nodes
    spec = spec_of(changes, JOB)
    assert (asked, len(spec.nodes), len(spec.spares), spec.min_nodes) == expected
