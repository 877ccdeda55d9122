"""Whether the lines of `cluster.setup` run through."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.case import Case
from runner.core.finding import Finding
from runner.core.readiness import setup_problems


def setup(case: Case) -> Iterator[Finding]:
    """An error for each host where they do not; without such lines there is nothing to say."""
    for node in case.spec.nodes:
        if node.name in case.facts:
            yield from map(Finding.of, setup_problems(node, case.facts[node.name]))
