"""The verdict on a run: a fold over its events.

Nodes a and b have two ranks each; times are seconds on the controller's clock.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.outcome.first_failure import SAME_EVENT_S
from runner.core.outcome.verdict import Verdict, completed, fold_events
from runner.core.results import NodeResult, RankResult
from runner.core.wire.events import (
    Ended,
    EndUnverified,
    Event,
    EventBody,
    HostLost,
    PeerLost,
    PortTaken,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    StopCause,
    Stopping,
    StopRequested,
    TimedEvent,
)
from runner.core.wire.plan import Plan
from runner.core.wire.states import Failure, State, unattended_reason
from runner.core.wire.text import describe_exit
from tests.golden.builders import plan

PLAN = plan(2, 2)
OK, FAILED, STOPPED = (
    Ended(State.SUCCEEDED),
    Ended(State.FAILED),
    Ended(State.STOPPED, "told to stop"),
)
TERM, KILL = 15, 9


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
    return seen(at, node, Stopping("told to stop"), *ends, ProgramExited(code=1), STOPPED)


def verdict(*stories: Iterable[TimedEvent]) -> Verdict:
    """Fold a story; it is told host by host, since only times count."""
    return fold_events(PLAN, [*started(), *itertools.chain(*stories)], 10.0)


def outcome(told: Verdict) -> tuple[str, int]:
    return told.state, told.exit_code


def test_all_went_well() -> None:
    """Every rank ended with 0 and nothing is left: the whole verdict."""
    assert verdict(succeeded("a"), succeeded("b")) == Verdict(
        state="succeeded",
        exit_code=0,
        seconds=10.0,
        nodes={"a": NodeResult(0, end_verified=True), "b": NodeResult(0, end_verified=True)},
        ranks={str(rank): RankResult(node, 0, started=True) for rank, node in enumerate("aabb")},
    )


GONE = (
    "RuntimeError: [third_party/gloo/gloo/pair.cc:553] Connection closed by peer [10.0.0.1]:40853"
)
RESET = "ConnectionResetError: [Errno 104] Connection reset by peer"


@pytest.mark.parametrize(
    ("of_0", "of_3", "first"),
    [
        (GONE, "ValueError: no: really", Failure("b", 3, "raised ValueError")),
        (GONE, GONE, Failure("a", 0, "was killed by SIGABRT")),
        (GONE, "", Failure("a", 0, "was killed by SIGABRT")),
        ("KeyError: 'x'", "ValueError: no", Failure("a", 0, "was killed by SIGABRT")),
    ],
)
def test_who_only_noticed_is_not_the_first(of_0: str, of_3: str, first: Failure) -> None:
    """Rank 3 raised, and had not ended yet when rank 0 died of its closed connections."""
    told = verdict(
        seen(5.0, "a", RankExited(0, signal=6, exception=of_0, raised_s=0.2)),
        seen(5.2, "b", Stopping("rank 0 on a", StopCause.PEER), RankExited(2, signal=TERM)),
        seen(5.3, "b", RankExited(3, signal=TERM, exception=of_3, raised_s=0.4)),
        seen(5.4, "b", ProgramExited(code=1), STOPPED),
        seen(5.3, "a", RankExited(1, signal=TERM), ProgramExited(code=1), FAILED),
    )
    assert told.first_failure == first
    assert outcome(told) == ("failed", 1)
    assert told.consequences == (first.rank == 3)


def test_what_ranks_raise_when_they_are_told_to_end_says_nothing() -> None:
    """Rank 2 has a handler for TERM; rank 3 raised, hung, and was killed after it."""
    noticed = seen(5.0, "a", RankExited(0, code=1, exception=GONE))
    told = seen(5.2, "b", Stopping("rank 0 on a", StopCause.PEER), mono=5.2)
    handled = seen(5.3, "b", RankExited(2, code=1, exception="MyExit: told to"), mono=5.3)
    ended = seen(9.0, "a", RankExited(1, signal=TERM), ProgramExited(code=1), FAILED)
    assert verdict(noticed, told, handled, ended).first_failure == Failure("a", 0, "exited with 1")
    raised = RankExited(3, signal=KILL, exception="ValueError: no", raised_s=3.2)
    hung = seen(8.0, "b", raised, mono=8.0)
    guilty = Failure("b", 3, "raised ValueError")
    assert verdict(noticed, told, handled, hung, ended).first_failure == guilty


DURATIONS = st.floats(0.0, SAME_EVENT_S / 2)
FAILED_RANKS = st.lists(
    st.tuples(DURATIONS, DURATIONS, st.sampled_from([GONE, RESET, "ValueError: no"])),
    min_size=4,
    max_size=4,
)


@given(FAILED_RANKS)
def test_the_first_to_raise_is_the_first_failure(ranks: list[tuple[float, float, str]]) -> None:
    """In whichever order ranks end, unless its words are torch's; each raised, and took a while."""
    ends = [
        seen(raised + taken, "aabb"[rank], RankExited(rank, 1, exception=text, raised_s=taken))
        for rank, (raised, taken, text) in enumerate(ranks)
    ]
    own = [rank for rank in range(4) if ranks[rank][2] != GONE]
    first = verdict(*ends).first_failure
    assert first is not None
    assert first.rank is not None
    if own:
        assert ranks[first.rank][2] != GONE
        assert ranks[first.rank][0] == pytest.approx(min(ranks[rank][0] for rank in own))
    else:
        assert sum(ranks[first.rank][:2]) == min(sum(rank[:2]) for rank in ranks)


