"""Whether the lines of `cluster.setup` run through."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level
from runner.core.planning.readiness import setup_problems


def setup(case: Case) -> Iterator[Finding]:
    """An error for each host where they do not; without such lines there is nothing to say."""
    for node in case.spec.nodes:
        if node.name not in case.facts:
            continue
        for problem in setup_problems(node, case.facts[node.name]):
            what = f"{problem.what}; the host is not looked at any further"
            said = [f"| {line}" for line in problem.hint.splitlines()]
            hint = "\n".join([*said, "change cluster.setup, or what it needs there"])
            yield Finding(Level.ERROR, node.name, what, hint)
