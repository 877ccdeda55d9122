"""The table of runs, and the result of a stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.core.codec import encode
from runner.core.errors import Problem
from runner.core.model.facts import Facts
from runner.core.model.metrics import RankProgress
from runner.core.model.results import NodeResult, RemoteRun
from runner.core.model.run_info import (
    BROKEN,
    HostRunStatus,
    RunInfo,
    aggregate_state,
    current_hosts,
    elastic_summary,
)
from runner.core.outcome.verdict import Verdict
from runner.core.shell import this_program
from runner.core.text import counted, format_age, printable
from runner.ui.figures import left_text, rate_text, step_text
from runner.ui.layout import (
    COLUMN_GAP,
    UNLIMITED_WIDTH,
    aligned,
    display_folder,
    fold_names,
    wrap,
)


@dataclass(frozen=True)
class Row:
    """One run."""

    run_id: str
    task: str
    owner: str
    state: str
    age: float  # seconds since its launch, or since its end
    nodes: tuple[str, ...]  # those that answered, of `of`
    of: int
    gpus: int
    attempt: int  # from 0
    ended: bool
    unattended_left_s: float | None = None  # until it ends for want of a controller
    progress: RankProgress | None = None  # of the lowest rank that says how far it is
    folder: str = ""  # on this machine, that it was launched from; "" if it is not known


@dataclass(frozen=True)
class ForeignGpuUse:
    """GPUs of a host that are in use by processes outside the table's runs."""

    node: str
    gpus: tuple[int, ...]
    users: tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """Everything that `ps` shows."""

    rows: Sequence[Row]
    foreign_gpu_use: Sequence[ForeignGpuUse]
    unreachable: Mapping[str, Problem]
    unreadable_runs: Mapping[str, int]

    def as_data(self) -> dict[str, Any]:
        """Return the result as data for a program."""
        return {
            "runs": [encode(row) for row in self.rows],
            "occupied": [encode(use) for use in self.foreign_gpu_use],
            "silent": {name: problem.message for name, problem in self.unreachable.items()},
            "hidden": dict(self.unreadable_runs),
        }


def rows(
    runs: Iterable[RemoteRun],
    ends: Mapping[str, str],
    *,
    all_: bool,
    clock_offsets: Mapping[str, float],
    folders: Mapping[str, str],
) -> list[Row]:
    """Return a row per active run, or per run with `all_`; the youngest first.

    `ends` says how runs ended that are on record here: their hosts do not know all of it. `folders`
    are those that runs were launched from.
    """
    table_rows = []
    for run in runs:
        info, seen = run.info, current_hosts(run.by_host)
        is_active = run.is_active
        if not is_active and not all_:
            continue
        host_times = {name: clock_offsets[run.asked[name]] for name in seen}
        age = max(host_times[name] - status.changed_at for name, status in seen.items())
        if is_active and info.launched_at:
            age = time.time() - info.launched_at
        elastic = elastic_summary(info, seen) if is_active else ""
        unattended = [s.unattended_left_s for s in seen.values() if s.unattended_left_s is not None]
        table_rows.append(
            Row(
                run_id=info.run_id,
                task=info.task,
                owner=info.launched_by or next(iter(seen.values())).owner,
                state=ends.get(run.run_id) or aggregate_state(seen) + elastic,
                age=max(0.0, age),
                nodes=() if run.has_not_begun else tuple(seen),
                of=max(info.nnodes, len(seen)),
                gpus=sum((info.gpus or {}).values()),
                attempt=info.attempt,
                ended=not is_active,
                unattended_left_s=min(unattended, default=None),
                progress=_progress(seen.values()) if is_active else None,
                folder=folders.get(info.run_id, ""),
            )
        )
    return table_rows[::-1]


def _progress(statuses: Iterable[HostRunStatus]) -> RankProgress | None:
    found = [status.progress for status in statuses if status.progress]
    return min(found, key=lambda progress: progress.rank, default=None)


