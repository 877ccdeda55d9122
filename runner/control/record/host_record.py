"""Records of a run on its hosts, decoded, and the runs that several hosts list."""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping
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
    replies: Mapping[str, Mapping[str, Any]], hosts: Mapping[str, str]
) -> list[RemoteRun]:
    """Return the runs that hosts list in their replies, the oldest first, by the clock here.

    `hosts` are those of all nodes that were asked, by their names of now, which are keys of the
    replies. Whose word counts for a node of a run: see `_speaker`.
    """
    claims: dict[str, dict[str, dict[str, HostRunStatus]]] = {}  # by run, node and name of now
    for asked in filter(replies.__contains__, hosts):
        ahead_s = replies[asked]["now"] - time.time()
        for status in replies[asked]["runs"]:
            by_name = claims.setdefault(status.info.run_id, {}).setdefault(status.node, {})
            by_name[asked] = replace(status, changed_at=status.changed_at - ahead_s)
    runs: list[tuple[float, str, RemoteRun]] = []
    for run_id, nodes in claims.items():
        speakers = {node: _speaker(node, nodes[node], replies, hosts) for node in nodes}
        asked_names = {node: name for node, name in speakers.items() if name}
        by_host = {node: nodes[node][name] for node, name in asked_names.items()}
        if by_host:
            info = max((status.info for status in by_host.values()), key=lambda info: info.attempt)
            changed_at = max(status.changed_at for status in by_host.values())
            run = RemoteRun(info, by_host, asked_names)
            runs.append((info.launched_at or changed_at, run_id, run))
    return [run for _, _, run in sorted(runs, key=lambda each: each[:2])]


def _speaker(
    node: str,
    claims: Mapping[str, HostRunStatus],
    answered: Container[str],
    hosts: Mapping[str, str],
) -> str:
    """Return the name of the host that speaks for a node of a run, "" if nobody can be believed.

    A host may lie: only the one called like the node speaks for it, unless that one answered and
    the run is not on it, but on one other.
    """
    if node in claims and claims[node].here:
        return node
    here = [name for name, status in claims.items() if status.here]
    is_silent = node in hosts and node not in answered
    if is_silent or len({hosts[name] for name in here}) > 1:
        return ""
    if here:
        return here[0]
    return node if node in claims else next(iter(claims))  # of hosts that share its disk
