"""The verdict on a run: a fold over its events.

Nodes a and b have two ranks each; times are seconds on the controller's clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest

from runner.core.outcome.attempt_events import NodeResult, RankResult
from runner.core.outcome.verdict import Verdict, completed, fold_events
from runner.core.wire.events import (
    Ended,
    EndUnverified,
    Event,
    EventBody,
    HostLost,
    PeerLost,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State
from tests.golden.builders import asked, failed, own, plan, told

PLAN = plan(2, 2)
DIED = Reason(ReasonKind.SUPERVISOR, "b", detail="its supervisor ended by signal 9")
OK = Ended(State.SUCCEEDED)
FAILED = Ended(State.FAILED)
STOPPED = Ended(State.STOPPED)
TERM = 15
KILL = 9


def seen(at: float, node: str, *bodies: EventBody, mono: float = 0.0) -> list[TimedEvent]:
    """Things that happened at one time; `mono` is what the host's own clock said."""
    return [TimedEvent(at, Event(PLAN.run_id, node, 0, 0, 0.0, mono, body)) for body in bodies]


def started() -> list[TimedEvent]:
    return [
        *seen(1, "a", ProgramStarted(7), RankStarted(0, 8), RankStarted(1, 9)),
        *seen(1, "b", ProgramStarted(7), RankStarted(2, 8), RankStarted(3, 9)),
    ]


def succeeded(node: str, at: float = 9) -> list[TimedEvent]:
    ranks = (0, 1) if node == "a" else (2, 3)
    ends = [RankExited(rank, code=0) for rank in ranks]
    return seen(at, node, *ends, ProgramExited(code=0), OK)


def terminated(node: str, at: float) -> list[TimedEvent]:
    """A node that was told to stop, and did."""
    ranks = (0, 1) if node == "a" else (2, 3)
    ends = [RankExited(rank, signal=TERM) for rank in ranks]
    stop = Stopping(own(node, "told to stop"))
    return seen(at, node, stop, *ends, ProgramExited(code=1), STOPPED)


def verdict(*stories: Iterable[TimedEvent], plan: Plan = PLAN) -> Verdict:
    """Fold a story; it is said host by host, since only times count."""
    return fold_events(plan, [*started(), *itertools.chain(*stories)], 10.0)


STOP = seen(5, "", StopRequested(asked("interrupted"), 2))


def outcome(said: Verdict) -> tuple[str, int]:
    return said.state, said.exit_code


def test_all_went_well() -> None:
    """Every rank ended with 0 and nothing is left: the whole verdict."""
    assert verdict(succeeded("a"), succeeded("b")) == Verdict(
        state="succeeded",
        exit_code=0,
        seconds=10.0,
        nodes={"a": NodeResult(0, end_verified=True), "b": NodeResult(0, end_verified=True)},
        ranks={str(rank): RankResult(node, 0, started=True) for rank, node in enumerate("aabb")},
    )


GONE = "RuntimeError: [third_party/gloo/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:4"
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"
RAISED_FIRST = failed("a", 1, None, "raised ConnectionResetError")


@pytest.mark.parametrize(
    ("of_0", "of_3", "first"),
    [
        (GONE, "ValueError: no: really", failed("b", 3, None, "raised ValueError")),
        (GONE, GONE, failed("a", 0, -6)),
        (GONE, "", failed("a", 0, -6)),
        ("KeyError: 'x'", "ValueError: no", failed("a", 0, -6)),
    ],
)
def test_who_only_noticed_is_not_the_first(of_0: str, of_3: str, first: Reason) -> None:
    """Rank 3 raised, and had not ended yet when rank 0 died of its closed connections."""
    said = verdict(
        seen(5.0, "a", RankExited(0, signal=6, exception=of_0, raised_s=0.2)),
        seen(5.2, "b", Stopping(told("rank 0 on a")), RankExited(2, signal=TERM)),
        seen(5.3, "b", RankExited(3, signal=TERM, exception=of_3, raised_s=0.4)),
        seen(5.4, "b", ProgramExited(code=1), STOPPED),
        seen(5.3, "a", RankExited(1, signal=TERM), ProgramExited(code=1), FAILED),
    )
    assert said.first_failure == first
    assert outcome(said) == ("failed", 1)
    assert said.consequences == (first.rank == 3)


