"""Records of a run on its hosts: decoded, and believed only where the hosts agree."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.core.codec import decode, encode, parse_json
from runner.core.errors import NotReady, Problem
from runner.core.model.plan import Plan
from runner.core.model.run_info import RunInfo
from runner.core.protocol.frames import decompress

MAX_RECORD = 256 << 20  # bytes


@dataclass(frozen=True)
class HostRecord:
    """What a host has on record of a run: its plan, its configuration and `info`."""

    plan: Plan
    config_yaml: str
    info: RunInfo


def parse_record(payload: bytes, run_id: str) -> HostRecord:
    """Return the record in a host's reply; raise ValueError unless all of it is of that run."""
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
    return replace(record, info=replace(record.info, run_id=run_id))


def agreed_record(records: Mapping[str, HostRecord], *, per_host: bool = False) -> HostRecord:
    """Return the record of the last attempt with the most nodes, which all hosts must agree on.

    A host may lie. With `per_host` records may differ, and each host's part is its own.

    Raises:
        NotReady: Records differ; it names the hosts whose record is not that of most.
    """
    best = max(records.values(), key=lambda record: (record.plan.attempt, len(record.plan.nodes)))
    deviants = _deviants(records, best.plan.attempt)
    if deviants and not per_host:
        raise NotReady([_disagreement(name, best.plan.run_id) for name in deviants])
    if not deviants:
        return best
    own = {
        part.node: part
        for name, record in records.items()
        for part in record.plan.nodes
        if part.node == name
    }
    nodes = tuple(own.pop(part.node, part) for part in best.plan.nodes)
    return replace(best, plan=replace(best.plan, nodes=(*nodes, *own.values())))


def _deviants(records: Mapping[str, HostRecord], attempt: int) -> list[str]:
    """Return the hosts whose record of a run differs from that of most; all if there is no most.

    The configuration is the same in all attempts. So is the plan on all hosts of one attempt,
    unless nodes may join: then it is that of the time when its host did.
    """
    digests = {name: _digest(record.config_yaml) for name, record in records.items()}
    plans = {
        name: _digest(json.dumps(encode(record.plan), sort_keys=True))
        for name, record in records.items()
        if record.plan.attempt == attempt and not record.plan.min_nodes
    }
    return sorted({*_minority(digests), *_minority(plans)})


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _minority(digests: Mapping[str, str]) -> list[str]:
    counts = Counter(digests.values()).most_common(2)
    is_tie = len(counts) > 1 and counts[0][1] == counts[1][1]
    return [name for name, digest in digests.items() if is_tie or digest != counts[0][0]]


def _disagreement(name: str, run_id: str) -> Problem:
    message = f"its record of {run_id} is not the one that other hosts have"
    hint = f"one of them was changed: compare runs/{run_id}/*/{{config.yaml,plan.json}} there"
    return Problem(name, message, hint)
