"""Whether a run outlives the log-in that started it."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level


def logout(context: CheckContext) -> Iterator[Finding]:
    """A warning where logind kills what a user leaves; a detached launch refuses there."""
    for name, facts in context.answering:
        if facts.logind_kill_setting:
            message = f"logind kills what you leave when you log out ({facts.logind_kill_setting})"
            hint = f"KillUserProcesses=no, or KillExcludeUsers={facts.user}, in logind.conf there"
            yield Finding(Level.WARNING, name, message, hint)