def next_step(row: Row, run_flags: str) -> str:
    """Return what a run needs that no controller keeps, or whose supervisors are gone; or ""."""
    if row.state.startswith(BROKEN):
        why = f"{row.run_id} is broken: its supervisors are gone, and its record has no end"
        return f"{why}; this closes it\n  {this_program()} stop {run_flags}"
    if row.unattended_left_s is None:
        return ""
    return (
        f"{row.run_id}: no controller is attached; its hosts stop it in "
        f"{format_age(row.unattended_left_s)} (disconnect_s), unless you attach\n"
        f"  {this_program()} attach {run_flags}"
    )


def foreign_gpu_use(facts: Mapping[str, Facts], runs: Iterable[RemoteRun]) -> list[ForeignGpuUse]:
    """Return the GPUs in use by processes that belong to none of these runs.

    Where a run uses GPUs, processes of its owner and of unknown users count as the run's.
    """
    owners: dict[str, set[str]] = {}
    for run in runs:
        for name, status in run.by_host.items():
            if status.is_active and run.info.gpus:
                owners.setdefault(run.asked[name], {""}).add(status.owner)
    uses = []
    for name, host_facts in facts.items():
        run_owners = owners.get(name, set())
        foreign = [(gpu, {p.user for p in gpu.processes} - run_owners) for gpu in host_facts.gpus]
        if gpus := tuple(gpu.index for gpu, users in foreign if users):
            users = {user or "?" for _, of_gpu in foreign for user in of_gpu}
            uses.append(ForeignGpuUse(name, gpus, tuple(sorted(users))))
    return uses


HEADERS = ("RUN", "TASK", "BY", "STATE", "AGE", "NODES", "GPUS", "ATTEMPT", "PROGRESS", "FOLDER")
BY_WEIGHT = ("RUN", "STATE", "TASK", "AGE", "NODES", "PROGRESS", "BY", "FOLDER", "ATTEMPT", "GPUS")
"""The headers; where not all have room, the first of these are columns."""

SAYS_NOTHING = {"GPUS": ("-",), "ATTEMPT": ("1",), "PROGRESS": ("-",), "FOLDER": ("-", ".")}
MIN_WIDTH = 40  # a narrower terminal breaks the lines itself


def render(table: Table, *, all_: bool, width: int = UNLIMITED_WIDTH, reader: str = "") -> str:
    """Return the table as text; what has no column in this width is on a second line of its row.

    The `reader` is who launched the runs that need not be told whose they are.
    """
    if table.rows:
        lines = _run_lines(table.rows, max(width, MIN_WIDTH), {**SAYS_NOTHING, "BY": (reader,)})
    else:
        scope = " on the hosts that answered" if table.unreachable else ""
        nothing = f"nothing is running{scope} (--all shows ended runs)"
        lines = [f"no runs{scope}" if all_ else nothing]
    for use in table.foreign_gpu_use:
        gpus = ", ".join(map(str, use.gpus))
        lines.append(f"{use.node}: GPU {gpus} in use by {', '.join(use.users)}, outside these runs")
    for name, count in table.unreadable_runs.items():
        if count:
            lines.append(f"{name}: {counted(count, 'run')} of other users, not readable")
    for name, problem in table.unreachable.items():
        lines.append(f"{name}: not asked: {problem.message}")
    return "\n".join(lines)