def test_of_several_that_raised_the_earliest_is_the_first() -> None:
    """In whichever order they end."""
    later = RankExited(2, 1, exception=RESET, raised_s=0.1)
    first = RankExited(3, 1, exception="ValueError: no", raised_s=0.4)
    said = verdict(seen(5.0, "a", RankExited(0, 1, exception=GONE)), seen(5.2, "b", later, first))
    assert said.first_failure == failed("b", 3, 1)


def test_what_ranks_raise_when_they_are_told_to_end_says_nothing() -> None:
    """Rank 2 has a handler for TERM; rank 3 raised, hung, and was killed after it."""
    noticed = seen(5.0, "a", RankExited(0, code=1, exception=GONE))
    stop = seen(5.2, "b", Stopping(told("rank 0 on a")), mono=5.2)
    handled = seen(5.3, "b", RankExited(2, code=1, exception="MyExit: said to"), mono=5.3)
    ended = seen(9.0, "a", RankExited(1, signal=TERM), ProgramExited(code=1), FAILED)
    assert verdict(noticed, stop, handled, ended).first_failure == failed("a", 0, 1)
    raised = RankExited(3, signal=KILL, exception="ValueError: no", raised_s=3.2)
    hung = seen(8.0, "b", raised, mono=8.0)
    guilty = failed("b", 3, None, "raised ValueError")
    assert verdict(noticed, stop, handled, hung, ended).first_failure == guilty


@pytest.mark.parametrize(
    ("exception", "later", "first"),
    [
        # the last that it printed before it was said to end with the others
        (
            "KeyError: 1",
            RankExited(1, None, TERM, exception=RESET, raised_s=9),
            failed("a", 0, 1),
        ),
        ("ValueError: no", RankExited(1, None, TERM, exception=RESET, raised_s=0.53), RAISED_FIRST),
        (GONE, RankExited(1, code=7), failed("a", 0, 1)),  # ends its own way when said to
    ],
)
def test_who_raised_first_and_was_stopped_before_it_had_ended_is_the_first(
    exception: str, later: RankExited, first: Reason
) -> None:
    """What was raised and handled long ago is no failure."""
    said = verdict(
        seen(5.0, "a", RankExited(0, code=1, exception=exception, raised_s=0.2), mono=5.0),
        seen(5.0, "a", Stopping(failed("a", 0, 1)), mono=5.1),
        seen(5.3, "a", later, mono=5.3),
    )
    assert said.first_failure == first


def test_failure_that_came_first_is_the_first() -> None:
    """Rank 3 failed a moment before rank 0, and was heard of later."""
    said = verdict(
        seen(5.1, "a", RankExited(0, code=1)),
        seen(5.0, "b", RankExited(3, code=77)),
        seen(5.2, "", StopRequested(told("rank 0 on a exited with 1"))),
        terminated("a", 5.3),
        terminated("b", 5.4),
    )

    assert outcome(said) == ("failed", 1)
    assert said.first_failure == failed("b", 3, 77)


def test_rank_whose_end_nobody_saw_is_a_failure() -> None:
    """SIGKILL may take a rank and its shim at once; what follows is still counted right."""
    said = verdict(
        seen(5, "a", RankExited(1)),
        seen(6, "a", RankExited(0, signal=TERM), ProgramExited(code=1), FAILED),
        succeeded("b"),
    )

    assert outcome(said) == ("failed", 1)
    assert said.first_failure == failed("a", 1, None)
    assert said.consequences == 0


@pytest.mark.parametrize(("signum", "code"), [(2, 130), (15, 143), (1, 129)])
def test_users_stop_has_its_own_code(signum: int, code: int) -> None:
    """What ends because of it is no failure."""
    said = verdict(
        seen(5, "", StopRequested(asked("interrupted"), signum)),
        terminated("a", 6),
        terminated("b", 6),
    )

    assert outcome(said) == ("stopped", code)
    assert said.stop_reason == "interrupted"
    assert said.first_failure is None
    assert said.unverified == ()


