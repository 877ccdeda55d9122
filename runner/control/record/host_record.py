"""Records of a run on its hosts, decoded, and the runs that several hosts list."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runner.core.codec import decode, parse_json
from runner.core.model.plan import Plan
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import HostRunStatus, RunInfo
from runner.core.protocol.frames import decompress

MAX_RECORD = 256 << 20  # bytes


@dataclass(frozen=True)
class HostRecord:
    """What a host has on record of a run: its plan, its configuration and `info`."""

    plan: Plan
    config_yaml: str
    info: RunInfo


def parse_record(payload: bytes, run_id: str, progress_pattern: str) -> HostRecord:
    """Return the record in a host's reply; raise ValueError unless all of it is of that run.

    Its pattern is one's own: one from a host could take for ever on a line.
    """
    try:
        reply = parse_json(decompress(payload, MAX_RECORD))
        plan, info = (parse_json(reply[name]) for name in ("plan", "info"))
        record = HostRecord(decode(Plan, plan), reply["config"], decode(RunInfo, info))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    if not record.plan.nodes or not isinstance(record.config_yaml, str):
        raise ValueError("it has no nodes or no configuration")
    for part in record.plan.nodes:
        if {record.plan.run_id, part.order.run_id} != {run_id} or part.order.node != part.node:
            raise ValueError(f"its order for {part.node} is of another run or node")
    nodes = []
    for part in record.plan.nodes:
        order = replace(part.order, progress_pattern=progress_pattern)
        nodes.append(replace(part, order=order))
    plan = replace(record.plan, nodes=tuple(nodes))
    return replace(record, plan=plan, info=replace(record.info, run_id=run_id))


def newest_record(records: Iterable[HostRecord]) -> HostRecord:
    """Return the record of the last attempt, with the most nodes."""
    return max(records, key=lambda record: (record.plan.attempt, len(record.plan.nodes)))


def merge_statuses(
    replies: Mapping[str, Mapping[str, Any]], names: Sequence[str]
) -> list[RemoteRun]:
    """Return the runs that hosts list in their replies, the oldest first, by the clock here.

    A host speaks for itself alone: for the node of a run that is called like it, or for the one on
    it that is called like no node of now. All nodes that were asked are in `names`.
    """
    found: dict[str, dict[str, HostRunStatus]] = {}  # by run, and by name of now
    for name in filter(replies.__contains__, names):
        ahead_s = replies[name]["now"] - time.time()
        for status in replies[name]["runs"]:
            is_own = status.node == name
            if is_own or (status.here and status.node not in names):
                by_host = found.setdefault(status.info.run_id, {})
                if is_own or name not in by_host:
                    by_host[name] = replace(status, changed_at=status.changed_at - ahead_s)
    runs: list[tuple[float, str, RemoteRun]] = []
    for run_id, by_host in found.items():
        info = max((status.info for status in by_host.values()), key=lambda info: info.attempt)
        changed_at = max(status.changed_at for status in by_host.values())
        runs.append((info.launched_at or changed_at, run_id, RemoteRun(info, by_host)))
    return [run for _, _, run in sorted(runs, key=lambda each: each[:2])]
