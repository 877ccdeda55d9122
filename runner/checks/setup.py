"""The lines of `cluster.setup`, as they ran on each host."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level


def setup(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each host where they failed."""
    for node in context.spec.nodes:
        if node.name not in context.facts:
            continue
        for error in context.unmet("setup", node):
            message = f"{error.message}; this host is not checked any further"
            quoted = [f"| {line}" for line in error.hint.splitlines()]
            hint = "\n".join([*quoted, "change cluster.setup, or install what it needs there"])
            yield Finding(Level.ERROR, node.name, message, hint)
