"""Report of a run at its beginning and its end, word for word."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from runner.core.model.order import Hub
from runner.core.model.plan import Plan
from runner.core.model.release import CodeRef
from runner.core.model.results import Failure, NodeResult, RankResult
from runner.core.model.run_info import PastAttempt
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node
from runner.ui.reports.report import final_report, run_header
from tests.golden.builders import RUN_ID, facts, plan, spec

FOLDER = Path("runs/0314")
DONE = NodeResult(0, end_verified=True)
TERM, KILL = 15, 9


def told(verdict: Verdict, made: Plan | None = None, **tails: list[str]) -> str:
    """Return the report; `tails` are the last lines of logs by their names, `.` as `_`."""

    def tail(node: str, name: str, lines: int) -> list[str]:
        assert lines >= 12
        return tails.get(f"{node}_{name.replace('.', '_')}", [])

    made = made or plan(2, 2)
    diagnosis = diagnose(made, verdict, tail)
    return final_report(
        made, verdict, FOLDER, diagnosis, disconnect_s=15.0, run_flags="--run ID -c lab"
    )


def ranks(*ends: int | None, signals: dict[int, int] | None = None) -> dict[str, RankResult]:
    """Results of ranks on a and b by exit code; None and no signal is an end nobody saw."""
    signals = signals or {}
    return {
        str(rank): RankResult(
            "a" if rank < len(ends) / 2 else "b", code, signals.get(rank), started=True
        )
        for rank, code in enumerate(ends)
    }


def test_failure_of_many_nodes_fits_a_screen() -> None:
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
    verdict = Verdict(
        "failed", 1, 65.0, Failure("n7", 7, "exited with 77"), nodes=nodes, ranks=ends
    )
    proof = "0 processes left, 3 killed"

    assert told(verdict, made).splitlines() == [
        "first failure: rank 7 on n7 exited with 77",
        f"  n[0-6,8,10-199]  ranks 0-6, 8, 10-199 were stopped; {proof} on each",
        f"  n7               rank 7 exited with 77; {proof}",
        "  n9               rank 9 ended unseen",
        f"run {RUN_ID} failed after 1 m 05 s",
        "  logs: runs/0314/logs",
    ]


def test_who_was_killed_by_another_was_not_stopped() -> None:
    """A rank that got TERM first was stopped by somebody else, the others by us."""
    verdict = Verdict(
        "failed",
        1,
        65.0,
        Failure("a", 0, "was killed by SIGTERM"),
        nodes={"a": replace(DONE, code=1), "b": replace(DONE, code=1)},
        ranks=ranks(None, None, None, None, signals={0: TERM, 1: TERM, 2: TERM, 3: TERM}),
    )
    shown = told(verdict)
    assert "  a  rank 0 was killed by SIGTERM; rank 1 was stopped; " in shown
    assert "  b  ranks 2-3 were stopped; " in shown


def test_failure_shows_the_last_lines_of_the_first() -> None:
    """What it said, but for marks below a line of a traceback, and how the others fared."""
    verdict = Verdict(
        "failed",
        1,
        65.0,
        Failure("b", 3, "exited with 77"),
        consequences=2,
        nodes={"a": replace(DONE, code=1, killed=2), "b": replace(DONE, code=1)},
        ranks=ranks(None, None, 0, 77, signals={0: TERM, 1: KILL}),
    )

    wrote = ["Traceback:", "  boom", "  ~~~^^^"]
    assert told(verdict, b_rank_3_err=wrote, b_rank_3_out=["epoch 1"]) == (
        "first failure: rank 3 on b exited with 77\n"
        "  | Traceback:\n"
        "  |   boom\n"
        "  2 ranks failed as a consequence\n"
        "  a  rank 0 was stopped; rank 1 was killed by SIGKILL"
        "; 0 processes left, 2 killed\n"
        "  b  rank 2 succeeded; rank 3 exited with 77; 0 processes left\n"
        f"run {RUN_ID} failed after 1 m 05 s\n"
        "  logs: runs/0314/logs"
    )


def test_equal_failures_are_one() -> None:
    """None of them is said to follow from another."""
    verdict = Verdict(
        "failed",
        1,
        1.0,
        Failure("a", 0, "exited with 2"),
        same_failures=3,
        nodes={"a": DONE, "b": DONE},
        ranks=ranks(2, 2, 2, 2),
    )
    first = "first failure: rank 0 on a exited with 2, and so did "
    assert told(verdict).splitlines()[:2] == [
        f"{first}all others",
        "  a,b  ranks 0-3 exited with 2; 0 processes left",
    ]
    stopped = replace(verdict, ranks=ranks(2, None, 2, 2, signals={1: TERM}))
    assert told(stopped).splitlines()[:2] == [
        "first failure: rank 0 on a exited with 2; all others raised the same",
        "  a  rank 0 exited with 2; rank 1 was stopped; 0 processes left",
    ]
    some = replace(verdict, same_failures=1, consequences=2)
    assert told(some).splitlines()[:2] == [
        f"{first}1 other rank",
        "  2 ranks failed as a consequence",
    ]


def test_lost_host_is_named_with_what_becomes_of_it() -> None:
    """The user hears what happens if it still lives; a member of an elastic run may go on alone."""
    verdict = Verdict(
        "lost",
        4,
        30.0,
        Failure("b", None, "nothing was heard from it for 15 s"),
        consequences=2,
        unverified=("b",),
        nodes={"a": replace(DONE, code=1), "b": NodeResult()},
        ranks=ranks(None, None, None, None, signals={0: TERM, 1: TERM}),
    )

    made = plan(2, 2)
    order = replace(made.nodes[0].order, hub=Hub("a", "10.0.0.1", 4000, lost_s=8.0))
    made = replace(made, nodes=(replace(made.nodes[0], order=order), *made.nodes[1:]))

    assert told(verdict, made) == (
        "first failure: b: nothing was heard from it for 15 s\n"
        "  2 ranks failed as a consequence\n"
        "  a  ranks 0-1 were stopped; 0 processes left\n"
        "  b  ranks 2-3 outcome unknown\n"
        "  b: could not verify that all processes ended\n"
        "    a supervisor that is up ends its ranks 8 s after losing the other hosts "
        "or 15 s after losing this controller\n"
        "    when reachable again: runner stop --run ID -c lab\n"
        f"run {RUN_ID} lost after 30.0 s\n"
        "  logs: runs/0314/logs"
    )
    assert "after losing the other hosts" not in told(verdict, replace(made, min_nodes=1))


def test_the_attempts_before_the_last_are_told() -> None:
    """Each with where, how long, and why; who did not answer is named, whatever the end was."""
    past = (
        PastAttempt(0, ("a", "b"), "lost b (silent)", 20.0, ("b",)),
        PastAttempt(1, ("a", "c"), "rank 1 on c exited with 3", 4.0),
    )
    nodes = {"a": DONE, "b": DONE}
    verdict = Verdict(
        "succeeded", 0, 65.0, nodes=nodes, ranks=ranks(0, 0, 0, 0), past_attempts=past
    )

    assert (
        "after 2 relaunches:\n"
        "  attempt 1 on a,b, 20.0 s: lost b (silent)\n"
        "  attempt 2 on a,c, 4.0 s: rank 1 on c exited with 3\n"
        "  b: could not verify that all processes ended\n"
        "    a supervisor that is up ends its ranks 15 s after losing this controller\n"
        "    when reachable again: runner stop --run ID -c lab\n"
        f"run {RUN_ID} succeeded after 1 m 05 s\n"
    ) in told(verdict)


def test_ranks_of_another_accelerator_are_not_said_to_be_on_the_cpu() -> None:
    """Its devices are not counted; with gloo they are on the CPU."""
    for backend, line in (("hccl", "ranks 0-1, 1 each, hccl"), ("gloo", "1 each, on CPU, gloo")):
        asked = spec(Node("a", "10.0.0.1"), Node("b", "10.0.0.2"), backend=backend)
        hosts = {"a": facts("a", "eth0 10.0.0.1/24"), "b": facts("b", "eth0 10.0.0.2/24")}
        assert line in run_header(build_plan(asked, hosts))


def test_a_run_begins_with_two_lines() -> None:
    """What runs where, and which code; nodes that differ have lines of their own."""
    code = CodeRef(release="0123456789abcdef", commit="0" * 40 + "+")
    alike = build_plan(
        spec(Node("a", "a", addr="10.0.0.1"), Node("b", "b", addr="10.0.0.2")),
        {"a": facts("a", "eth0 10.0.0.1/24"), "b": facts("b", "eth1 10.0.0.2/24")},
        code=code,
    )
    assert run_header(alike) == (
        f"run {RUN_ID}: train on a,b (lab), ranks 0-1, 1 each, on CPU, gloo\n"
        "  code: release 0123456789abcdef, commit 000000000000 and later changes"
    )
    assert (
        run_header(replace(plan(1), cluster="a"))
        == f"run {RUN_ID}: train on a, rank 0, on CPU, gloo"
    )
    assert run_header(replace(plan(2, 1), attempt=1)) == (
        f"run {RUN_ID}: train on a,b (lab), 2 nodes, 3 ranks, gloo, attempt 2\n"
        "  a  ranks 0-1, on CPU\n  b  rank 2, on CPU"
    )


def test_files_of_ranks_are_named_where_nothing_brings_them() -> None:
    """With `task.outputs` they are beside the logs."""
    ended = Verdict("succeeded", 0, 65.0, ranks=ranks(0, 0, 0, 0))
    made = replace(plan(2, 2), release="r1")
    place = "  working folder on each host: /home/ada/.runner/runs"
    assert place in told(ended, made)
    assert place not in told(ended, replace(made, outputs=("*.pt",)))
