"""What follows an attempt, as its hub and members decide: with a launch, and without one."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.wire.codec import encode
from runner.core.wire.events import NotRelaunched
from runner.core.wire.paths import RunPaths
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.states import Reason, ReasonKind
from runner.host.facts.ports import NO_PORTS
from runner.host.peers.fold import HubFold, LastHeard, PeerState, Phase, Upcoming
from runner.host.supervisor.attempt import Decision, SupervisorArgs
from tests.golden.builders import asked, failed
from tests.unit.core.wire.test_next_attempt import HUB, ORDERS
from tests.unit.host.supervisor.test_stop_ladder import Journal

LONG_AGO_S = 100.0
FAILED = failed("b", 1, 1)


class Scene:
    """A hub `a` after an attempt with `b`, `c` and a spare `d`; who is named in `proven` answers.

    The others were lost long ago, but for those that never came.
    """

    def __init__(self, proven: str = "", never: str = "", **changes: Any) -> None:
        self.orders = {
            name: replace(order, relaunch_pause_s=0.0, **changes) for name, order in ORDERS.items()
        }
        shares = tuple(
            NodePlan(n, n, (), {}, ranks=(), gpus=(), interface="", order=order)
            for n, order in self.orders.items()
        )
        plan = Plan("run", "lab", "t", 0, shares[:3], 3, "gloo", "10.0.0.1", 0, spares=shares[3:])
        self.record = {"plan": encode(plan), "info": {"run_id": "run"}, "config": ""}
        self.fold = HubFold(self.orders["a"], HUB, lambda _: None, 0.0)
        now = time.monotonic()
        for name in sorted({*"bcd"} - {*never}):
            phase = Phase.PENDING if name in proven else Phase.DEAD
            state = PeerState("run", 0, name, 0, 1, phase)
            self.fold.take(state, now if name in proven else now - LONG_AGO_S)
        self.journal = Journal()
        self.decided: list[Upcoming | str] = []

    def decide(
        self,
        reason: Reason | None = FAILED,
        problem: str = "",
        *,
        launch_is_gone: bool = True,
        is_detached: bool = True,
    ) -> Upcoming | None:
        group = SimpleNamespace(fold=self.fold, pend=lambda: None, decide=self.decided.append)
        lease = SimpleNamespace(
            hosts_decide=launch_is_gone,
            detached=is_detached,
            heard_anywhere=LastHeard(0.0, launch=9.0),
        )
        folder = RunPaths("/w", "run", "a")
        decision = Decision(
            SupervisorArgs(folder, self.orders["a"], {}, NO_PORTS, b"token", record=self.record),
            cast("Any", SimpleNamespace(reason=reason, stopped_at=9.0)),
            cast("Any", group),
            cast("Any", lease),
            cast("Any", self.journal),
            lambda: problem,
        )
        return decision.wait(began_at=0.0)


@pytest.mark.parametrize(
    ("reason", "nodes"),
    [(failed("b", 1, 1), "acd"), (Reason(ReasonKind.STALL, "b", detail="9 s"), "abc")],
    ids=["failed", "stalled"],
)
def test_a_spare_takes_the_place_of_who_stopped_first(reason: Reason, nodes: str) -> None:
    """It stands by then; a standstill is nobody's."""
    scene = Scene("bcd", relaunches_stalls=True)
    scene.fold.first_to_stop = "b"
    upcoming = scene.decide(reason)
    assert upcoming is not None
    assert upcoming.nodes == tuple(nodes)


def test_a_launch_that_is_there_decides() -> None:
    """The hosts say nothing about it."""
    scene = Scene("bcd")
    assert scene.decide(launch_is_gone=False) is None
    assert scene.journal.bodies == []
    assert scene.decided == [""]


@pytest.mark.parametrize(
    ("scene", "more", "refusal"),
    [
        (Scene("b", never="c"), {}, "c never reached a, so that its end is not known"),
        (Scene("bcd"), {"problem": "a stop was requested"}, "a stop was requested"),
        (
            Scene(min_nodes=1),
            {"is_detached": False},
            "no other node answers, and a launch may relaunch it there",
        ),
    ],
    ids=["never joined", "stopped", "alone"],
)
def test_why_nothing_follows(scene: Scene, more: dict[str, Any], refusal: str) -> None:
    """It is on record, and the members are told."""
    if "problem" in more:  # else there is no pause in which it could come
        scene.orders["a"] = replace(scene.orders["a"], relaunch_pause_s=60.0)
    assert scene.decide(**more) is None
    assert scene.decided == [refusal]
    assert scene.journal.bodies[-1] == NotRelaunched(refusal)


def test_a_hub_alone_goes_on_where_no_launch_can_be() -> None:
    """It was detached; an elastic run needs no more."""
    upcoming = Scene(min_nodes=1).decide()
    assert upcoming is not None
    assert upcoming.nodes == ("a",)


@pytest.mark.parametrize(
    "reason",
    [asked("stop requested"), None, Reason(ReasonKind.UNATTENDED, "a", detail="10 s")],
    ids=["a user's wish", "success", "nobody was there"],
)
def test_an_end_that_no_attempt_follows(reason: Reason | None) -> None:
    """Nobody waits for anything."""
    scene = Scene("bcd")
    assert scene.decide(reason) is None
    assert scene.decided == []
