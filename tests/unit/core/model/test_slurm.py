"""A job of Slurm: its states in words, its part in those of runs, and its nodes in the spec."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.spec import Cluster, Node, SlurmSpec, Spec
from tests.golden.builders import spec


def in_slurm(spares: int = 0, min_nodes: int | None = None) -> Spec:
    login = Node("login", "hpc.example", user="ada", port=2222, gpus=8)
    slurm = SlurmSpec(nnodes=4, spares=spares)
    cluster = Cluster(scheduler="slurm", slurm=slurm)
    return replace(spec(login), cluster=cluster, min_nodes=min_nodes)


def test_nodes_of_a_job_are_reached_at_its_login_node() -> None:
    """By rank, each like the login node but in its name."""
    nodes = in_slurm().on_nodes(["n3", "n1"]).nodes
    login = in_slurm().nodes[0]
    assert nodes == tuple(replace(login, name=name, in_job=True) for name in ("n3", "n1"))


@pytest.mark.parametrize(
    ("spares", "min_nodes", "names", "used", "spare"),
    [
        (0, None, "abcd", "abcd", ""),
        (1, None, "abcd", "abc", "d"),
        (1, None, "abc", "abc", ""),
        (1, 2, "ab", "ab", ""),
    ],
)
def test_the_last_nodes_of_a_job_are_spares(
    spares: int, min_nodes: int | None, names: str, used: str, spare: str
) -> None:
    """An allocation may have fewer nodes than were asked for: then the ranks come first."""
    made = in_slurm(spares, min_nodes).on_nodes(list(names))
    assert "".join(node.name for node in made.nodes) == used
    assert "".join(node.name for node in made.spares) == spare
    assert made.max_nodes == (len(used) if min_nodes else None)
