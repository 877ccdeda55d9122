"""What Slurm says of the end of a job, in the verdict on its run."""

from __future__ import annotations

import pytest

from runner.core.model.results import Failure
from runner.core.outcome.verdict import REQUEUED, Verdict, with_reason_of_job
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    Ended,
    JobEnded,
    ProgramExited,
    RankExited,
    StopCause,
    Stopping,
    TimedEvent,
)
from runner.core.protocol.states import State
from tests.unit.core.outcome.test_verdict import TERM, seen, verdict

BY_SLURM = Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER)
STOPPED = Ended(State.STOPPED, ENDED_BY_SCHEDULER)


def by_slurm(node: str, at: float, *, mono: float = 0.0) -> list[TimedEvent]:
    """A node whose processes all got TERM of Slurm, some of them before its supervisor did."""
    ranks = (0, 1) if node == "a" else (2, 3)
    ends = [RankExited(rank, signal=TERM) for rank in ranks]
    return [
        *seen(at - 0.1, node, ends[0], mono=mono - 0.1),
        *seen(at, node, BY_SLURM, mono=mono - 0.5),
        *seen(at + 0.1, node, ends[1], ProgramExited(code=1), STOPPED, mono=mono + 0.1),
    ]


def told(at: float, state: str, node: str = "a") -> list[TimedEvent]:
    return seen(at, node, JobEnded("7", state))


def reason(made: Verdict) -> str:
    assert made.first_failure is not None
    return made.first_failure.reason


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("CANCELLED", f"{ENDED_BY_SCHEDULER}: it was cancelled"),
        ("TIMEOUT", f"{ENDED_BY_SCHEDULER}: it reached its time limit"),
        ("PENDING", f"{ENDED_BY_SCHEDULER}: {REQUEUED}"),
        ("COMPLETED", ENDED_BY_SCHEDULER),
    ],
)
def test_slurm_ends_a_job(state: str, text: str) -> None:
    """No rank is blamed, not even one that died of the TERM before its supervisor got it."""
    job = told(12, state) if state else []
    made = verdict(by_slurm("a", 10, mono=100.0), by_slurm("b", 10.2, mono=50.0), job)
    assert reason(made) == text
    assert made.first_failure is not None
    assert made.first_failure.rank is None
    assert (made.state, made.exit_code) == ("stopped", 1)


def test_a_rank_that_failed_before_is_the_reason() -> None:
    """The job ends because the run failed: that Slurm ended it then says nothing."""
    crash = seen(5, "a", RankExited(1, code=7), mono=95.0)
    made = verdict(crash, by_slurm("b", 10, mono=50.0), by_slurm("a", 10, mono=100.0))
    assert made.first_failure == Failure("a", 1, "exited with 7")
    assert (made.state, made.exit_code) == ("failed", 1)


def test_a_users_stop_is_one_though_slurm_ends_the_job() -> None:
    """`scancel` is how a stop ends what is left: it is no failure."""
    stop = Stopping("stop requested by ada", StopCause.USER)
    end = [RankExited(0, signal=TERM), RankExited(1, signal=TERM), ProgramExited(code=1)]
    nodes = [
        seen(10, node, stop, BY_SLURM, *(end if node == "a" else ()), STOPPED) for node in "ab"
    ]
    made = verdict(*nodes, told(12, "CANCELLED"))
    assert (made.state, made.exit_code, made.first_failure) == ("stopped", 130, None)


LOST = "its supervisor ended without a goodbye"


@pytest.mark.parametrize(
    ("failure", "state", "text"),
    [
        (
            Failure("a", 1, "was killed by SIGKILL"),
            "OUT_OF_MEMORY",
            "was killed by SIGKILL (Slurm: it took more memory than it had asked for)",
        ),
        (Failure("a", 1, "was killed by SIGKILL"), "PENDING", "was killed by SIGKILL"),
        (Failure("a", None, LOST), "NODE_FAIL", f"{LOST} (Slurm: a node of it failed)"),
        (Failure("a", None, LOST), "FAILED", LOST),
        (
            Failure("a", None, ENDED_BY_SCHEDULER),
            "OUT_OF_MEMORY",
            f"{ENDED_BY_SCHEDULER}: it took more memory than it had asked for",
        ),
    ],
)
def test_what_slurm_adds_to_a_failure(failure: Failure, state: str, text: str) -> None:
    """Only what it knows better than the hosts; where it lies on a rank, memory alone is that."""
    made = with_reason_of_job(failure, told(12, state))
    assert (made.node, made.rank, made.reason) == (failure.node, failure.rank, text)
