"""The verdict on an elastic run.

Nodes a, b and c have one rank each; times are seconds on the controller's clock.
"""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from runner.core.outcome.verdict import Verdict, fold_events
from runner.core.planning.build_plan import build_plan
from runner.core.spec import Node, Rendezvous, Torchrun
from runner.core.wire.events import (
    Ended,
    Event,
    EventBody,
    PeerDeparted,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.order import Program
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State
from tests.golden.builders import asked, facts, failed, spec, told

OK = Ended(State.SUCCEEDED)
DIED = Reason(ReasonKind.SUPERVISOR, "c", detail="its supervisor died")


def planned() -> Plan:
    nodes = [Node(name, f"10.0.0.{at}", nproc_per_node=1) for at, name in enumerate("abc", start=1)]
    restarts = Torchrun(max_restarts=3)
    wish = spec(*nodes, rendezvous=Rendezvous("c10d"), torchrun=restarts, min_nodes=2)
    return build_plan(wish, {n.name: facts(n.name, f"eth0 {n.host}/24") for n in nodes})


def seen(at: float, node: str, *bodies: EventBody) -> list[TimedEvent]:
    return [TimedEvent(at, Event("r", node, 0, 0, 0.0, at, body)) for body in bodies]


def member(at: float, port: int, nodes: str, number: int = 1) -> list[TimedEvent]:
    """The ranks of a membership begin, for the `number`-th time on their nodes."""
    found = []
    for rank, node in enumerate(nodes):
        if number == 1:
            found += seen(at, node, ProgramStarted(7))
        body = RankStarted(rank, 8, number, len(nodes), len(nodes), f"m:{port}")
        found += seen(at, node, body)
    return found


def ended(at: float, nodes: str, number: int = 1, code: int = 0) -> list[TimedEvent]:
    """All goes well on these nodes, rank by rank, or not."""
    state = OK if code == 0 else Ended(State.FAILED)
    found = []
    for rank, node in enumerate(nodes):
        found += seen(at, node, RankExited(rank, code, start=number), ProgramExited(code), state)
    return found


def folded(*stories: list[TimedEvent]) -> Verdict:
    return fold_events(planned(), [each for story in stories for each in story], 30.0)


ALL = member(1, 1, "abc")
WITHOUT_C = [
    *seen(5, "a", PeerDeparted("c", "nothing was heard from it for 15 s", 2)),
    *seen(5, "a", RankExited(0, signal=15)),
    *seen(5, "b", RankExited(1, signal=15)),
    *member(8, 2, "ab", 2),
]


def test_a_node_that_left_takes_nothing_from_a_success() -> None:
    """It is named, since nobody knows what is left there."""
    said = folded(ALL, WITHOUT_C, ended(20, "ab", 2))
    assert (said.state, said.exit_code, said.membership_count) == ("succeeded", 0, 2)
    assert said.first_failure is None
    assert said.unverified == ("c",)


def test_a_node_that_came_back_is_proven() -> None:
    """What its dead supervisor left was closed before, and is no failure of the run."""
    closed = seen(9, "c", Stopping(DIED), Ended(State.FAILED, DIED))
    back = seen(10, "c", ProgramStarted(7, rejoin_count=1))
    said = folded(ALL, WITHOUT_C, closed, back, member(12, 3, "abc", 3), ended(20, "abc", 3))
    assert (said.state, said.exit_code, said.unverified) == ("succeeded", 0, ())


def test_the_first_failure_is_that_of_the_last_membership() -> None:
    """What failed before was taken care of."""
    again = seen(5, "a", RankExited(0, 3))
    said = folded(ALL, again, member(8, 2, "abc", 2), ended(20, "abc", 2, code=4))
    assert said.first_failure == failed("a", 0, 4)
    assert said.exit_code == 1


@pytest.mark.promise(12)
def test_a_rank_of_no_membership_may_fail_first() -> None:
    """A host may say so where torch restarts none."""
    nodes = [
        replace(share, order=replace(share.order, program=Program())) for share in planned().nodes
    ]
    plan = replace(planned(), nodes=tuple(nodes))
    said = fold_events(plan, [*ALL, *seen(5, "a", RankExited(7, 3, start=9))], 30.0)
    assert said.first_failure == failed("a", 7, 3)
    assert said.ranks["7"].node == "a"


@pytest.mark.parametrize(("at", "silence_s"), [(15, 0.0), (7.5, 15.0)])
def test_too_few_left_is_a_loss(at: float, silence_s: float) -> None:
    """The second one was too much, also if its last sign of life is older than its ranks."""
    second = seen(at, "a", PeerLost("b", "nothing was heard from it for 15 s", silence_s=silence_s))
    rest = seen(23, "a", Stopping(told("lost b")), RankExited(0, signal=15, start=2), OK)
    said = folded(ALL, WITHOUT_C, second, rest)
    assert (said.state, said.exit_code) == ("lost", 4)
    assert said.first_failure is not None
    assert said.first_failure.node == "b"


@pytest.mark.parametrize("signum", [2, 15])
def test_a_stop_wants_a_proof_of_every_node(signum: int) -> None:
    """Also of one that was lost before."""
    wish = seen(12, "", StopRequested(asked("interrupted"), signum))
    rest = ended(14, "ab", 2, code=1)
    said = folded(ALL, WITHOUT_C, wish, rest)
    assert said.exit_code == 5
    assert said.unverified == ("c",)


@pytest.mark.parametrize("delay_s", [0.01, -0.01])
def test_a_death_that_the_run_outlived_is_no_failure(delay_s: float) -> None:
    """Whether the guardian of the dead supervisor or another host was the first to record it."""
    closed = seen(5 + delay_s, "c", Stopping(DIED), Ended(State.FAILED, DIED))
    wish = seen(12, "", StopRequested(asked("interrupted"), 2))
    rest = ended(14, "ab", 2, code=1)
    said = folded(ALL, closed, WITHOUT_C, wish, rest)
    assert (said.exit_code, said.first_failure) == (130, None)


@pytest.mark.promise(4, 13)
def test_a_host_that_reports_without_an_end_holds_up_no_verdict() -> None:
    """Each event costs the same, however many came before."""
    own_stop = Stopping(Reason(ReasonKind.HOST, "b", detail="its disk is full"))
    flood: list[TimedEvent] = []
    for number in range(8000):
        start = RankStarted(number, 8, number, 3, 10_000, f"m:{number}")
        end = RankExited(number, 1, start=number, exception="ValueError: x")
        flood += seen(number, "b", own_stop, start, end)
    began = time.process_time()
    folded(flood)
    assert time.process_time() - began < 10
