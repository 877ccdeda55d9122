"""Record of a big run on disk: of 1,000 ranks, with as many lines of metrics as are kept."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path

from runner.control.record.launch_record import CONFIG_FILE, PLAN_FILE
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node
from runner.core.wire import events
from runner.core.wire.codec import encode
from runner.core.wire.events import Event, EventBody
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import GpuSample, Sample
from tests.golden import builders

RUN_ID = "1114-2213-digits-b16b"
LAUNCH = 1_700_000_000.0
GPUS = 8
LINE = (
    '{"v": 1, "node": "%s", "attempt": 0, "rank": %d, "stream": "out", '
    '"step": %d, "steps": 1000, "loss": %.5f, '
    '"rate": %.2f, "unit": "samples", "more": {"lr": %g}}\n'
)


def big_plan(node_count: int) -> Plan:
    """A plan of 8 ranks on each of so many nodes."""
    hosts = {f"gpu{n:03}": f"10.0.{n // 250}.{n % 250 + 1}" for n in range(node_count)}
    nodes = [Node(name, host, nproc_per_node=GPUS) for name, host in hosts.items()]
    found = {
        name: builders.facts(name, f"eth0 {host}/16", gpu_count=GPUS)
        for name, host in hosts.items()
    }
    return build_plan(builders.spec(*nodes, run_id=RUN_ID), found)


def write_big_record(
    folder: Path, ranks: int = 1000, lines: int = 150_000, event_count: int = 10_000
) -> None:
    """Write a record into a folder: plan, configuration, events, metrics, samples and logs."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = big_plan(ranks // GPUS)
    (folder / PLAN_FILE).write_text(json.dumps(encode(plan)))
    (folder / CONFIG_FILE).write_text("task: {args: {lr: 0.1}}\n")
    steps = lines // ranks
    with (folder / "events.jsonl").open("w") as file:
        file.writelines(event.to_line() for event in big_events(plan, event_count))
    for number, node in enumerate(plan.nodes):
        samples = folder / "hosts" / node.node / "attempt_0" / "samples.jsonl"
        samples.parent.mkdir(parents=True, exist_ok=True)
        moments = (_sample(node.node, number, moment).to_line() for moment in range(120))
        samples.write_text("".join(moments))
        logs = folder / "logs" / node.node
        logs.mkdir(parents=True)
        for rank in node.ranks:
            (logs / f"rank_{rank}.out").write_text("".join(f"step {n}\n" for n in range(50)))
    with (folder / "metrics.jsonl").open("w") as file:  # after the logs that it is made of
        for step in range(steps):
            file.writelines(_metric_lines(plan, step))


def _metric_lines(plan: Plan, step: int) -> Iterable[str]:
    for node in plan.nodes:
        for rank in node.ranks:
            loss = 2 * math.exp(-step / 300) + 0.02 * math.sin(step + rank)
            yield LINE % (node.node, rank, step, loss, 800 + rank % 9, 0.1)


def big_events(plan: Plan, count: int) -> list[Event]:
    """Starts and ends of all ranks, and stalls between them."""
    happened = [
        Event(plan.run_id, node.node, 0, rank, LAUNCH + 3 + rank / 500, 1.0, body)
        for node in plan.nodes
        for rank in node.ranks
        for body in (events.RankStarted(rank, 1000 + rank),)
    ]
    happened += [
        Event(plan.run_id, node.node, 0, 5000 + rank, LAUNCH + 3700 + rank / 500, 1.0, body)
        for node in plan.nodes
        for rank in node.ranks
        for body in (events.RankExited(rank, 0 if rank % 100 else 1),)
    ]
    others = count - len(happened)
    for number in range(others):
        node = plan.nodes[number % len(plan.nodes)].node
        body: EventBody = events.ProgressResumed() if number % 2 else events.Stalled(30.0)
        wall = LAUNCH + 20 + number * 3600 / others
        happened.append(Event(plan.run_id, node, 0, 10_000 + number, wall, 1.0, body))
    return sorted(happened, key=lambda event: event.wall)


def _sample(node: str, number: int, moment: int) -> Sample:
    busy = 90 + round(9 * math.sin(moment / 5 + number))
    gpus = tuple(
        GpuSample(gpu, "A100", busy, 60 << 30, 80 << 30, 300.0 + busy, 60.0 + gpu)
        for gpu in range(GPUS)
    )
    wall = LAUNCH + 5 + moment * 30
    return Sample(node, 0, wall, 64, busy / 3, 10**11, 10**12, gpus)
