"""The runs of a cluster as a table, and the end of one."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.model.facts import Facts
from runner.core.model.run_info import RunInfo, RunSeen, elastic, overall, present
from runner.core.outcome.verdict import NodeResult, Verdict
from runner.core.text import readable
from runner.ui.node_names import fold_names


class Seen(Protocol):
    """A run as its hosts tell of it."""

    @property
    def info(self) -> RunInfo:
        """What is on record of the whole."""

    @property
    def seen(self) -> Mapping[str, RunSeen]:
        """What each host says."""


@dataclass(frozen=True)
class Row:
    """One run.

    Attributes:
        run_id: Its name.
        task: Its task.
        owner: Whose it is.
        state: How far it is, or how it ended.
        age: Seconds since its launch, or since its end.
        nodes: Those of its nodes that answered.
        of: How many nodes it has.
        gpus: How many GPUs it uses.
        attempt: Which start of it this is, from 0.
        ended: Whether it is over.
    """

    run_id: str
    task: str
    owner: str
    state: str
    age: float
    nodes: tuple[str, ...]
    of: int
    gpus: int
    attempt: int
    ended: bool


@dataclass(frozen=True)
class Occupied:
    """GPUs of a host that somebody uses outside the runs of the table."""

    node: str
    gpus: tuple[int, ...]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """All that `ps` shows."""

    rows: Sequence[Row]
    occupied: Sequence[Occupied]
    silent: Mapping[str, Problem]
    hidden: Mapping[str, int]

    def as_data(self) -> dict[str, Any]:
        """Return it as data for a program."""
        return {
            "runs": [encode(row) for row in self.rows],
            "occupied": [encode(each) for each in self.occupied],
            "silent": {name: problem.what for name, problem in self.silent.items()},
            "hidden": dict(self.hidden),
        }


def rows(runs: Iterable[Seen], *, all_: bool, clocks: Mapping[str, float]) -> list[Row]:
    """Return a row per run that is on, or per run; the youngest first."""
    made = []
    for run in runs:
        info, seen = run.info, present(run.seen)
        going = any(each.on or each.waits for each in seen.values())
        if not going and not all_:
            continue
        last = max(clocks[name] - each.changed for name, each in seen.items())
        made.append(
            Row(
                run_id=info.run_id,
                task=info.task,
                owner=info.by or next(iter(seen.values())).owner,
                state=overall(seen) + (elastic(info, seen) if going else ""),
                age=max(0.0, time.time() - info.began if going and info.began else last),
                nodes=tuple(seen),
                of=max(info.nodes, len(seen)),
                gpus=sum((info.gpus or {}).values()),
                attempt=info.attempt,
                ended=not going,
            )
        )
    return made[::-1]


def occupied(facts: Mapping[str, Facts], runs: Iterable[Seen]) -> list[Occupied]:
    """Return the GPUs that processes hold which are none of these runs'.

    Where a run uses GPUs, those of its owner, and of users we may not know, pass for its.
    """
    owners: dict[str, set[str]] = {}
    for run in runs:
        for name, each in run.seen.items():
            if each.on and run.info.gpus:
                owners.setdefault(name, {""}).add(each.owner)
    found = []
    for name, told in facts.items():
        ours = owners.get(name, set())
        busy = [g for g in told.gpus if any(p.user not in ours for p in g.processes)]
        if busy:
            users = {p.user or "?" for gpu in busy for p in gpu.processes} - ours
            found.append(Occupied(name, tuple(g.index for g in busy), tuple(sorted(users))))
    return found


def render(table: Table, *, all_: bool) -> str:
    """Return the table as text."""
    lines = _aligned(
        [
            ("RUN", "TASK", "BY", "STATE", "AGE", "NODES", "GPUS", "ATTEMPT"),
            *(_cells(row) for row in table.rows),
        ]
    )
    if not table.rows:
        where = " on the hosts that answered" if table.silent else ""
        lines = [f"no runs{where}" if all_ else f"nothing is running{where} (--all: what ended)"]
    for each in table.occupied:
        gpus = ", ".join(map(str, each.gpus))
        lines.append(f"{each.node}: GPU {gpus} in use by {', '.join(each.users)}, by no run here")
    for name, count in table.hidden.items():
        if count:
            lines.append(f"{name}: {count} of others, who do not let us look")
    for name, problem in table.silent.items():
        lines.append(f"{name}: not asked: {problem.what}")
    return "\n".join(lines)


def _cells(row: Row) -> tuple[str, ...]:
    names = fold_names(row.nodes)
    nodes = names if len(row.nodes) == row.of else f"{names} of {row.of}"
    age = f"{ago(row.age)} ago" if row.ended else ago(row.age)
    gpus = str(row.gpus) if row.gpus else "-"
    cells = (row.run_id, row.task, row.owner, row.state, age, nodes, gpus, str(row.attempt + 1))
    return tuple(map(readable, cells))


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[at]) for row in cells) for at in range(len(cells[0]))]
    return [
        "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]


def ago(seconds: float) -> str:
    """Return a time span in its largest unit: "42 s", "7 min", "3 h", "12 d"."""
    for size, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {name}"
    return f"{seconds:.0f} s"


@dataclass(frozen=True)
class Stopped:
    """What a stop came to.

    Attributes:
        run_id: The run.
        where: The words by which a verb finds its hosts.
        verdict: How it ended.
        left: For each node how many processes are left, or why that is not known.
    """

    run_id: str
    where: str
    verdict: Verdict
    left: Mapping[str, int | str]

    @property
    def exit_code(self) -> int:
        """0 when nothing is left anywhere, else 5."""
        return 5 if any(self.left.values()) else 0

    def as_data(self) -> dict[str, Any]:
        """Return it as data for a program."""
        return {"run_id": self.run_id, "state": self.verdict.state, "left": dict(self.left)}


def stopped(told: Stopped) -> str:
    """Return what is left on each node, and what to do about it."""
    width = max(len(name) for name in told.left)
    lines = []
    for name, left in told.left.items():
        result = told.verdict.nodes.get(name, NodeResult())
        killed = f", {result.killed} killed" if result.killed else ""
        # Both keepers died, and there was no cgroup: who cleared its environment is not found.
        by = "" if result.ended or left else ", by the run's mark"
        text = (
            f"{left} process{'' if left == 1 else 'es'}{killed}{by}"
            if isinstance(left, int)
            else left
        )
        lines.append(f"  {name:{width}}  {text}")
    if told.exit_code:
        names = fold_names(name for name, left in told.left.items() if left)
        again = f"python -m runner stop --run {told.run_id} {told.where}"
        lines.append(f"run {told.run_id} may go on on {names}; once that can be asked: {again}")
    else:
        lines.append(f"run {told.run_id}: nothing of it is left")
    return "\n".join(lines)