def test_what_was_raised_and_handled_long_ago_is_no_failure() -> None:
    """It is the last that a rank printed before it was told to end with the others."""
    told = verdict(
        seen(5.0, "a", RankExited(0, code=1, exception="KeyError: 1", raised_s=0.1), mono=5.0),
        seen(5.0, "a", Stopping("rank 0 on a", StopCause.LOCAL), mono=5.1),
        seen(5.3, "a", RankExited(1, signal=TERM, exception=RESET, raised_s=9.0), mono=5.3),
    )
    assert told.first_failure == Failure("a", 0, "exited with 1")


def test_who_raised_first_and_was_stopped_before_it_had_ended_is_the_first() -> None:
    """Where it could not end for a while; one that ends its own way when told to is not."""
    told = verdict(
        seen(5.0, "a", RankExited(0, code=1, exception="ValueError: no", raised_s=0.2), mono=5.0),
        seen(5.0, "a", Stopping("rank 0 on a", StopCause.LOCAL), mono=5.1),
        seen(5.3, "a", RankExited(1, signal=TERM, exception=RESET, raised_s=0.53), mono=5.3),
    )
    assert told.first_failure == Failure("a", 1, "raised ConnectionResetError")
    told = verdict(
        seen(5.0, "a", RankExited(0, code=1, exception=GONE), mono=5.0),
        seen(5.0, "a", Stopping("rank 0 on a", StopCause.LOCAL), mono=5.1),
        seen(5.3, "a", RankExited(1, code=7), mono=5.3),
    )
    assert told.first_failure == Failure("a", 0, "exited with 1")


def test_failure_that_came_first_is_the_first() -> None:
    """Rank 3 failed a moment before rank 0, and was heard of later."""
    told = verdict(
        seen(5.1, "a", RankExited(0, code=1)),
        seen(5.0, "b", RankExited(3, code=77)),
        seen(5.2, "", StopRequested("rank 0 on a exited with 1")),
        terminated("a", 5.3),
        terminated("b", 5.4),
    )

    assert outcome(told) == ("failed", 1)
    assert told.first_failure == Failure("b", 3, "exited with 77")


