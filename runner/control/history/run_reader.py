"""Run reader: the record of a run, read into `RunData`; what cannot be read is named there."""

from __future__ import annotations

import contextlib
import math
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.control.history.files import (
    Problems,
    decoded,
    read_as,
    read_json,
    read_lines,
    read_yaml,
)
from runner.control.history.series import read_loads, read_metrics
from runner.control.record.contact_file import RecordedContact
from runner.control.record.file_names import (
    CONFIG_FILE,
    CONTACT_FILE,
    HOSTS_FOLDER,
    OVERRIDES_FILE,
    PLAN_FILE,
    RESULT_FILE,
    SWEEP_FILE,
)
from runner.control.record.metrics_record import (
    METRICS_FILE,
    RecordedLog,
    is_made_of_logs,
    record_metrics,
    recorded_logs,
)
from runner.core.errors import reason_of
from runner.core.history.run_data import MAX_POINTS, LogTail, RunData
from runner.core.model.plan import Plan
from runner.core.model.run_info import RunInfo
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import Event, parse
from runner.core.protocol.paths import (
    EVENTS_FILE,
    PROGRAM_LOG,
    STREAMS,
    is_rank_source,
    is_run_id,
    rank_source,
    source_rank,
)

DAY_S = 86_400
MAX_EVENTS = 20_000
LOG_BYTES = 16 << 10  # of one log
MAX_LOGS = 1000

EVENTS = "events"
METRICS = "metrics"
LOADS = "loads"
LOGS = "logs"
ALL_PARTS = frozenset({EVENTS, METRICS, LOADS, LOGS})
"""The parts of a record that may be large."""

_PLAN = re.compile(r"plan\.([0-9]{1,6})\.json")
_LOG = re.compile(rf"({PROGRAM_LOG}|rank_[0-9]{{1,9}})\.({'|'.join(STREAMS)})")


def read_run(
    folder: Path, *, max_points: int = MAX_POINTS, parts: frozenset[str] = ALL_PARTS
) -> RunData:
    """Return what is on record of a run, as far as it can be read; nothing of it raises.

    Times that are a day before the launch are unknown: a clock without a battery begins in 1970.
    """
    problems = Problems()
    data = _read_outline(folder, problems)
    earliest = -math.inf if data.launched_at is None else data.launched_at - DAY_S
    if EVENTS in parts:
        events, count = read_events(folder, problems)
        data = replace(data, events=events, event_count=count)
    if METRICS in parts:
        if data.plans and not is_made_of_logs(folder):
            try:
                record_metrics(folder, data.plans[-1].progress_pattern)
            except OSError as error:
                problems.add(METRICS_FILE, f"cannot be made from the logs: {reason_of(error)}")
        found = read_metrics(folder, max_points, earliest, problems)
        data = replace(data, metrics=found.metrics, step=found.step, steps=found.steps)
    if LOADS in parts:
        data = replace(data, loads=read_loads(folder, max_points, earliest, problems))
    if LOGS in parts:
        data = replace(data, logs=_read_logs(folder, data.verdict, problems))
    return replace(data, problems=tuple(problems.lines))


def _read_outline(folder: Path, problems: Problems) -> RunData:
    """Return the small parts of a record."""
    plans = _read_plans(folder, problems)
    contact = read_as(RecordedContact, folder / CONTACT_FILE, problems, optional=bool(plans))
    ended_at, verdict, diagnosis = _read_result(folder, plans, problems)
    info = _read_info(folder)
    launched_at = 0.0
    if contact or info:
        launched_at = contact.launched_at if contact else info.launched_at  # type: ignore[union-attr]
    last = plans[-1] if plans else None
    recorded_id = contact.run.run_id if contact else last.run_id if last else ""
    config = read_yaml(dict, folder / CONFIG_FILE, problems) or {}
    words = read_yaml(list, folder / OVERRIDES_FILE, problems) or ()
    return RunData(
        run_id=recorded_id if is_run_id(recorded_id) else folder.name,
        folder=str(folder),
        cluster=contact.run.cluster.name if contact else last.cluster if last else "",
        task=last.task if last else _text(config.get("task"), "name"),
        launched_by=_launched_by(folder, contact, info),
        launched_at=launched_at or None,
        ended_at=ended_at,
        verdict=verdict,
        diagnosis=diagnosis,
        plans=plans,
        config=config,
        overrides=tuple(map(str, words)),
        sweep_id=_text(read_json(folder / SWEEP_FILE, problems), "sweep"),
    )


