"""Whether the clocks agree; nothing here depends on it, but the times in users' logs do."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.finding import Finding, Level

SKEW_S = 2.0


def clock(case: Case) -> Iterator[Finding]:
    """A warning for a clock that is off by more than a launch and a log line may take."""
    for name, skew in case.skews.items():
        if abs(skew) <= SKEW_S:
            yield Finding(Level.FINE, name, "as ours")
            continue
        ahead = "ahead of" if skew > 0 else "behind"
        what = f"its clock is {abs(skew):.0f} s {ahead} ours: times in logs and files are wrong"
        yield Finding(Level.WARNING, name, what, "timedatectl set-ntp true, there")