@pytest.mark.parametrize(
    ("code", "exception", "same"),
    [(1, "FileNotFoundError: no x", 2), (2, "", 2), (1, "", 0), (1, GONE, 0)],
)
def test_equal_failures_are_no_consequences(code: int, exception: str, same: int) -> None:
    """Unless ranks only noticed another's end, or only 1 is known. Stopped is neither."""
    ends = [RankExited(rank, code=code, exception=exception) for rank in range(3)]
    told = verdict(
        seen(5, "a", *ends[:2], ProgramExited(code=1), FAILED),
        seen(6, "b", ends[2], RankExited(3, signal=TERM), ProgramExited(code=1), FAILED),
    )

    assert (told.same_failures, told.consequences) == (same, 2 - same)
    stopped = RankExited(3, signal=TERM, exception=exception)
    told = verdict(seen(5, "a", *ends[:2]), seen(6, "b", ends[2], stopped))
    is_same = bool(same and exception)
    assert (told.same_failures, told.consequences) == (same + is_same, 2 - same)


def test_rank_whose_end_nobody_saw_is_a_failure() -> None:
    """SIGKILL may take a rank and its shim at once; what follows is still counted right."""
    told = verdict(
        seen(5, "a", RankExited(1)),
        seen(6, "a", RankExited(0, signal=TERM), ProgramExited(code=1), FAILED),
        succeeded("b"),
    )

    assert outcome(told) == ("failed", 1)
    assert told.first_failure == Failure("a", 1, "ended unseen")
    assert told.consequences == 0


def test_port_of_somebody_else_is_the_failure() -> None:
    """It precedes the failures it causes, and names who holds the port."""
    told = verdict(
        seen(2, "a", PortTaken(29500, (4711, 4712)), Stopping("the master's port was taken")),
        seen(3, "a", ProgramExited(code=1), STOPPED),
        terminated("b", 4),
    )

    assert outcome(told) == ("failed", 1)
    assert told.first_failure == Failure(
        "a", None, "port 29500, reserved for the rendezvous, was taken (process 4711)"
    )


@pytest.mark.parametrize(("signum", "code"), [(2, 130), (15, 143), (1, 129)])
def test_users_stop_has_its_own_code(signum: int, code: int) -> None:
    """What ends because of it is no failure."""
    told = verdict(
        seen(5, "", StopRequested("interrupted", signum)), terminated("a", 6), terminated("b", 6)
    )

    assert outcome(told) == ("stopped", code)
    assert told.stop_reason == "interrupted"
    assert told.first_failure is None
    assert told.unverified == ()


def test_users_stop_counts_even_after_a_failure() -> None:
    """Its code beats the failure's, which is still named."""
    told = verdict(
        seen(5, "a", RankExited(0, code=3)),
        seen(5.1, "", StopRequested("rank 0 on a exited with 3")),
        seen(5.2, "", StopRequested("interrupted", 2)),
        terminated("a", 6),
        terminated("b", 6),
    )

    assert outcome(told) == ("stopped", 130)
    assert told.first_failure == Failure("a", 0, "exited with 3")


def test_lost_host_is_4_and_unproven() -> None:
    """The others are stopped; the lost one is named, since nobody could look there."""
    told = verdict(
        seen(5, "b", HostLost("nothing was heard from it for 15 s")),
        seen(5.1, "", StopRequested("lost b")),
        terminated("a", 6),
    )

    assert outcome(told) == ("lost", 4)
    assert told.first_failure == Failure("b", None, "nothing was heard from it for 15 s")
    assert told.unverified == ("b",)
    assert told.consequences == 0


def test_a_hosts_own_word_is_better_than_what_others_saw() -> None:
    """Its supervisor was killed: the others see a closed connection, its guardian says why."""
    told = verdict(
        seen(5.0, "a", PeerLost("b", "its supervisor ended by signal 9")),
        seen(5.1, "b", Stopping("its supervisor ended by signal 9")),
        terminated("a", 6),
        terminated("b", 7),
    )

    assert outcome(told) == ("failed", 1)
    assert told.first_failure == Failure("b", None, "its supervisor ended by signal 9")


