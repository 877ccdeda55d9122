"""Logind's habit of killing processes when their user logs out."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level


def logout(context: CheckContext) -> Iterator[Finding]:
    """An error where logind would kill a detached run, a warning where it kills other processes."""
    for node in context.spec.nodes:
        facts = context.facts.get(node.name)
        if facts and (errors := context.unmet("logout", node)):
            yield from errors
        elif facts and facts.logind_kill_setting:
            message = f"logind kills your processes when you log out ({facts.logind_kill_setting})"
            hint = f"set KillUserProcesses=no or KillExcludeUsers={facts.user} in logind.conf there"
            yield Finding(Level.WARNING, node.name, message, hint)
