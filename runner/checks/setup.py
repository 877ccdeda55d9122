"""Whether the lines of `cluster.setup` run through."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import setup_problems


def setup(context: CheckContext) -> Iterator[Finding]:
    """An error for each host where they do not; without such lines there is nothing to say."""
    for node in context.spec.nodes:
        if node.name not in context.facts:
            continue
        for problem in setup_problems(node, context.facts[node.name]):
            message = f"{problem.message}; the host is not looked at any further"
            quoted = [f"| {line}" for line in problem.hint.splitlines()]
            hint = "\n".join([*quoted, "change cluster.setup, or what it needs there"])
            yield Finding(Level.ERROR, node.name, message, hint)