def test_a_stop_that_somebody_else_asked_for_is_no_failure() -> None:
    """Another machine's `stop`: every host says so, and that was all."""
    told = verdict(
        seen(5.0, "a", Stopping("stopped by ada@desk", StopCause.USER)),
        seen(5.1, "b", Stopping("stopped by ada@desk", StopCause.USER)),
        terminated("a", 6),
        terminated("b", 7),
    )

    assert outcome(told) == ("stopped", 130)
    assert told.first_failure is None


def test_host_that_keeps_silent_after_a_stop_is_5() -> None:
    """Nobody can say that nothing is left there."""
    told = verdict(
        seen(5, "", StopRequested("interrupted", 2)),
        terminated("a", 6),
        seen(30, "b", EndUnverified("it did not say that nothing is left")),
    )

    assert outcome(told) == ("stuck", 5)
    assert told.unverified == ("b",)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param(succeeded("b"), id="after success"),
        pytest.param(
            [*seen(5, "", StopRequested("interrupted", 2)), *terminated("b", 6)], id="after a stop"
        ),
    ],
)
def test_process_that_cannot_be_killed_beats_all(story: list[TimedEvent]) -> None:
    """5 whatever else happened, with the processes named."""
    told = verdict(
        story,
        seen(8, "a", RankExited(0, code=0), RankExited(1, code=0), ProgramExited(code=0)),
        seen(9, "a", Ended(State.STUCK, "told to stop", 3, (4711,))),
    )

    assert outcome(told) == ("stuck", 5)
    assert told.nodes["a"].survivors == (4711,)
    assert told.nodes["a"].killed == 3


def test_host_that_stops_on_its_own_is_the_failure() -> None:
    """A laptop slept: nothing of the task failed, and the run may be relaunched."""
    reason = unattended_reason(15.0)
    told = verdict(
        seen(5, "a", Stopping(reason)),
        seen(5.5, "a", RankExited(0, signal=TERM), RankExited(1, signal=TERM)),
        seen(5.6, "a", ProgramExited(code=1), Ended(State.STOPPED, reason)),
        seen(5.7, "", StopRequested("rank 0 on a was killed by SIGTERM")),
        terminated("b", 6),
    )

    assert outcome(told) == ("stopped", 1)
    assert told.first_failure == Failure("a", None, reason)
    assert told.consequences == 0


def test_who_was_told_to_stop_did_not_fail_first() -> None:
    """Its own clock says so; between two hosts some milliseconds are nobody's word."""
    verdict = fold_events(
        PLAN,
        [
            *started(),
            *seen(4.999, "b", Stopping("rank 0 on a was killed", StopCause.PEER), mono=77.0),
            *seen(4.999, "b", RankExited(2, signal=TERM), mono=77.001),
            *seen(5.0, "a", RankExited(0, signal=KILL), mono=10.0),
            *seen(5.0, "a", Stopping("rank 0 on a was killed", StopCause.LOCAL), mono=10.0),
            *seen(6.0, "a", FAILED),
            *seen(6.0, "b", FAILED),
        ],
        6.0,
    )
    assert verdict.first_failure == Failure("a", 0, describe_exit(None, KILL))


def test_who_is_cut_off_is_named_and_not_the_hub() -> None:
    """It says that all others are silent; the hub lives, and was told to stop."""
    verdict = fold_events(
        PLAN,
        [
            *started(),
            *seen(5.0, "b", PeerLost("a", "nothing was heard from it for 15 s")),
            *seen(5.1, "a", Stopping("lost a: nothing was heard from it for 15 s", StopCause.PEER)),
            *seen(6.0, "a", FAILED),
            *seen(6.0, "b", FAILED),
        ],
        6.0,
    )
    assert verdict.first_failure == Failure(
        "b", None, "out of touch with a: nothing was heard from it for 15 s"
    )
    assert verdict.exit_code == 4


