"""The table of runs, and the result of a stop."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from runner.core.errors import Problem, fold_names
from runner.core.outcome.verdict import Verdict
from runner.core.remote_run import BROKEN, RemoteRun, aggregate_state, current_hosts
from runner.core.shell import this_program
from runner.core.wire.run_info import RunInfo
from runner.core.wire.text import counted, display_folder, format_age, printable
from runner.ui.layout import UNLIMITED_WIDTH, aligned, fitted, group_names


@dataclass(frozen=True)
class Row:
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
    folder: str = ""  # on this machine, that it was launched from; "" if it is not known


def rows(
    runs: Iterable[RemoteRun],
    *,
    all_: bool = False,
    ends: Mapping[str, str] = {},
    folders: Mapping[str, str] = {},
) -> list[Row]:
    """Return a row per active run, or per run with `all_`; the youngest first.

    `ends` says how runs ended that are on record here: their hosts do not know all of it. `folders`
    are those that runs were launched from.
    """
    table_rows = []
    for run in runs:
        info = run.info
        seen = current_hosts(run.by_host)
        is_active = run.is_active
        if not is_active and not all_:
            continue
        since = min(status.changed_at for status in seen.values())
        if is_active and info.launched_at:
            since = info.launched_at
        table_rows.append(
            Row(
                run_id=info.run_id,
                task=info.task,
                owner=info.launched_by or next(iter(seen.values())).owner,
                state=ends.get(run.run_id) or aggregate_state(seen),
                age=max(0.0, time.time() - since),
                nodes=tuple(seen),
                of=max(info.nnodes, len(seen)),
                gpus=sum((info.gpus or {}).values()),
                attempt=info.attempt,
                ended=not is_active,
                folder=folders.get(info.run_id, ""),
            )
        )
    return table_rows[::-1]


def next_step(row: Row, run_flags: str) -> str:
    if not row.state.startswith(BROKEN):
        return ""
    why = f"{row.run_id} is broken: its supervisors are gone, and its record has no end"
    return f"{why}; this closes it\n  {this_program()} stop {run_flags}"


MAX_RUNS = 20
"""The runs of a table, without those beyond them that have not ended."""

HEADERS = (
    "RUN",
    "TASK",
    "BY",
    "STATE",
    "AGE",
    "NODES",
    "GPUS",
    "ATTEMPT",
    "FOLDER",
)
GIVING_WAY = ("GPUS", "ATTEMPT", "FOLDER", "BY", "TASK", "NODES", "AGE")
"""What has no column where there is not room for all, the first of these first."""


def render(
    runs: Sequence[Row],
    unreachable: Mapping[str, Problem],
    unreadable_runs: Mapping[str, int],
    *,
    all_: bool,
    width: int = UNLIMITED_WIDTH,
    reader: str = "",
) -> str:
    """Return the table as text; columns without room are named below it.

    The `reader` is who launched the runs that need not be told whose they are.
    """
    scope = " on the hosts that answered" if unreachable else ""
    nothing = f"nothing is running{scope} (--all shows ended runs)"
    shown = [row for at, row in enumerate(runs) if at < MAX_RUNS or not row.ended]
    lines = table_of_runs(shown, width, reader) or [f"no runs{scope}" if all_ else nothing]
    if left_out := len(runs) - len(shown):
        lines.append(f"{counted(left_out, 'older run')} not shown: --json has all")
    for name, count in unreadable_runs.items():
        if count:
            lines.append(f"{name}: {counted(count, 'run')} of other users, not readable")
    lines += [f"{name}: not asked: {problem.message}" for name, problem in unreachable.items()]
    return "\n".join(lines)


def table_of_runs(runs: Sequence[Row], width: int, reader: str = "") -> list[str]:
    """Return the lines of the headers and the runs, without what no run has to say."""
    if not runs:
        return []
    says_nothing = {"BY": ("-", reader), "ATTEMPT": ("-", "1"), "FOLDER": ("-", ".")}
    rows = [_cells(row) for row in runs]
    columns = {}
    for header in HEADERS:
        cells = [row[header] for row in rows]
        if {*cells} - {*says_nothing.get(header, ("-",))}:
            columns[header] = [header, *cells]
    return fitted(columns, GIVING_WAY, width, "--json")


def _cells(row: Row) -> dict[str, str]:
    names = fold_names(row.nodes) or "none"
    cells = {
        "RUN": row.run_id,
        "TASK": row.task,
        "BY": row.owner,
        "STATE": row.state,
        "AGE": f"{format_age(row.age)}{' ago' if row.ended else ''}",
        "NODES": names if len(row.nodes) == row.of else f"{names} of {row.of}",
        "GPUS": str(row.gpus or ""),
        "ATTEMPT": str(row.attempt + 1),
        "FOLDER": display_folder(row.folder),
    }
    return {header: printable(cell) or "-" for header, cell in cells.items()}


def run_lines(
    runs: Sequence[RunInfo], reader: str, folders: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Return a line for each run: its id, task and age, and what is not as the reader expects.

    That is its owner if that is another than the reader, and its folder among `folders`.
    """
    rows = []
    for info in runs:
        age = format_age(max(0.0, time.time() - info.launched_at))
        folder = folders.get(info.run_id, "")
        notes = [f"of {info.launched_by}"] if info.launched_by not in ("", reader) else []
        notes += [f"from {display_folder(folder)}"] if folder else []
        when = f"{age} ago" if info.launched_at else "-"
        rows.append((info.run_id, info.task or "-", when, ", ".join(notes)))
    return aligned(rows, indent="")


def render_stop(
    run_id: str, run_flags: str, verdict: Verdict, leftovers: Mapping[str, int | str]
) -> str:
    """Return the processes left on each node, or why that is unknown, and the next step."""
    texts: dict[str, tuple[str, bool]] = {}  # and whether it is a number of processes
    for name, remaining in leftovers.items():
        result = verdict.nodes.get(name)
        killed = f", {result.killed} killed" if result and result.killed else ""
        is_proven = result.end_verified if result else name not in verdict.unverified_before
        # Supervisor and guardian died: a process that cleared its environment is not found.
        found_by = "" if is_proven or remaining else ", found by their environment"
        count = counted(remaining, "process", "processes") if isinstance(remaining, int) else ""
        told = f"{count}{killed}{found_by}" if count else str(remaining)
        texts[name] = (told, bool(count))
    rows = []
    for (text, is_count), alike in group_names(texts.items()).items():
        per_node = " on each" if len(alike) > 1 and is_count else ""
        rows.append((fold_names(alike), f"{text}{per_node}"))
    end = f"run {run_id}: no process is left"
    if names := fold_names(name for name, remaining in leftovers.items() if remaining):
        again = f"{this_program()} stop {run_flags}"
        end = f"run {run_id} may still run on {names}; when reachable again: {again}"
    return "\n".join([*aligned(rows), end])
