"""Checks of the login on each host, of the setup there, and of what logging out ends."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, ok, warning
from runner.core.model.results import Finding


@check(10)
def reach(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each host where the login, or the start of our agent, fails."""
    for node in context.spec.nodes:
        if node.name in context.unreachable:
            yield Finding.from_problem(context.unreachable[node.name])
        else:
            yield ok(node.name, f"as {context.facts[node.name].user}")


@check(20)
def setup(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each host where the lines of `cluster.setup` failed."""
    for node, _ in context.answering:
        for failure in context.unmet("setup", node):
            message = f"{failure.message}; this host is not checked any further"
            yield error(node.name, message, failure.hint)


@check(180)
def logout(context: CheckContext) -> Iterator[Finding]:
    """An error where logind would kill a detached run, a warning where it kills other processes."""
    for node, facts in context.answering:
        if errors := context.unmet("logout", node):
            yield from errors
        elif facts.logind_kill_setting:
            message = f"logind kills your processes when you log out ({facts.logind_kill_setting})"
            hint = f"set KillUserProcesses=no or KillExcludeUsers={facts.user} in logind.conf there"
            yield warning(node.name, message, hint)
