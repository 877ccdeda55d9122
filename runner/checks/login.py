"""Whether every host answers, and our part runs there."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level


def reach(case: Case) -> Iterator[Finding]:
    """An error for each host that does not."""
    for node in case.spec.nodes:
        if node.name in case.silent:
            yield Finding.of(case.silent[node.name])
        else:
            facts = case.facts[node.name]
            yield Finding(Level.FINE, node.name, f"as {facts.user}")
