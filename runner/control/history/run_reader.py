"""Run reader: the record of a run, read into `RunData`; what cannot be read is named there."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from runner.control.history.files import Problems, read_as, read_config, read_lines
from runner.control.history.series import read_loads, read_metrics
from runner.control.record.launch_record import (
    CONFIG_FILE,
    HOSTS_FOLDER,
    JOB_FILE,
    PLAN_FILE,
    RESULT_FILE,
    PlanRecord,
)
from runner.control.record.metrics_record import (
    METRICS_FILE,
    RecordedLog,
    is_made_of_logs,
    record_metrics,
    recorded_logs,
)
from runner.core.errors import reason_of
from runner.core.history import LogTail, RunData
from runner.core.outcome.diagnosis import RunResult
from runner.core.outcome.verdict import Verdict
from runner.core.wire.events import Event, parse
from runner.core.wire.paths import EVENTS_FILE, PROGRAM_LOG, STREAMS, is_run_id, rank_source
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import RunInfo
from runner.core.wire.text import natural_key

DAY_S = 86_400
EVENT_BYTES = 4 << 20
LOG_BYTES = 16 << 10  # of one log
MAX_LOGS = 1000

_PLAN = re.compile(r"plan\.([0-9]{1,6})\.json")
_LOG = re.compile(rf"({PROGRAM_LOG}|rank_[0-9]{{1,9}})\.({'|'.join(STREAMS)})")


def read_run(folder: Path, *, is_whole: bool = True) -> RunData:
    """Return what is on record of a run, as far as it can be read; nothing of it raises.

    Times that are a day before the launch are unknown: a clock without a battery begins in 1970.

    Args:
        folder: The record.
        is_whole: Read events, load and logs, too.
    """
    problems = Problems()
    plans = read_plans(folder, problems)
    last = plans[-1] if plans else None
    result = read_as(RunResult, folder / RESULT_FILE, problems)
    if last and result and result.attempt < last.attempt:
        result = None
    begun = None
    for name in () if result else (PLAN_FILE, JOB_FILE):
        begun = begun or read_as(PlanRecord, folder / name, problems)
    run = last or result or (begun and begun.launch.spec)
    launched_at = begun.launch.launched_at if begun else getattr(result, "began", 0.0)
    files = sorted(folder.glob(f"{HOSTS_FOLDER}/*/run.json"))  # where `pull` has been
    infos = (read_as(RunInfo, file, Problems()) for file in files)
    config = read_config(folder / CONFIG_FILE, problems)
    problem = ""
    if last and not is_made_of_logs(folder):
        problem = record_metrics(folder, last.progress_pattern)
    if problem:
        problems.add(METRICS_FILE, problem)
    metrics, step, steps = read_metrics(folder, problems)
    return RunData(
        run_id=run.run_id if run and is_run_id(run.run_id) else folder.name,
        folder=str(folder),
        cluster=last.cluster if last else "",
        task=last.task if last else "",
        launched_by=next((info.launched_by for info in infos if info), ""),
        launched_at=launched_at or None,
        ended_at=result.ended if result else None,
        verdict=result,
        diagnosis=result.diagnosis if result else None,
        plans=plans,
        config=config,
        metrics=metrics,
        step=step,
        steps=steps,
        events=read_events(folder, problems) if is_whole else (),
        loads=read_loads(folder, launched_at - DAY_S, problems) if is_whole else {},
        logs=_read_logs(folder, result, problems) if is_whole else (),
        problems=tuple(problems.lines),
    )


def read_plans(folder: Path, problems: Problems) -> tuple[Plan, ...]:
    """Return the plans of the attempts on record, the last one at the end."""
    names = {path.name for path in folder.glob("*")}
    numbers = sorted(int(match[1]) for match in map(_PLAN.fullmatch, names) if match)
    plans = []
    for name in (*(f"plan.{number}.json" for number in numbers), PLAN_FILE):
        plan = read_as(Plan, folder / name, problems)
        if plan and plan.nodes:
            plans.append(plan)
        elif plan:
            problems.add(name, "it has no nodes")
    was_planned = plans or names.intersection({EVENTS_FILE, RESULT_FILE})
    if was_planned and PLAN_FILE not in names:
        problems.add(PLAN_FILE, "it is missing, so nodes and GPUs of the run are unknown")
    return tuple(plans)


def read_events(folder: Path, problems: Problems) -> tuple[Event, ...]:
    lines = read_lines(folder / EVENTS_FILE, problems, max_size=EVENT_BYTES)
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(parse(line.decode(errors="replace")))
    if len(events) < len(lines):
        problems.add(EVENTS_FILE, f"{len(lines) - len(events):,} lines are no events")
    return tuple(sorted(events, key=lambda event: event.wall))


def _read_logs(folder: Path, verdict: Verdict | None, problems: Problems) -> tuple[LogTail, ...]:
    """Return the ends of the logs: of the last attempt first, of the failed rank before others."""
    failure = verdict.first_failure if verdict else None
    failed = None
    if failure:
        source = PROGRAM_LOG if failure.rank is None else rank_source(failure.rank)
        failed = failure.node, source

    def order(log: RecordedLog) -> tuple[object, ...]:
        source = log.path.stem
        is_failed = (log.node, source) == failed
        name = natural_key(log.path.name)
        return -log.attempt, not is_failed, source == PROGRAM_LOG, name, log.node

    found = [log for log in recorded_logs(folder) if _LOG.fullmatch(log.path.name)]
    if len(found) > MAX_LOGS:
        problems.add("logs", f"{MAX_LOGS:,} of {len(found):,} are read")
    logs = []
    for log in sorted(found, key=order)[:MAX_LOGS]:
        try:
            with log.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES))
                data = file.read(LOG_BYTES)
        except OSError as error:
            problems.add(f"logs/{log.node}/{log.path.name}", reason_of(error))
            continue
        if size > LOG_BYTES and b"\n" in data:
            data = data.partition(b"\n")[2]
        if data:
            text = data.decode(errors="replace")
            stream = log.path.suffix[1:]
            logs.append(LogTail(log.node, log.attempt, log.path.stem, stream, text, size))
    return tuple(logs)
