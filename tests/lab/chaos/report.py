"""Report of the events: in a few lines, and as a page."""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.lab.chaos.runs import DISCONNECT_S, LOST_S
from tests.lab.chaos.session import Outcome


@dataclass(frozen=True)
class SessionReport:
    """A whole session.

    Attributes:
        outcomes: What came of every event.
        seed: What decided them.
        jobs: How many labs there were side by side.
        began: In seconds since 1970.
        seconds: How long it took.
        evidence: Where violations are explained.
    """

    outcomes: Sequence[Outcome]
    seed: int
    jobs: int
    began: float
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

    @property
    def command(self) -> str:
        """How to do it again."""
        return (
            f"python -m tests.lab.chaos --events {len(self.outcomes)} --seed {self.seed} "
            f"--jobs {self.jobs}"
        )


def summary(session: SessionReport) -> str:
    """Return the end of the output."""
    count = len(session.outcomes)
    rate = 60 * count / session.seconds
    took = f"{count} events in {session.seconds / 60:.1f} min ({rate:.0f} per minute)"
    found = f"{session.orphans} orphans, {len(session.violations)} violations"
    lines = [f"{took}, seed {session.seed}: {found}"]
    if session.violations:
        numbers = ", ".join(f"{each.number:05}" for each in session.violations)
        lines.append(f"evidence in {session.evidence}: {numbers}")
    return "\n".join(lines)


def page(session: SessionReport) -> str:
    """Return the report in Markdown."""
    day = time.strftime("%Y-%m-%d", time.gmtime(session.began))
    machine = f"{platform.system()} {platform.release()}, {os.cpu_count()} cores"
    words = [
        "# Chaos",
        "",
        PAGE_HEAD,
        "",
        "```",
        session.command,
        summary(session).splitlines()[0],
        f"{day}, {machine}, Python {platform.python_version()}",
        "```",
        "",
        f"**Orphans: {session.orphans}. Violations: {len(session.violations)}.**",
        "",
        "| what happened | events | outcomes | median s | max s | orphans | violations |",
        "|---|--:|---|--:|--:|--:|--:|",
        *_rows(session.outcomes),
        "",
        PAGE_TAIL,
        "",
    ]
    return "\n".join(words)


def _rows(outcomes: Sequence[Outcome]) -> Iterable[str]:
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


PAGE_HEAD = """\
`make chaos` lets random things happen to runs on real hosts (sshd in namespaces of their own), two
runs at once: a victim, and a bystander that must not notice unless a whole host was hit. After each
event it waits for what the rules say of both runs, and then looks at every host from outside:

* no process of an ended run, whatever its parent, session or environment: the orphans;
* every rank's file has each line it wrote once, in order; the controller's copy is a beginning of
  it, and all of it where a controller saw the end; so is the console;
* every record can be read: `state.json`, `events.jsonl` up to its `ended`, `result.json`, `ps`;
* the other run has its processes still, and its lines go on.

Ranks write numbered lines and keep a daemon that ignores TERM and a child without environment;
some ignore TERM themselves. Every twentieth run is a real torchrun."""

PAGE_TAIL = f"""\
Seconds are from the event to the last process of the run being gone, or to the look at a run that
goes on; the waits that belong to an event (`lost_s` {LOST_S:g}, `disconnect_s` {DISCONNECT_S:g},
the time for which something was stopped) are in it."""
