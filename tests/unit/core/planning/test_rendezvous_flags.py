"""torchrun's rendezvous flags, for every backend."""

from __future__ import annotations

from dataclasses import replace

import pytest

from runner.core.planning.rendezvous_flags import NodePosition, flags
from runner.core.spec import Cluster, Node, Rendezvous, Spec, Task, Torchrun

SPEC = Spec(
    run_id="0102-0304-x-abcd",
    cluster=Cluster(name="lab"),
    nodes=(Node("a", "10.0.0.1"), Node("b", "10.0.0.2")),
    task=Task(name="t", kind="script", target="t.py"),
)
HERE = NodePosition(1, 4, "10.0.0.1", 29500, "10.0.0.2")


def by(backend: str, endpoint: str = "") -> Spec:
    way = Rendezvous(backend, endpoint)
    return replace(SPEC, rendezvous=way, torchrun=Torchrun(max_restarts=3))


@pytest.mark.parametrize(
    ("spec", "place", "expected"),
    [
        pytest.param(
            by("static"),
            HERE,
            "--nnodes=2 --nproc_per_node=4 --node_rank=1 --master_addr=10.0.0.1 "
            "--master_port=29500 --rdzv_id=0102-0304-x-abcd --max_restarts=0",
            id="static: torch's store keeps stale keys, so it never restarts",
        ),
        pytest.param(
            by("c10d"),
            HERE,
            "--nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=10.0.0.1:29500 "
            "--rdzv_id=0102-0304-x-abcd --rdzv_conf=is_host=0 --local_addr=10.0.0.2 "
            "--max_restarts=3",
            id="c10d",
        ),
        pytest.param(
            replace(by("c10d"), min_nodes=1),
            NodePosition(0, 4, "fd00::1", 29500, "fd00::1"),
            "--nnodes=1:2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=[fd00::1]:29500 "
            "--rdzv_id=0102-0304-x-abcd --rdzv_conf=is_host=1 --local_addr=fd00::1 "
            "--max_restarts=3",
            id="c10d, elastic, its host, IPv6",
        ),
        pytest.param(
            by("standalone"),
            NodePosition(0, 4, "127.0.0.1", 0, "127.0.0.1"),
            "--standalone --nproc_per_node=4 --local_addr=127.0.0.1 --max_restarts=3",
            id="standalone",
        ),
    ],
)
def test_every_node_is_told_how_to_meet(spec: Spec, place: NodePosition, expected: str) -> None:
    """In the order a person would type it."""
    assert flags(spec, place) == tuple(expected.split())


def test_two_attempts_never_meet() -> None:
    """What is late of the first does not find the second."""
    first, second = (flags(by("c10d"), replace(HERE, attempt=attempt)) for attempt in (0, 1))

    assert "--rdzv_id=0102-0304-x-abcd" in first
    assert "--rdzv_id=0102-0304-x-abcd-1" in second