def _read_plans(folder: Path, problems: Problems) -> tuple[Plan, ...]:
    """Return the plans of the attempts on record, the last one at the end."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError as error:
        problems.add(folder.name, error.strerror)
        return ()
    numbers = sorted(int(match[1]) for match in map(_PLAN.fullmatch, names) if match)
    files = [*(f"plan.{number}.json" for number in numbers), PLAN_FILE]
    plans = []
    for name in files:
        plan = read_as(Plan, folder / name, problems)
        if plan and plan.nodes:
            plans.append(plan)
        elif plan:
            problems.add(name, "it has no nodes")
    if PLAN_FILE not in names and (numbers or {EVENTS_FILE, RESULT_FILE} & {*names}):
        problems.add(PLAN_FILE, "it is missing, so nodes and GPUs of the run are unknown")
    return tuple(plans)


def _read_result(
    folder: Path, plans: tuple[Plan, ...], problems: Problems
) -> tuple[float | None, Verdict | None, Diagnosis | None]:
    """Return when the run ended, how and why, unless that is the end of an earlier attempt."""
    data = read_json(folder / RESULT_FILE, problems)
    verdict = None if data is None else decoded(Verdict, data, RESULT_FILE, problems)
    last = plans[-1].attempt if plans else 0
    attempt = data.get("attempt", last) if verdict else last
    if verdict is None or (isinstance(attempt, int) and attempt < last):
        return None, None, None
    ended = data.get("ended")
    diagnosis = data.get("diagnosis")
    return (
        float(ended) if type(ended) in (int, float) and math.isfinite(ended) else None,
        verdict,
        None if diagnosis is None else decoded(Diagnosis, diagnosis, RESULT_FILE, problems),
    )


def _read_info(folder: Path) -> RunInfo | None:
    """Return what a host has on record of the whole run, if `pull` brought it."""
    unread = Problems()
    for file in sorted(folder.glob(f"{HOSTS_FOLDER}/*/run.json")):
        if info := read_as(RunInfo, file, unread):
            return info
    return None


def _launched_by(folder: Path, contact: RecordedContact | None, info: RunInfo | None) -> str:
    """Return user@machine; a record that was begun on this machine belongs to who launched it."""
    if info or not (contact and contact.launched_from):
        return info.launched_by if info else ""
    import pwd  # noqa: PLC0415

    try:
        user = pwd.getpwuid(folder.stat().st_uid).pw_name
    except (OSError, KeyError):
        return ""
    return f"{user}@{socket.gethostname()}"


def _text(data: Any, name: str) -> str:
    """Return a text in data that may be no mapping; "" if there is none."""
    value = data.get(name) if isinstance(data, Mapping) else None
    return value if isinstance(value, str) else ""


def read_events(folder: Path, problems: Problems) -> tuple[tuple[Event, ...], int]:
    """Return the events by time, the first and last of too many, and how many there are."""
    lines = read_lines(folder / EVENTS_FILE, problems)
    count = len(lines)
    if count > MAX_EVENTS:
        problems.add(EVENTS_FILE, f"{MAX_EVENTS:,} of {count:,} events are read")
        del lines[MAX_EVENTS // 2 : -MAX_EVENTS // 2]
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            events.append(parse(line.decode(errors="replace")))
    if bad_count := len(lines) - len(events):
        problems.add(EVENTS_FILE, f"{bad_count:,} lines are no events")
    return tuple(sorted(events, key=lambda event: event.wall)), count - bad_count


def _read_logs(folder: Path, verdict: Verdict | None, problems: Problems) -> tuple[LogTail, ...]:
    """Return the ends of the logs: of the last attempt first, of the failed rank before others."""
    failure = verdict.first_failure if verdict else None
    failed = rank_source(failure.rank) if failure and failure.rank is not None else PROGRAM_LOG

    def order(log: RecordedLog) -> tuple[object, ...]:
        source = log.path.stem
        is_failed = failure is not None and (log.node, source) == (failure.node, failed)
        rank = source_rank(source) if is_rank_source(source) else -1
        return -log.attempt, not is_failed, rank < 0, rank, log.node, log.path.suffix

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
            source = log.path.stem
            stream = log.path.suffix[1:]
            text = data.decode(errors="replace")
            logs.append(LogTail(log.node, log.attempt, source, stream, text, size))
    return tuple(logs)