def test_users_stop_counts_even_after_a_failure() -> None:
    """Its code beats the failure's, which is still named."""
    said = verdict(
        seen(4.8, "a", RankExited(0, code=3)),
        seen(4.9, "", StopRequested(told("rank 0 on a exited with 3"))),
        [*STOP, *terminated("a", 6), *terminated("b", 6)],
    )

    assert outcome(said) == ("stopped", 130)
    assert said.first_failure == failed("a", 0, 3)


def test_a_hosts_own_word_is_better_than_what_others_saw() -> None:
    """Its supervisor was killed: the others see a closed connection, its guardian says why."""
    said = verdict(
        seen(5.0, "a", PeerLost("b", "its supervisor ended by signal 9")),
        seen(5.1, "b", Stopping(DIED)),
        terminated("a", 6),
        terminated("b", 7),
    )

    assert outcome(said) == ("failed", 1)
    assert said.first_failure == DIED


@pytest.mark.parametrize(
    "story", [succeeded("b"), [*STOP, *terminated("b", 6)]], ids=["after success", "after a stop"]
)
def test_process_that_cannot_be_killed_beats_all(story: list[TimedEvent]) -> None:
    """5 whatever else happened, with the processes named."""
    said = verdict(
        story,
        seen(8, "a", RankExited(0, code=0), RankExited(1, code=0), ProgramExited(code=0)),
        seen(9, "a", Ended(State.STUCK, None, 3, (4711,))),
    )

    assert outcome(said) == ("stuck", 5)
    assert said.nodes["a"].survivors == (4711,)
    assert said.nodes["a"].killed == 3


def test_host_that_stops_on_its_own_is_the_failure() -> None:
    """A laptop slept: nothing of the task failed, and the run may be relaunched."""
    reason = Reason(ReasonKind.UNATTENDED, "a", detail="15 s")
    said = verdict(
        seen(5, "a", Stopping(reason)),
        seen(5.5, "a", RankExited(0, signal=TERM), RankExited(1, signal=TERM)),
        seen(5.6, "a", ProgramExited(code=1), Ended(State.STOPPED, reason)),
        seen(5.7, "", StopRequested(told("rank 0 on a was killed by SIGTERM"))),
        terminated("b", 6),
    )

    assert outcome(said) == ("stopped", 1)
    assert said.first_failure == reason
    assert said.consequences == 0


@pytest.mark.promise(12)
def test_a_host_blames_no_rank_but_by_its_end() -> None:
    """Nor another host, whatever the reason is for which it says that it stops."""
    for node in "ab":
        reason = Reason(ReasonKind.HOST, node, rank=999)
        said = verdict(seen(5, "a", Stopping(reason), STOPPED), terminated("b", 6))
        assert said.first_failure == own("b", "told to stop")


def test_who_was_told_to_stop_did_not_fail_first() -> None:
    """Its own clock says so; between two hosts some milliseconds are nobody's word."""
    said = verdict(
        seen(4.999, "b", Stopping(told("rank 0 on a was killed")), mono=77.0),
        seen(4.999, "b", RankExited(2, signal=TERM), mono=77.001),
        seen(5.0, "a", RankExited(0, signal=KILL), Stopping(failed("a", 0, -KILL)), mono=10.0),
        [*seen(6.0, "a", FAILED), *seen(6.0, "b", FAILED)],
    )
    assert said.first_failure == failed("a", 0, -KILL)


def test_an_end_that_its_host_could_not_prove_is_none() -> None:
    """Whether or not others had lost that host by then."""
    death = Reason(ReasonKind.SUPERVISOR, "b", detail="its supervisor and its guardian died")
    unproven = Ended(State.FAILED, death, verified=False)
    ends = [*seen(6.0, "b", Stopping(death), unproven), *seen(6.1, "a", FAILED)]
    for said in (verdict(ends), verdict(seen(5.9, "a", PeerLost("b", "silent")), ends)):
        assert (said.first_failure, said.exit_code, said.unverified) == (death, 5, ("b",))