def test_what_could_not_be_proven_is_completed_later() -> None:
    """A lost run stays lost; one that was stuck for want of a proof only is as it had ended."""
    alone = [*started(), *seen(5, "a", Stopping("lost b: silent", StopCause.PEER), STOPPED)]
    lost = fold_events(PLAN, [*alone, *seen(4, "b", HostLost("silent"))], 9.0)
    assert (lost.state, lost.unverified) == ("lost", ("b",))
    ends = [RankExited(rank, None, TERM) for rank in (2, 3)]
    now = fold_events(PLAN, [*alone, *seen(6, "b", *ends, STOPPED)], 9.0)
    whole = completed(lost, now)
    assert (whole.state, whole.exit_code, whole.unverified) == ("lost", 4, ())
    assert (whole.first_failure, whole.nodes["b"]) == (lost.first_failure, now.nodes["b"])
    assert whole.ranks["2"].signal == TERM
    assert completed(lost, lost) == lost
    only_a = [timed for timed in alone if timed.event.node == "a"]  # b joined late
    without_b = fold_events(replace(PLAN, nodes=PLAN.nodes[:1]), only_a, 9.0)
    assert completed(lost, without_b) == lost

    asked = seen(4, "", StopRequested("interrupted", 2))
    stuck = fold_events(PLAN, [*alone, *asked, *seen(7, "b", EndUnverified("silent"))], 9.0)
    assert (stuck.state, stuck.exit_code) == ("stuck", 5)
    by_user = Stopping("interrupted", StopCause.USER)
    now = fold_events(
        PLAN, [*started(), *seen(5, "a", by_user, STOPPED), *seen(6, "b", STOPPED)], 9
    )
    assert completed(stuck, now).exit_code == 130


def decided_by_a() -> Plan:
    first, second = PLAN.nodes
    return replace(PLAN, nodes=(replace(first, order=replace(first.order, decides=True)), second))


def served(*bodies: EventBody, at: float = 9, mono: float = 9) -> list[TimedEvent]:
    """Node b, whose ranks serve until they are stopped at 9, and what comes of it."""
    stop = seen(at, "b", Stopping("a, which decides, has succeeded", StopCause.DECIDED), mono=9)
    return [*stop, *seen(at, "b", *bodies, mono=mono), *seen(10, "b", OK, mono=10)]


@pytest.mark.parametrize(
    "server",
    [
        served(RankExited(2, signal=TERM), RankExited(3, code=1), ProgramExited(signal=TERM)),
        served(RankExited(2, code=1), ProgramExited(code=1), at=8.5, mono=8),
        [*seen(8.9, "b", PeerLost("a", "gone")), *served(RankExited(2, signal=KILL))],
    ],
    ids=["told", "noticed it first", "out of touch"],
)
def test_the_success_of_the_node_that_decides_is_that_of_the_run(server: list[TimedEvent]) -> None:
    """However the servers on other nodes end about that moment; without the key it is a failure."""
    story = [*started(), *succeeded("a", 8.7), *server]
    decided = fold_events(decided_by_a(), story, 10.0)
    assert (outcome(decided), decided.first_failure) == (("succeeded", 0), None)
    assert outcome(fold_events(PLAN, story, 10.0))[1] != 0


def test_a_server_that_fails_before_the_node_that_decides_is_the_failure() -> None:
    """What decides was stopped for it, and ends with 0 then."""
    died = seen(5, "b", RankExited(2, code=1), Stopping("died"), ProgramExited(code=1), FAILED)
    stopped = seen(6, "a", Stopping("died on b", StopCause.PEER))
    told = fold_events(decided_by_a(), [*started(), *died, *stopped, *succeeded("a")], 10.0)
    assert outcome(told) == ("failed", 1)
    assert told.first_failure == Failure("b", 2, "exited with 1")


def test_the_failure_of_the_node_that_decides_is_that_of_the_run() -> None:
    died = seen(5, "a", RankExited(0, code=3), Stopping("died"), ProgramExited(code=3), FAILED)
    told = fold_events(decided_by_a(), [*started(), *died, *terminated("b", 6)], 10.0)
    assert (outcome(told), told.first_failure) == (("failed", 1), Failure("a", 0, "exited with 3"))
