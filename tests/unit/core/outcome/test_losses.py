"""Relaunch policy: the nodes of the next attempt."""

from __future__ import annotations

import pytest

from runner.core.outcome.losses import (
    Losses,
    classify_losses,
    may_relaunch,
    next_spec,
    past_attempt,
)
from runner.core.outcome.verdict import fold_events
from runner.core.spec import Node, Spec, Task
from runner.core.wire.events import (
    Ended,
    EndUnverified,
    Event,
    EventBody,
    PeerDeparted,
    PeerLost,
    ProgramStarted,
    RankExited,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.states import Reason, ReasonKind, State
from tests.golden.builders import asked, lost, plan, told

FAILED, STOPPED = Ended(State.FAILED), Ended(State.STOPPED)
TOLD = Stopping(told("it failed elsewhere"))


def spec(used: str, spares: str = "", least: int | None = None, decides: str = "") -> Spec:
    nodes, more = (tuple(Node(name, name) for name in names) for names in (used, spares))
    task = Task(name="t", kind="script", target="t.py", decides=decides)
    return Spec(run_id="r", nodes=nodes, task=task, spares=more, min_nodes=least)


def losses(*told: tuple[str, EventBody]) -> Losses:
    made = plan(1, 1, 1)
    history = story(*told)
    return classify_losses(made, history, fold_events(made, history, 1.0).first_failure)


@pytest.mark.parametrize(
    ("before", "gone", "suspect", "after"),
    [
        pytest.param(spec("abc"), "", "b", ("abc", ""), id="no spare: it is tried again"),
        pytest.param(spec("abc"), "b", "", None, id="too few are left"),
        pytest.param(spec("abc", "d"), "b", "", ("acd", ""), id="a spare takes its place"),
        pytest.param(spec("abc", "d"), "a", "", ("bcd", ""), id="of the master, too"),
        pytest.param(spec("abc", "d"), "", "b", ("acd", "b"), id="who failed is spare now"),
        pytest.param(spec("abc", "de"), "bd", "a", ("ace", ""), id="a suspect is better than none"),
        pytest.param(spec("abc", least=2), "b", "", ("ac", ""), id="elastic: fewer will do"),
        pytest.param(spec("abc", least=2), "bc", "", None, id="elastic: too few"),
        pytest.param(spec("abc", "d", decides="b"), "b", "", None, id="who decides is lost"),
        pytest.param(spec("abc", "d", decides="b"), "", "b", ("abc", "d"), id="it failed"),
        pytest.param(spec("abc", "d", decides="master"), "a", "", ("bcd", ""), id="any may"),
    ],
)
def test_who_takes_part(
    before: Spec, gone: str, suspect: str, after: tuple[str, str] | None
) -> None:
    """As many as before, in the order of the YAML."""
    found = next_spec(before, gone, suspect)

    told = found and tuple("".join(n.name for n in nodes) for nodes in (found.nodes, found.spares))
    assert told == after


def story(*told: tuple[str, EventBody]) -> list[TimedEvent]:
    """What happened on nodes a, b and c, of which all began, in this order."""
    began: list[tuple[str, EventBody]] = [(name, ProgramStarted(7)) for name in "abc"]
    return [
        TimedEvent(float(at), Event("r", name, 0, at, 0.0, float(at), body))
        for at, (name, body) in enumerate((*began, *told))
    ]


def ended(names: str, end: Ended = STOPPED) -> list[tuple[str, EventBody]]:
    return [(name, end) for name in names]


OF_B = ("b", RankExited(1, 3))
LOST_B = ("a", PeerLost("b", "silent"))
STALLED = [("a", Stopping(Reason(ReasonKind.STALL, "a", detail="9 s"))), *ended("abc")]
CUT_OFF = {"b": "out of touch with a: silent"}


@pytest.mark.parametrize(
    ("told", "gone", "suspect"),
    [
        ([OF_B, ("", StopRequested(told())), *ended("abc", FAILED)], {}, {"b"}),
        ([("c", PeerLost("b", "silent")), ("a", TOLD), *ended("ac")], {"b": "silent"}, set()),
        ([LOST_B, *ended("acb")], {}, {"b"}),
        ([("b", PeerLost("a", "silent")), *ended("cb")], {"a": "silent"}, set()),
        ([("b", PeerLost("a", "silent")), ("a", TOLD), *ended("ac")], CUT_OFF, set()),
        (STALLED, {}, set()),
        ([OF_B, ("b", FAILED), ("a", STOPPED), ("c", EndUnverified("late"))], {"c": "late"}, {"b"}),
    ],
    ids=[
        *("a rank failed", "lost", "it came back, and nothing is left", "the hub was lost"),
        *("cut off from the hub, which is well", "a stall blames nobody", "no proof of an end"),
    ],
)
def test_what_an_attempt_cost(
    told: list[tuple[str, EventBody]], gone: dict[str, str], suspect: set[str]
) -> None:
    """Who cannot take part any more, and who had better not."""
    assert losses(*told) == Losses(gone, frozenset(suspect))


def test_a_reason() -> None:
    """Whether a node failed itself is not for others to say."""
    reason = Reason(ReasonKind.SUPERVISOR, "b", detail="why")
    assert (reason.is_own("b"), reason.is_own("a")) == (True, False)
    assert not reason.as_told_to("b").is_own("b")
    assert reason.as_told_to("a") == reason
    assert not lost("b", "why").is_own("b")
    assert Reason(ReasonKind.SCHEDULER, "b").outcome == ("stopped", 1)
    assert Reason(ReasonKind.TIME_LIMIT, "b").outcome == ("stopped", 130)


def test_a_node_without_which_a_run_went_on_is_gone() -> None:
    """Unless it came back, or showed that nothing is left there."""
    left = ("a", PeerDeparted("c", "no power", 2))

    assert losses(left).excluded == {"c": "no power"}
    assert losses(left, ("c", STOPPED)).excluded == {}
    back = ("c", ProgramStarted(8, rejoin_count=1))
    assert losses(left, back).excluded == {}


ENDS_WELL = [(name, RankExited(rank, 0)) for rank, name in enumerate("abc")]
WELL = [*ENDS_WELL, *ended("abc", Ended(State.SUCCEEDED))]


@pytest.mark.parametrize(
    ("told", "why", "again"),
    [
        ([OF_B, *ended("abc", FAILED)], "rank 1 on b exited", True),
        ([LOST_B, *ended("ac")], "lost b: silent", True),
        ([("", StopRequested(asked(), 2)), *ended("abc")], "stopped", False),
        (WELL, "succeeded", False),
        ([OF_B, ("b", Ended(State.STUCK, survivors=(4,)))], "rank", False),
        (STALLED, "no rank made progress for 9 s", False),
    ],
)
def test_what_may_be_followed_by_another(
    told: list[tuple[str, EventBody]], why: str, *, again: bool
) -> None:
    """A failure may; not what the user ended, what cannot be killed, or what only stands still."""
    verdict = fold_events(plan(1, 1, 1), story(*told), 1.0)

    assert past_attempt(plan(1, 1, 1), verdict).reason.text.startswith(why)
    assert may_relaunch(spec("abc"), verdict) is again
