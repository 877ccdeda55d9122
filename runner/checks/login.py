"""Login on each host, and the start of our agent there."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level


def reach(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each host where either fails."""
    for node in context.spec.nodes:
        if node.name in context.unreachable:
            yield Finding.from_problem(context.unreachable[node.name])
        else:
            facts = context.facts[node.name]
            yield Finding(Level.OK, node.name, f"as {facts.user}")