def test_what_could_not_be_proven_is_completed_later() -> None:
    """A lost run stays lost; one that was stuck for want of a proof only is as it had ended."""
    alone = [*started(), *seen(5, "a", Stopping(told("lost b: silent")), STOPPED)]
    gone = fold_events(PLAN, [*alone, *seen(4, "b", HostLost("silent"))], 9.0)
    assert (gone.state, gone.unverified) == ("lost", ("b",))
    ends = [RankExited(rank, None, TERM) for rank in (2, 3)]
    now = fold_events(PLAN, [*alone, *seen(6, "b", *ends, STOPPED)], 9.0)
    whole = completed(gone, now)
    assert (whole.state, whole.exit_code, whole.unverified) == ("lost", 4, ())
    assert (whole.first_failure, whole.nodes["b"]) == (gone.first_failure, now.nodes["b"])
    assert whole.ranks["2"].signal == TERM
    assert completed(gone, gone) == gone
    only_a = [timed for timed in alone if timed.event.node == "a"]  # b joined late
    without_b = fold_events(replace(PLAN, nodes=PLAN.nodes[:1]), only_a, 9.0)
    assert completed(gone, without_b) == gone

    wish = seen(4, "", StopRequested(asked("interrupted"), 2))
    stuck = fold_events(PLAN, [*alone, *wish, *seen(7, "b", EndUnverified("silent"))], 9.0)
    assert (stuck.state, stuck.exit_code) == ("stuck", 5)
    by_user = Stopping(asked("interrupted"))
    now = verdict(seen(5, "a", by_user, STOPPED), seen(6, "b", STOPPED))
    assert completed(stuck, now).exit_code == 130


def decided_by_a() -> Plan:
    first, second = PLAN.nodes
    return replace(PLAN, nodes=(replace(first, order=replace(first.order, decides=True)), second))


def served(*bodies: EventBody, at: float = 9, mono: float = 9) -> list[TimedEvent]:
    """Node b, whose ranks serve until they are stopped at 9, and what comes of it."""
    stop = seen(at, "b", Stopping(Reason(ReasonKind.DECIDED, "a")), mono=9)
    return [*stop, *seen(at, "b", *bodies, mono=mono), *seen(10, "b", OK, mono=10)]


@pytest.mark.parametrize(
    "server",
    [
        served(RankExited(2, signal=TERM), RankExited(3, code=1), ProgramExited(signal=TERM)),
        served(RankExited(2, code=1), ProgramExited(code=1), at=8.5, mono=8),
        [*seen(8.9, "b", PeerLost("a", "gone")), *served(RankExited(2, signal=KILL))],
    ],
    ids=["said", "noticed it first", "out of touch"],
)
def test_the_success_of_the_node_that_decides_is_that_of_the_run(server: list[TimedEvent]) -> None:
    """However the servers on other nodes end about that moment; without the key it is a failure."""
    story = [*succeeded("a", 8.7), *server]
    decided = verdict(story, plan=decided_by_a())
    assert (outcome(decided), decided.first_failure) == (("succeeded", 0), None)
    assert outcome(verdict(story))[1] != 0


def died(node: str, rank: int) -> list[TimedEvent]:
    exited = RankExited(rank, code=3)
    return seen(5, node, exited, Stopping(failed(node, rank, 3)), ProgramExited(code=3), FAILED)


def test_a_server_that_fails_before_the_node_that_decides_is_the_failure() -> None:
    """What decides was stopped for it, and ends with 0 then."""
    stopped = seen(6, "a", Stopping(told("died on b")))
    said = verdict(died("b", 2), stopped, succeeded("a"), plan=decided_by_a())
    assert (outcome(said), said.first_failure) == (("failed", 1), failed("b", 2, 3))


def test_the_failure_of_the_node_that_decides_is_that_of_the_run() -> None:
    said = verdict(died("a", 0), terminated("b", 6), plan=decided_by_a())
    assert (outcome(said), said.first_failure) == (("failed", 1), failed("a", 0, 3))