def _run_lines(
    table_rows: Sequence[Row], width: int, says_nothing: Mapping[str, tuple[str, ...]]
) -> list[str]:
    """Return the lines of the headers and the runs; columns that say nothing give way first."""
    cells = [_cells(row) for row in table_rows]
    columns = {header: [header, *(row[header] for row in cells)] for header in HEADERS}
    silent = {h for h in HEADERS if {*columns[h][1:]} <= {*says_nothing.get(h, ())}}
    wanted = [header for header in BY_WEIGHT if header not in silent & {"PROGRESS", "FOLDER"}]
    if len(_fitting(columns, wanted, width)) < len(wanted):
        wanted = [header for header in BY_WEIGHT if header not in silent]
    kept = _fitting(columns, wanted, width)
    shown = [columns[header] for header in HEADERS if header in kept]
    head, *run_lines = aligned(zip(*shown, strict=True), indent="")
    lines = [head]
    for line, row in zip(run_lines, cells, strict=True):
        lines.append(line)
        told = [h for h in HEADERS if h in wanted and h not in kept]
        told = [h for h in told if row[h] not in says_nothing.get(h, ("",))]
        notes = [f"{header.lower()} {row[header]}" for header in told]
        if notes:
            whole = "; ".join(note.replace(" ", "\xa0") for note in notes)
            wrapped = wrap(whole, width, margin="    ", hanging_margin="    ")
            lines += [line.replace("\xa0", " ") for line in wrapped]
    return lines


def _fitting(
    columns: Mapping[str, Sequence[str]], wanted: Sequence[str], width: int
) -> Sequence[str]:
    """Return the first of the wanted headers, as many as fit, but at least one."""
    from rich.cells import cell_len

    left = width + COLUMN_GAP
    for count, header in enumerate(wanted):
        left -= max(map(cell_len, columns[header])) + COLUMN_GAP
        if left < 0 and count:
            return wanted[:count]
    return wanted


def _cells(row: Row) -> dict[str, str]:
    """Return the cells by their headers."""
    age = f"{format_age(row.age)} ago" if row.ended else format_age(row.age)
    progress = ""
    if row.progress:
        done = row.progress
        texts = (step_text(done), rate_text(done), left_text(done.left_s))
        progress = ", ".join(filter(None, texts))
    cells = {
        "RUN": row.run_id,
        "TASK": row.task,
        "BY": row.owner,
        "STATE": row.state,
        "AGE": age,
        "NODES": nodes_text(row),
        "GPUS": str(row.gpus or "-"),
        "ATTEMPT": str(row.attempt + 1),
        "PROGRESS": progress or "-",
        "FOLDER": display_folder(row.folder) or "-",
    }
    return {header: printable(cell) for header, cell in cells.items()}


def nodes_text(row: Row) -> str:
    """Return the nodes that answered, and of how many where that is not all."""
    names = fold_names(row.nodes) or "none"
    return names if len(row.nodes) == row.of else f"{names} of {row.of}"


def describe_run(info: RunInfo, folder: str = "") -> str:
    """Return what tells a run from others: its id, task, owner, age, and the folder if given."""
    owner = f", of {info.launched_by}" if info.launched_by else ""
    age_s = max(0.0, time.time() - info.launched_at)
    age = f", launched {format_age(age_s)} ago" if info.launched_at else ""
    place = f"{'' if age else ', launched'} from {display_folder(folder)}" if folder else ""
    return printable(f"run {info.run_id}, task {info.task or 'unknown'}{owner}{age}{place}")


def render_stop(
    run_id: str, run_flags: str, verdict: Verdict, leftovers: Mapping[str, int | str]
) -> str:
    """Return the processes left on each node, or why that is unknown, and the next step."""
    rows = []
    for name, remaining in leftovers.items():
        result = verdict.nodes.get(name, NodeResult())
        killed = f", {result.killed} killed" if result.killed else ""
        # Supervisor and guardian died, and there was no cgroup: a process that cleared its
        # environment is not found.
        found_by = "" if result.end_verified or remaining else ", found by their environment"
        count = counted(remaining, "process", "processes") if isinstance(remaining, int) else ""
        rows.append((name, f"{count}{killed}{found_by}" if count else str(remaining)))
    end = f"run {run_id}: no process is left"
    if names := fold_names(name for name, remaining in leftovers.items() if remaining):
        again = f"{this_program()} stop {run_flags}"
        end = f"run {run_id} may still run on {names}; when reachable again: {again}"
    return "\n".join([*aligned(rows), end])
