"""Check of the container for a run: its engine on each host, and the image there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.base import CheckContext, check, ok, used_gpus, warning
from runner.core.model.facts import Facts
from runner.core.model.results import Finding, Level
from runner.core.planning.container.problems import awaits_image
from runner.core.spec import Node

DEFAULT_SHM_BYTES = 64 << 20  # what docker and podman give


@check(25, at_launch=True)
def container(context: CheckContext) -> Iterator[Finding]:
    """Report an error where engine or image cannot be used; nothing without a container."""
    spec = context.spec.container
    for node, facts in context.ready if spec else ():
        if errors := context.unmet("container", node):
            level = Level.WARNING if awaits_image(context.spec, facts) else Level.ERROR
            yield from (replace(each, level=level) for each in errors)
            continue
        yield ok(node.name, _found(context, facts))
        yield from _inside_findings(context, node, facts)


def _found(context: CheckContext, facts: Facts) -> str:
    spec, answers = context.spec.container, facts.container
    address, made_for = answers.endpoint.output.strip(), answers.image.output.strip()
    at = f" ({answers.program}{f', {address}' if address else ''})"
    version = answers.engine.output.strip()
    return f"{spec.engine} {version}{at}, {spec.image}{f' for {made_for}' if made_for else ''}"


def _inside_findings(context: CheckContext, node: Node, facts: Facts) -> Iterator[Finding]:
    """Warn of what a container lacks that only a large training misses."""
    inside, ranks = facts.container.inside, _ranks(context, node, facts)
    if ranks > 1 and 0 < inside.shm_bytes <= DEFAULT_SHM_BYTES:
        message = (
            f"container.shm_size: /dev/shm in the container has {inside.shm_bytes >> 20} MiB for "
            f"{ranks} ranks: when it is full, data loader workers and NCCL die of SIGBUS"
        )
        yield warning(node.name, message, "set container.shm_size=16g, or container.ipc=host")
    if facts.system.infiniband and not inside.has_verbs:
        message = "this host has InfiniBand, and the image no libibverbs: NCCL would use sockets"
        hint = "add it to the image, in Debian's: apt-get install libibverbs1 ibverbs-providers"
        yield warning(node.name, message, hint)


def _ranks(context: CheckContext, node: Node, facts: Facts) -> int:
    return 1 if context.spec.task.is_plain else node.nproc_per_node or len(used_gpus(node, facts))
