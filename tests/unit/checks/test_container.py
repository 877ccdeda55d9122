"""The check of containers: what only a large training would miss is a warning."""

from __future__ import annotations

from dataclasses import replace

from runner.checks.base import CheckContext
from runner.checks.software import container
from runner.core.errors import Finding, Level
from runner.core.spec import ContainerSpec, Node
from runner.core.wire.container import ContainerFacts
from runner.core.wire.facts import System
from tests.golden.builders import facts, spec

MIB = 1 << 20


def findings(inside: ContainerFacts, *, nproc: int = 1, infiniband: bool = False) -> list[Finding]:
    """Those of a host whose image is there."""
    node = Node("gpu1", "gpu1", nproc_per_node=nproc)
    host = facts("gpu1", "eth0 10.0.0.1/24", container=inside)
    host = replace(host, system=System(infiniband=("mlx5_0",) if infiniband else ()))
    image = ContainerSpec(engine="docker", program="docker", image="train:1")
    return list(container(CheckContext(spec(node, container=image), {"gpu1": host})))


def test_what_is_used_is_named() -> None:
    """Program and image."""
    inside = ContainerFacts("start", program="/usr/bin/docker", shm_bytes=64 * MIB)
    (found,) = findings(inside)
    assert (found.level, found.message) == (Level.OK, "/usr/bin/docker, train:1")


def test_little_shared_memory_is_a_warning_for_several_ranks() -> None:
    """What the engine gives unasked."""
    _, found = findings(ContainerFacts(shm_bytes=64 * MIB), nproc=2)
    assert found.level is Level.WARNING
    assert "64 MiB for 2 ranks" in found.message
    assert "container.shm_size=16g" in found.hint
    assert len(findings(ContainerFacts(shm_bytes=1024 * MIB), nproc=2)) == 1
