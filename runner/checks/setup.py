"""Whether the lines of `cluster.setup` run through."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level


def setup(context: CheckContext) -> Iterator[Finding]:
    """An error for each host where they do not; without such lines there is nothing to say."""
    for node in context.spec.nodes:
        if node.name not in context.facts:
            continue
        for error in context.unmet("setup", node):
            message = f"{error.message}; the host is not looked at any further"
            quoted = [f"| {line}" for line in error.hint.splitlines()]
            hint = "\n".join([*quoted, "change cluster.setup, or what it needs there"])
            yield Finding(Level.ERROR, node.name, message, hint)
