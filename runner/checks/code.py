"""Check of the release on the hosts: present, absent, or damaged since it was pushed."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, ok, warning
from runner.core.model.results import Finding
from runner.core.shell import cluster_flag, this_program


@check(130)
def code(context: CheckContext) -> Iterator[Finding]:
    """Report an error where the code cannot run or be pushed; warn about a damaged release."""
    if context.spec.pushes_code:
        for problem in context.push_problems:
            yield error("", f"{problem.subject}: {problem.message}", problem.hint)
    for node, _ in context.ready:
        yield from context.unmet("code", node)
    if not context.code.release:
        return
    release = f"release {context.code.release[:12]}"
    hint = f"{this_program()} deploy {cluster_flag(context.spec.cluster)}"
    for node, facts in context.ready:
        if facts.release_state == "intact":
            yield ok(node.name, f"{release} is there and intact")
        elif facts.release_state == "absent":
            yield ok(node.name, f"{release} is not there yet; a launch pushes it")
        elif facts.release_state == "damaged":
            cost = "is refused" if facts.has_release else "sends them again"
            message = f"{release} has files that differ from what was pushed; a launch {cost}"
            yield warning(node.name, message, hint)
        else:
            message = f"{release} could not be read: the disk is slow, or access is denied"
            yield warning(node.name, message, hint)
