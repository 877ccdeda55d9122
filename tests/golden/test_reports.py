"""Reports of a run at its beginning and its end, and answers of verbs about it, on one page."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from runner.core.outcome.attempt_events import NodeResult, RankResult
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.stacks import Stack, StackGroup, StackReport
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import build_plan
from runner.core.results import CommandResult
from runner.core.spec import Node
from runner.core.wire.order import Hub
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt, RunInfo
from runner.core.wire.states import Reason, ReasonKind
from runner.ui.reports.report import detach_notice, final_report, run_header
from runner.ui.reports.run_table import Row, next_step, render_stop, run_lines
from runner.ui.reports.tables import render_failures, render_stacks
from tests.golden.builders import facts, failed, lost, plan, spec
from tests.golden.conftest import Check

DONE = NodeResult(0, end_verified=True)
FAILED = replace(DONE, code=1)
TERM = 15
KILL = 9
FLAGS = "--run ID"
ROW = Row(
    run_id="run-a",
    task="train",
    owner="ada@lap",
    state="running",
    age=3.0,
    nodes=("gpu1",),
    of=1,
    gpus=0,
    attempt=0,
    ended=False,
)


def told(verdict: Verdict, made: Plan | None = None, **tails: list[str]) -> str:
    """Return the report; `tails` are the last lines of logs by their names, `.` as `_`."""

    def tail(node: str, name: str, lines: int) -> list[str]:
        assert lines >= 12
        return tails.get(f"{node}_{name.replace('.', '_')}", [])

    made = made or plan(2, 2)
    diagnosis = diagnose(made, verdict, tail)
    text, _ = final_report(
        made, verdict, Path("runs/0314"), diagnosis, disconnect_s=15.0, run_flags="--run ID -c lab"
    )
    return text


def ranks(*ends: int | None, signals: dict[int, int] | None = None) -> dict[str, RankResult]:
    """Results of ranks on a and b by exit code; None and no signal is an end nobody saw."""
    signals = signals or {}
    return {
        str(rank): RankResult(
            "a" if rank < len(ends) / 2 else "b", code, signals.get(rank), started=True
        )
        for rank, code in enumerate(ends)
    }


def verdict_of(rank: int, detail: str, results: dict[str, RankResult]) -> Verdict:
    failure = Reason(ReasonKind.RANK, "ab"[rank // 2], rank, detail=detail)
    return Verdict("failed", 1, 65.0, failure, nodes={"a": FAILED, "b": FAILED}, ranks=results)


def of_two_hundred_nodes() -> str:
    """Those that fared alike are one line; the one that failed has its own."""
    names = [f"n{number}" for number in range(200)]
    made = build_plan(
        spec(*(Node(name, name, addr="10.0.0.1") for name in names)),
        {name: facts(name) for name in names},
    )
    ends = {
        str(rank): RankResult(f"n{rank}", None, TERM, started=True) for rank in range(len(names))
    }
    ends["7"] = RankResult("n7", 77, None, started=True)
    ends["9"] = RankResult("n9", None, None, started=True)
    nodes = dict.fromkeys(names, replace(DONE, code=1, killed=3))
    nodes["n9"] = NodeResult()
    first = failed("n7", 7, 77)
    return told(Verdict("failed", 1, 65.0, first, nodes=nodes, ranks=ends), made)


def failures() -> Iterator[tuple[str, str]]:
    yield "one of 200 nodes", of_two_hundred_nodes()
    all_killed = ranks(None, None, None, None, signals=dict.fromkeys(range(4), TERM))
    yield (
        "a rank that somebody else killed",
        told(verdict_of(0, "was killed by SIGTERM", all_killed)),
    )
    ends = ranks(None, None, 0, 77, signals={0: TERM, 1: KILL})
    one = replace(verdict_of(3, "exited with 77", ends), consequences=2)
    nodes = {**one.nodes, "a": replace(FAILED, killed=2)}
    wrote = ["Traceback:", "  boom", "  ~~~^^^"]
    yield (
        "with its last lines",
        told(replace(one, nodes=nodes), b_rank_3_err=wrote, b_rank_3_out=["epoch 1"]),
    )


def endings() -> Iterator[tuple[str, str]]:
    """With what becomes of hosts that are out of reach, and of files."""
    stopped = ranks(None, None, None, None, signals={0: TERM, 1: TERM})
    verdict = Verdict(
        "lost",
        4,
        30.0,
        lost("b", "nothing was heard from it for 15 s"),
        consequences=2,
        unverified=("b",),
        nodes={"a": FAILED, "b": NodeResult()},
        ranks=stopped,
    )
    made = plan(2, 2)
    order = replace(made.nodes[0].order, hub=Hub("a", "10.0.0.1", 4000, lost_s=8.0))
    made = replace(made, nodes=(replace(made.nodes[0], order=order), *made.nodes[1:]))
    yield "a lost host", told(verdict, made)
    yield "of an elastic run", told(verdict, replace(made, min_nodes=1))
    past = (
        PastAttempt(0, ("a", "b"), lost("b", "silent"), 20.0, ("b",)),
        PastAttempt(1, ("a", "c"), failed("c", 1, 3), 4.0),
    )
    good = Verdict("succeeded", 0, 65.0, nodes={"a": DONE, "b": DONE}, ranks=ranks(0, 0, 0, 0))
    yield "attempts before the last", told(replace(good, past_attempts=past))
    pushed = replace(made, release="r1")
    yield "files on the hosts", told(good, pushed)
    yield "files that were pulled", told(good, replace(pushed, outputs=("*.pt",)))
    first = replace(made.nodes[0], order=replace(order, relaunches_left=1))
    hosts_lead = replace(made, nodes=(first, made.nodes[1]))
    for lack in (False, True):
        yield (
            f"without this terminal, {'no' if lack else 'a'} way to the hub",
            detach_notice(hosts_lead, FLAGS, is_detached=True, hub_unreachable=lack),
        )
    yield (
        "a stop of many",
        render_stop("run-a", FLAGS, verdict, {"n1": 0, "n2": 0, "n3": "no answer"}),
    )
    past_node = PastAttempt(0, ("n1", "n2"), failed("n1", 0, 1), unverified=("n2",))
    again = Verdict("stopped", 130, 3.0, past_attempts=(past_node,))
    yield (
        "a stop of nodes of an earlier attempt",
        render_stop("run-a", FLAGS, again, {"n1": 0, "n2": 0}),
    )


def beginnings() -> Iterator[tuple[str, str]]:
    """What runs where; those of usual runs stand in the plans."""
    again = replace(plan(1), cluster="a", attempt=1)
    yield "of the name of its cluster, again", run_header(again)
    hosts = {"a": facts("a", "eth0 10.0.0.1/24"), "b": facts("b", "eth1 10.0.0.2/24")}
    nodes = (Node("a", "a", addr="10.0.0.1"), Node("b", "b", addr="10.0.0.2"))
    yield "hccl", run_header(build_plan(spec(*nodes, backend="hccl"), hosts))


def verbs() -> Iterator[tuple[str, str]]:
    answers = [
        CommandResult("gpu1", 0),
        CommandResult("gpu2", 1),
        CommandResult("gpu3", 1),
        CommandResult("gpu4", -9),
        CommandResult("gpu5", problem="lost: it is gone"),
    ]
    yield "exec", render_failures(answers)
    for program in ("bash", ""):
        group = StackGroup((1,), Stack(1, program, "nothing: it is gone"))
        yield (
            f"stacks of {program or 'a program that nobody knew'}",
            render_stacks(StackReport((group,), (), (), {1: "gpu2"}), []),
        )
    yield "the next step of a run that is on", next_step(ROW, FLAGS)
    yield "of a broken one", next_step(replace(ROW, state="broken"), FLAGS)
    now = time.time()
    runs = [
        RunInfo("run-a", task="train", launched_by="ada@lap", launched_at=now - 90),
        RunInfo("run-b", task="digits", launched_by="bob@lap", launched_at=now),
    ]
    lines = "\n".join(run_lines(runs, "ada@lap", {"run-b": "/other"}))
    yield "what is about to be removed", re.sub(r"\d+ s ago", "N s ago", lines)


def test_each_report_says_what_was_and_what_next(check_screen: Check) -> None:
    """Nodes, ranks and answers that are alike are one line."""
    parts = [*beginnings(), *failures(), *endings(), *verbs()]
    check_screen("reports.txt", "\n".join(f"== {title}\n{text}\n" for title, text in parts))
