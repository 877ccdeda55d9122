"""Clock offsets. Nothing in a run depends on them, but the times in users' logs do."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import CheckContext
from runner.core.model.finding import Finding, Level

MAX_OFFSET_S = 2.0


def clock(context: CheckContext) -> Iterator[Finding]:
    """Warn about a clock that is off by more than a launch and a log line may take."""
    for name, offset in context.clock_offsets.items():
        if abs(offset) <= MAX_OFFSET_S:
            yield Finding(Level.OK, name, "same as this machine's")
            continue
        direction = "ahead of" if offset > 0 else "behind"
        message = (
            f"its clock is {abs(offset):.0f} s {direction} this machine's: times in logs are wrong"
        )
        yield Finding(Level.WARNING, name, message, "on that host: timedatectl set-ntp true")
