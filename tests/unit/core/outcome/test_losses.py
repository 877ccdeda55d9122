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
from tests.golden.builders import asked, plan, told

FAILED, STOPPED = Ended(State.FAILED), Ended(State.STOPPED)
STALL = Reason(ReasonKind.STALL, "a", detail="9 s")
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


@pytest.mark.parametrize(
    ("told", "gone", "suspect"),
    [
        pytest.param(
            [
                ("b", RankExited(1, 3)),
                ("", StopRequested(told())),
                *((n, FAILED) for n in "abc"),
            ],
            {},
            {"b"},
            id="a rank failed",
        ),
        pytest.param(
            [("c", PeerLost("b", "silent")), ("a", TOLD), ("a", STOPPED), ("c", STOPPED)],
            {"b": "silent"},
            set(),
            id="a host was lost",
        ),
        pytest.param(
            [("a", PeerLost("b", "silent")), *((n, STOPPED) for n in "acb")],
            {},
            {"b"},
            id="a lost host came back, and nothing is left there",
        ),
        pytest.param(
            [("b", PeerLost("a", "silent")), ("c", STOPPED), ("b", STOPPED)],
            {"a": "silent"},
            set(),
            id="the hub's host was lost",
        ),
        pytest.param(
            [("b", PeerLost("a", "silent")), ("a", TOLD), ("a", STOPPED), ("c", STOPPED)],
            {"b": "out of touch with a: silent"},
            set(),
            id="who lost the hub, which is well, was cut off",
        ),
        pytest.param(
            [
                ("a", Stopping(Reason(ReasonKind.STALL, "a", detail="9 s"))),
                *((n, STOPPED) for n in "abc"),
            ],
            {},
            set(),
            id="a watchdog saw no progress: nobody is to blame",
        ),
        pytest.param(
            [("b", RankExited(1, 3)), ("b", FAILED), ("a", STOPPED), ("c", EndUnverified("late"))],
            {"c": "late"},
            {"b"},
            id="a host did not say that nothing is left",
        ),
    ],
)
def test_what_an_attempt_cost(
    told: list[tuple[str, EventBody]], gone: dict[str, str], suspect: set[str]
) -> None:
    """Who cannot take part any more, and who had better not."""
    assert losses(*told) == Losses(gone, frozenset(suspect))


def test_a_node_without_which_a_run_went_on_is_gone() -> None:
    """Unless it came back, or showed that nothing is left there."""
    left = ("a", PeerDeparted("c", "no power", 2))

    assert losses(left).excluded == {"c": "no power"}
    assert losses(left, ("c", STOPPED)).excluded == {}
    back = ("c", ProgramStarted(8, rejoin_count=1))
    assert losses(left, back).excluded == {}


LOST = story(("a", PeerLost("b", "silent")), ("a", STOPPED), ("c", STOPPED))
STILL = story(
    ("a", Stopping(Reason(ReasonKind.STALL, "a", detail="9 s"))), *((n, STOPPED) for n in "abc")
)


@pytest.mark.parametrize(
    ("observed", "why", "again"),
    [
        (story(("b", RankExited(1, 3)), *((n, FAILED) for n in "abc")), "rank 1 on b exited", True),
        (LOST, "lost b: silent", True),
        (
            story(("", StopRequested(asked(), 2)), *((n, STOPPED) for n in "abc")),
            "stopped",
            False,
        ),
        (
            story(
                *((n, RankExited(r, 0)) for r, n in enumerate("abc")),
                *((n, Ended(State.SUCCEEDED)) for n in "abc"),
            ),
            "succeeded",
            False,
        ),
        (story(("b", RankExited(1, 3)), ("b", Ended(State.STUCK, survivors=(4,)))), "rank", False),
        (STILL, "no rank made progress for 9 s", False),
    ],
    ids=["failed", "lost", "stopped", "succeeded", "stuck", "still"],
)
def test_what_may_be_followed_by_another(observed: list[TimedEvent], why: str, again: bool) -> None:
    """A failure may; not what the user ended, what cannot be killed, or what only stands still."""
    verdict = fold_events(plan(1, 1, 1), observed, 1.0)

    assert past_attempt(plan(1, 1, 1), verdict).reason.text.startswith(why)
    assert may_relaunch(spec("abc"), verdict) is again
