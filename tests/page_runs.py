"""Data of runs for pages: a failed one with two attempts, a good one, and hostile texts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from runner.core.history import LogTail, Metric, RunData, Series
from runner.core.outcome.attempt_events import NodeResult, RankResult
from runner.core.outcome.diagnosis import Diagnosis
from runner.core.outcome.verdict import Verdict
from runner.core.wire import events
from runner.core.wire.events import Event, EventBody
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import State
from tests.golden import builders
from tests.golden.builders import failed, told

LAUNCH = 1_700_000_000.0
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\u2028\u202eevil"
)
TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "train.py", line 41, in <module>',
    "    loss.backward()",
    "RuntimeError: CUDA error: an illegal memory access was encountered",
)
SECONDS = 600


def plan(run_id: str, attempt: int, *ranks: int) -> Plan:
    """A plan of an attempt with so many ranks on each node, and as many GPUs."""
    made = builders.plan(*ranks)
    nodes = tuple(replace(node, gpus=tuple(range(node.nproc))) for node in made.nodes)
    return replace(made, run_id=run_id, attempt=attempt, nodes=nodes, commit="0123456789abcdef" * 2)


def attempt_events(made: Plan, start: float, end: float, failed: int | None) -> Iterable[Event]:
    """What the nodes of an attempt do; the rank `failed` fails 2 s before the end."""
    seq = 0

    def event(node: str, wall: float, body: EventBody) -> Event:
        nonlocal seq
        seq += 1
        return Event(made.run_id, node, made.attempt, seq, wall, wall, body)

    for number, node in enumerate(made.nodes):
        yield event(node.node, start + 1 + number / 10, events.ProgramStarted(100))
        for rank in node.ranks:
            yield event(node.node, start + 2 + rank / 10, events.RankStarted(rank, 200 + rank))
    for node in made.nodes:
        if failed is not None and failed not in node.ranks:
            stop = events.Stopping(told("a rank failed"))
            yield event(node.node, end - 1.5, stop)
        for rank in node.ranks:
            body = events.RankExited(rank, 0)
            if failed is not None:
                body = events.RankExited(rank, signal=15)
            if rank == failed:
                body = events.RankExited(rank, 1, exception=TRACEBACK[-1])
            yield event(node.node, end - (2 if rank == failed else 1), body)
        code = 0 if failed is None else 1
        yield event(node.node, end - 0.5, events.ProgramExited(code))
        state = State.SUCCEEDED if failed is None else State.FAILED
        yield event(node.node, end, events.Ended(state))


def metric(name: str, unit: str, attempts: Iterable[int]) -> Metric:
    """A figure of four ranks that falls, with noise, in each attempt."""
    by_attempt: dict[int, Series] = {}
    steps = tuple(range(200))
    values: tuple[float, ...] = ()
    for attempt in attempts:
        values = tuple(2.5 * math.exp(-n / 80) + 0.1 * math.sin(n * (attempt + 2)) for n in steps)
        by_attempt[attempt] = Series(steps, values)
    return Metric(name, unit, 0, values[-1], min(values), max(values), by_attempt)


def loads(start: float, end: float) -> dict[str, dict[str, Series]]:
    """Those of two nodes with two GPUs each."""
    times = tuple(start + n * (end - start) / 200 for n in range(200))

    def series(base: float, swing: float) -> Series:
        return Series(times, tuple(base + swing * math.sin(n / 9 + base) for n in range(200)))

    gpus = [(f"{node} GPU {index}", index) for node in "ab" for index in range(2)]
    return {
        "GPU utilization": {name: series(90 - 30 * index, 8) for name, index in gpus},
        "GPU power": {name: series(320, 40) for name, _ in gpus},
        "CPU": {node: series(35, 10) for node in "ab"},
    }


def failed_run(run_id: str = "1114-2213-digits-65a3", text: str = "plain") -> RunData:
    """A run of two attempts; rank 3 fails in both. `text` is wherever text can be."""
    plans = (plan(run_id, 0, 2, 2), plan(run_id, 1, 2, 2))
    middle = LAUNCH + SECONDS / 2
    end = LAUNCH + SECONDS
    happened = [
        *attempt_events(plans[0], LAUNCH, middle, 3),
        Event(run_id, "", 0, 1, middle, middle, events.StopRequested(told(text))),
        Event(run_id, "a", 0, 99, middle + 1, 1.0, events.Relaunching(1, ("a", "b"), told(text))),
        *attempt_events(plans[1], middle + 5, end, 3),
    ]
    happened.sort(key=lambda event: event.wall)
    logs = [
        LogTail(node, 1, f"rank_{rank}", stream, f"step 1\nstep 2\n{text}\n", 12_345)
        for node, rank in (("a", 0), ("a", 1), ("b", 2), ("b", 3))
        for stream in ("out", "err")
    ]
    ranks = {str(rank): RankResult("ab"[rank // 2], signal=15, started=True) for rank in range(3)}
    ranks["3"] = RankResult("b", 1, started=True, exception=TRACEBACK[-1])
    return RunData(
        run_id,
        f"/home/ada/digits/runs/{run_id}",
        "lab",
        "train",
        "ada@laptop",
        LAUNCH,
        end,
        Verdict(
            "failed",
            1,
            295.0,
            failed("b", 3, 1),
            3,
            nodes={"a": NodeResult(1, None, True), "b": NodeResult(1, None, True)},
            ranks=ranks,
            past_attempts=(PastAttempt(0, ("a", "b"), told("rank 3 on b exited with 1"), 300.0),),
        ),
        Diagnosis(
            (*TRACEBACK, text), ("step 199",), "illegal_access", "a kernel read outside", text
        ),
        plans,
        {
            "cluster": {
                "nodes": {"a": {"host": "10.0.0.1"}, "b": {"host": "10.0.0.2"}},
                "secrets": [],
            },
            "task": {"args": {"lr": 0.1, "name": text}, "script": "train.py"},
        },
        tuple(happened),
        (
            metric("loss", "", range(2)),
            metric("rate", "samples", range(2)),
            metric(f"grad {text}", "", range(2)),
        ),
        199,
        200,
        loads(LAUNCH, end),
        tuple(logs),
        problems=(f"samples of b: line 3 is torn {text}",),
    )


def good_run(run_id: str = "1115-0900-digits-77b0") -> RunData:
    """A run that succeeded at its first attempt, with another learning rate."""
    only = plan(run_id, 0, 2, 2)
    end = LAUNCH + 500
    return replace(
        failed_run(run_id),
        ended_at=end,
        verdict=Verdict("succeeded", 0, 500.0),
        diagnosis=None,
        plans=(only,),
        config={"task": {"args": {"lr": 0.02, "name": "plain"}, "script": "train.py"}},
        events=tuple(sorted(attempt_events(only, LAUNCH, end, None), key=lambda e: e.wall)),
        metrics=(metric("loss", "", [0]),),
        loads=loads(LAUNCH, end),
        problems=(),
    )
