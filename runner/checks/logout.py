"""Whether a run outlives the log-in that started it."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level


def logout(case: Case) -> Iterator[Finding]:
    """A warning where logind kills what a user leaves; a detached launch refuses there."""
    for name, facts in case.there:
        if facts.logind_kills:
            what = f"logind kills what you leave when you log out ({facts.logind_kills})"
            hint = f"KillUserProcesses=no, or KillExcludeUsers={facts.user}, in logind.conf there"
            yield Finding(Level.WARNING, name, what, hint)
