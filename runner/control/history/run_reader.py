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

from runner.control.history.bounded_reader import (
    MAX_TIME,
    Problems,
    blocks_of_lines,
    decoded,
    read_json,
)
from runner.control.history.config_reader import read_config, read_yaml
from runner.control.history.line_times import with_times
from runner.control.history.log_tails import LOG_BYTES, read_logs
from runner.control.history.metrics_reader import MetricsHistory
from runner.control.history.samples_reader import read_loads
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
from runner.core.history.run_data import MAX_POINTS, RunData
from runner.core.model.plan import Plan
from runner.core.model.run_info import RunInfo
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.events import Event, parse
from runner.core.protocol.paths import EVENTS_FILE, is_run_id

DAY_S = 86_400
MAX_PLANS = 200
MAX_EVENTS = 20_000
MAX_EVENTS_SIZE = 256 << 20  # bytes of the file that are read

_USUAL = re.compile(
    rb'"kind":\s?"(?:program_started|rank_started|hub_joined|program_exited|detached)"'
    rb'|"kind":\s?"rank_exited".*?"code":\s?0\b'
)
"""What nobody would miss where there are too many."""

EVENTS = "events"
METRICS = "metrics"
LOADS = "loads"
LOGS = "logs"
ALL_PARTS = frozenset({EVENTS, METRICS, LOADS, LOGS})
"""The parts of a record that may be large."""

_PLAN = re.compile(r"plan\.([0-9]{1,6})\.json")


