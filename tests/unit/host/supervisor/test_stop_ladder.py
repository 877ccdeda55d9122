"""Stop ladder of a supervisor: its phases, its TERM, and the state in which an attempt ends."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from runner.core.wire.container import Container
from runner.core.wire.order import Order
from runner.core.wire.states import Reason, ReasonKind, State
from runner.host.process import procfs
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.stop_ladder import TERM_SPREAD_S, StopLadder
from tests.golden.builders import asked, told


class Journal:
    """A record in memory."""

    def __init__(self) -> None:
        self.state = State.RUNNING
        self.bodies: list[object] = []

    def append(self, body: object, **_: float) -> None:
        self.bodies.append(body)


class Program:
    """A launcher process that runs, or has ended."""

    exit_status: tuple[int | None, int | None] | None = None
    is_running = True

    pid = 11

    def container_pids(self) -> list[int]:
        return []

    def cancel(self) -> None:
        """Do nothing."""


@pytest.fixture
def terminated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes that got a signal."""
    pids: list[int] = []

    def signal_all(targets: set[int], _: int) -> set[int]:
        pids.extend(sorted(targets))
        return targets

    monkeypatch.setattr(procfs, "signal_all", signal_all)
    return pids


def ladder(program: Any, container: Container | None = None, grace_s: float = 3600.0) -> StopLadder:
    order = Order("run", "a", 0, "/w", "/", grace_s=grace_s, container=container)
    return StopLadder(order, cast("LauncherProcess", program), cast("EventLog", Journal()))


DECIDED = Reason(ReasonKind.DECIDED, "b")


def stop(made: StopLadder) -> None:
    made.begin(told("because"), time.monotonic())


def test_what_ends_because_another_node_decided_has_succeeded(terminated: list[int]) -> None:
    """Also where it failed or was stopped just before it heard so; a user's stop stays one."""
    made = ladder(Program())
    made.fail()
    assert not made.rules_out_relaunch(DECIDED)  # nobody has been told to stop yet
    stop(made)
    assert made.rules_out_relaunch(DECIDED)
    assert not made.rules_out_relaunch(DECIDED)
    assert made.final_state([], standby_ended=False) is State.SUCCEEDED
    assert made.final_state([31], standby_ended=False) is State.STUCK
    assert made.rules_out_relaunch(asked())
    assert not made.rules_out_relaunch(DECIDED)
    assert made.final_state([], standby_ended=False) is not State.SUCCEEDED
    assert terminated == [11]


@pytest.mark.parametrize(("is_running", "expected"), [(True, [11]), (False, [12])])
def test_a_container_gets_term_once(
    terminated: list[int], is_running: bool, expected: list[int]
) -> None:
    """By its client, which may leave then; by us where the client was killed."""
    program = Program()
    program.is_running = is_running
    made = ladder(program, Container("podman", ("podman",)))
    stop(made)
    made.drain([12])
    assert terminated == expected


def test_a_grace_for_leftovers_is_over_with_them(terminated: list[int]) -> None:
    """The other hosts may still need this one."""
    made = ladder(Program(), grace_s=0.0)
    is_over = []
    for leftovers in ([12], []):
        made.drain(leftovers)
        is_over.append(made.grace_is_over)
    assert is_over == [True, False]
    assert terminated == [12]


def test_what_ended_a_moment_before_a_term_ended_by_it(terminated: list[int]) -> None:
    """Who sent it to the supervisor has perhaps sent it to every process, ranks first."""
    made = ladder(Program())
    assert made.take_term()
    assert made.stopped_at < time.monotonic() - TERM_SPREAD_S / 2
    made.fail(time.monotonic() - TERM_SPREAD_S / 2)
    assert made.final_state([], standby_ended=False) is State.STOPPED
    assert not made.take_term()
    assert terminated == [11]
