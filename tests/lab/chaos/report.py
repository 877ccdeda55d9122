"""Report of the events: a table of what happened how often, and one line."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.chaos.session import Outcome


@dataclass(frozen=True)
class SessionReport:
    """A whole session.

    Attributes:
        outcomes: What came of every event.
        seed: What decided them.
        seconds: How long it took.
        evidence: Where violations are explained.
    """

    outcomes: Sequence[Outcome]
    seed: int
    seconds: float
    evidence: Path

    @property
    def orphans(self) -> int:
        """How many processes of ended runs were found."""
        return sum(each.orphans for each in self.outcomes)

    @property
    def violations(self) -> list[Outcome]:
        """The events after which something did not hold."""
        return [each for each in self.outcomes if each.problems]


def summary(session: SessionReport) -> str:
    """Return the end of the output: a table for docs/chaos.md, and what to look at."""
    count = len(session.outcomes)
    rate = 60 * count / session.seconds
    took = f"{count} events in {session.seconds / 60:.1f} min ({rate:.0f} per minute)"
    found = f"{session.orphans} orphans, {len(session.violations)} violations"
    lines = [*_rows(session.outcomes), "", f"{took}, seed {session.seed}: {found}"]
    if session.violations:
        numbers = ", ".join(f"{each.number:05}" for each in session.violations)
        lines.append(f"evidence in {session.evidence}: {numbers}")
    return "\n".join(lines)


def _rows(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| what happened | events | outcomes | median s | max s | orphans | violations |"
    yield "|---|--:|---|--:|--:|--:|--:|"
    for name in sorted({each.kind for each in outcomes}):
        own = [each for each in outcomes if each.kind == name]
        ends = sorted({_fate(each) for each in own})
        counted = ", ".join(f"{sum(_fate(e) == end for e in own)} {end}" for end in ends)
        times = [each.seconds for each in own]
        yield (
            f"| {name} | {len(own)} | {counted} | {statistics.median(times):.1f} | "
            f"{max(times):.1f} | {sum(e.orphans for e in own)} | "
            f"{sum(bool(e.problems) for e in own)} |"
        )


def _fate(outcome: Outcome) -> str:
    if outcome.problems:
        return "VIOLATED"
    if outcome.fate == "goes on":
        return "on"
    if outcome.code in (None, -9):
        return "ended by itself"
    return f"exit {outcome.code}"
