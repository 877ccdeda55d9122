"""Run reader: the record of a run, read into `RunData`; what cannot be read is named there."""

from __future__ import annotations

import os
import re
from pathlib import Path

from runner.control.history.files import RecordFiles
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

    With `is_whole` it has events, loads and logs. Samples from a day before the launch and earlier
    are left out: a clock without a battery begins in 1970.
    """
    files = RecordFiles(folder)
    plans = read_plans(files)
    last = plans[-1] if plans else None
    result = files.decoded(RunResult, RESULT_FILE)
    if last and result and result.attempt < last.attempt:
        result = None
    begun = None
    for name in () if result else (PLAN_FILE, JOB_FILE):
        begun = begun or files.decoded(PlanRecord, name)
    run = last or result or (begun and begun.launch.spec)
    launched_at = begun.launch.launched_at if begun else getattr(result, "began", 0.0)
    hosts = sorted(folder.glob(f"{HOSTS_FOLDER}/*"))  # where `pull` has been
    infos = (RecordFiles(host).decoded(RunInfo, "run.json") for host in hosts)
    config = files.config(CONFIG_FILE)
    problem = ""
    if last and not is_made_of_logs(folder):
        problem = record_metrics(folder, last.progress_pattern)
    if problem:
        files.note(METRICS_FILE, problem)
    metrics, step, steps = read_metrics(files)
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
        events=read_events(files) if is_whole else (),
        loads=read_loads(files, launched_at - DAY_S) if is_whole else {},
        logs=_read_logs(files, result) if is_whole else (),
        problems=tuple(files.problems),
    )


def read_plans(files: RecordFiles) -> tuple[Plan, ...]:
    """Return the plans of the attempts on record, the last one at the end."""
    names = {path.name for path in files.folder.glob("*")}
    numbers = sorted(int(match[1]) for match in map(_PLAN.fullmatch, names) if match)
    plans = []
    for name in (*(f"plan.{number}.json" for number in numbers), PLAN_FILE):
        plan = files.decoded(Plan, name)
        if plan and plan.nodes:
            plans.append(plan)
        elif plan:
            files.note(name, "it has no nodes")
    was_planned = plans or names.intersection({EVENTS_FILE, RESULT_FILE})
    if was_planned and PLAN_FILE not in names:
        files.note(PLAN_FILE, "it is missing, so nodes and GPUs of the run are unknown")
    return tuple(plans)


def read_events(files: RecordFiles) -> tuple[Event, ...]:
    events: list[Event] = []

    def take(line: bytes) -> None:
        events.append(parse(line.decode(errors="replace")))

    files.take_lines(files.folder / EVENTS_FILE, "events", take, EVENT_BYTES)
    return tuple(sorted(events, key=lambda event: event.wall))


def _read_logs(files: RecordFiles, verdict: Verdict | None) -> tuple[LogTail, ...]:
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

    found = [log for log in recorded_logs(files.folder) if _LOG.fullmatch(log.path.name)]
    if len(found) > MAX_LOGS:
        files.note("logs", f"{MAX_LOGS:,} of {len(found):,} are read")
    logs = []
    for log in sorted(found, key=order)[:MAX_LOGS]:
        try:
            with log.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LOG_BYTES))
                data = file.read(LOG_BYTES)
        except OSError as error:
            files.note(f"logs/{log.node}/{log.path.name}", reason_of(error))
            continue
        if size > LOG_BYTES and b"\n" in data:
            data = data.partition(b"\n")[2]
        if data:
            text = data.decode(errors="replace")
            stream = log.path.suffix[1:]
            logs.append(LogTail(log.node, log.attempt, log.path.stem, stream, text, size))
    return tuple(logs)
