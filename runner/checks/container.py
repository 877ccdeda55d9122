"""Check of the container for a run: its engine on each host, and the image there."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, ok
from runner.core.model.results import Finding


@check(25, at_launch=True)
def container(context: CheckContext) -> Iterator[Finding]:
    """Report an error where engine or image cannot be used; nothing without a container."""
    spec = context.spec.container
    for node, facts in context.ready if spec else ():
        if errors := context.unmet("container", node):
            yield from errors
            continue
        version = facts.container.engine.output.strip()
        made_for = facts.container.image.output.strip()
        yield ok(node.name, f"{spec.engine} {version}, {spec.image} for {made_for}")