def read_run(
    folder: Path,
    *,
    max_points: int = MAX_POINTS,
    log_bytes: int = LOG_BYTES,
    parts: frozenset[str] = ALL_PARTS,
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
        history = MetricsHistory(max_points)
        history.read(folder, problems)
        step, steps = history.progress
        metrics = with_times(history.metrics(earliest), data.events)
        data = replace(data, metrics=metrics, step=step, steps=steps)
    if LOADS in parts:
        data = replace(data, loads=read_loads(folder, max_points, earliest, problems))
    if LOGS in parts:
        data = replace(data, logs=read_logs(folder, data.verdict, log_bytes, problems))
    return replace(data, problems=tuple(problems.lines))


def _read_outline(folder: Path, problems: Problems) -> RunData:
    """Return the small parts of a record."""
    plans = _read_plans(folder, problems)
    contact_data = read_json(folder / CONTACT_FILE, problems, optional=bool(plans))
    contact = contact_data and decoded(RecordedContact, contact_data, CONTACT_FILE, problems)
    ended_at, verdict, diagnosis = _read_result(folder, plans, problems)
    info = _read_info(folder)
    launched_at = contact.launched_at if contact else info.launched_at if info else 0.0
    last = plans[-1] if plans else None
    recorded_id = contact.run.run_id if contact else last.run_id if last else ""
    config = read_config(folder / CONFIG_FILE, problems)
    words = read_yaml(folder / OVERRIDES_FILE, problems)
    overrides = tuple(map(str, words)) if isinstance(words, list) else ()
    return RunData(
        run_id=recorded_id if is_run_id(recorded_id) else folder.name,
        folder=str(folder),
        cluster=contact.run.cluster if contact else last.cluster if last else "",
        task=last.task if last else _task_name(config),
        launched_by=_launched_by(folder, contact, info),
        launched_at=launched_at or None,
        ended_at=ended_at,
        verdict=verdict,
        diagnosis=diagnosis,
        plans=plans,
        config=config,
        overrides=overrides,
        sweep_id=_sweep_id(folder, problems),
    )


def _read_plans(folder: Path, problems: Problems) -> tuple[Plan, ...]:
    """Return the plans of the attempts on record, the last one at the end."""
    try:
        names = [entry.name for entry in os.scandir(folder)]
    except OSError as error:
        problems.add(folder.name, error.strerror)
        return ()
    numbers = sorted(int(match[1]) for match in map(_PLAN.fullmatch, names) if match)
    files = [f"plan.{number}.json" for number in numbers][-MAX_PLANS:]
    plans = []
    for name in (*files, PLAN_FILE):
        data = read_json(folder / name, problems, optional=name == PLAN_FILE)
        plan = None if data is None else decoded(Plan, data, name, problems)
        if plan and plan.nodes:
            plans.append(plan)
        elif plan:
            problems.add(name, "it has no nodes")
    if PLAN_FILE not in names and (files or {EVENTS_FILE, RESULT_FILE} & {*names}):
        problems.add(PLAN_FILE, "it is missing, so nodes and GPUs of the run are unknown")
    return tuple(plans)


def _read_result(
    folder: Path, plans: tuple[Plan, ...], problems: Problems
) -> tuple[float | None, Verdict | None, Diagnosis | None]:
    """Return when the run ended, how and why, unless that is the end of an earlier attempt."""
    data = read_json(folder / RESULT_FILE, problems, optional=True)
    verdict = None if data is None else decoded(Verdict, data, RESULT_FILE, problems)
    if verdict is None:
        return None, None, None
    last = plans[-1].attempt if plans else 0
    attempt = data.get("attempt", last)
    if type(attempt) is int and attempt < last:
        return None, None, None
    ended = data.get("ended")
    diagnosis = data.get("diagnosis")
    return (
        float(ended) if type(ended) in (int, float) and 0 < ended < MAX_TIME else None,
        verdict,
        None if diagnosis is None else decoded(Diagnosis, diagnosis, RESULT_FILE, problems),
    )


def _read_info(folder: Path) -> RunInfo | None:
    """Return what a host has on record of the whole run, if `pull` brought it."""
    unread = Problems()
    for file in sorted(folder.glob(f"{HOSTS_FOLDER}/*/run.json"))[:10]:
        data = read_json(file, unread, optional=True)
        info = decoded(RunInfo, data, file.name, unread) if data else None
        if info:
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


def _task_name(config: Mapping[str, Any]) -> str:
    task = config.get("task")
    name = task.get("name") if isinstance(task, dict) else None
    return name if isinstance(name, str) else ""


def _sweep_id(folder: Path, problems: Problems) -> str:
    data = read_json(folder / SWEEP_FILE, problems, optional=True)
    sweep = data.get("sweep") if isinstance(data, dict) else None
    return sweep if isinstance(sweep, str) else ""


def read_events(
    folder: Path, problems: Problems, limit: int = MAX_EVENTS
) -> tuple[tuple[Event, ...], int]:
    """Return the events by time, the first and last of too many, and how many there are."""
    important: list[bytes] = []
    usual: list[bytes] = []
    count = 0
    for block in blocks_of_lines(folder / EVENTS_FILE, MAX_EVENTS_SIZE, problems):
        for line in filter(None, block.splitlines()):
            kind = usual if _USUAL.search(line, 0, 1000) else important
            count += bool(line.strip())
            kind.append(line)
            if len(kind) > 2 * limit:
                _keep_ends(kind, limit)
    _keep_ends(important, limit)
    _keep_ends(usual, limit - len(important))
    kept = important + usual
    events = []
    bad = 0
    for line in kept:
        with contextlib.suppress(ValueError, RecursionError):
            events.append(parse(line.decode(errors="replace")))
            continue
        bad += 1
    if bad:
        problems.add(EVENTS_FILE, f"{bad:,} lines are no events")
    if count > len(kept):
        problems.add(EVENTS_FILE, f"{len(kept):,} of {count:,} events are read")
    return tuple(sorted(events, key=lambda event: event.wall)), count - bad


def _keep_ends(lines: list[bytes], limit: int) -> None:
    """Remove lines from the middle, if there are too many."""
    excess = len(lines) - limit
    if excess > 0:
        first = limit // 2
        del lines[first : first + excess]
