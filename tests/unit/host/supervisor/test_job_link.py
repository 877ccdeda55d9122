"""The job link of a supervisor: the TERM of Slurm, that of a peer, and the time limit."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.model.plan import Order
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    LIMIT_REASON,
    RanksSignalled,
    StopCause,
    Stopping,
)
from runner.host.process import procfs
from runner.host.process.event_loop import EventLoop
from runner.host.process.file_worker import run_now
from runner.host.ranks.tracker import RankTracker
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import Scheduled
from runner.host.supervisor.job_link import OWN_TERM_S, RECORD_S, TERM_SPREAD_S, JobLink
from runner.host.supervisor.peer_exchange import PeerExchange
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.stall_monitor import StallMonitor
from runner.host.supervisor.stop_ladder import StopLadder
from tests.unit.host.supervisor.test_stop_ladder import Journal, Program

PLAIN = Scheduled("/nowhere/commands", kill_wait_s=30.0)
LIMITED = Scheduled("/nowhere/commands", limit_signal=10, stop_after_s=60.0)


class Times(Journal):
    """A record in memory, with the moments of its events."""

    def __init__(self) -> None:
        super().__init__()
        self.monos: list[float | None] = []

    def append(self, body: object, **fields: float) -> None:
        """Record an event."""
        super().append(body)
        self.monos.append(fields.get("mono"))


class Ranked(Program):
    """A launcher process with two ranks."""

    def rank_pids(self) -> list[int]:
        """Return them."""
        return [21, 22]

    def container_pids(self) -> list[int]:
        """Return none."""
        return []


class World:
    """A link, what it stops, and a clock."""

    def __init__(self, scheduled: Scheduled | None) -> None:
        self.now = 1000.0
        self.journal = Times()
        self.stops: list[tuple[str, StopCause]] = []
        self.told_peers: list[tuple[str, StopCause]] = []
        self.signalled: list[tuple[set[int], int]] = []
        self.peers = cast(
            "PeerExchange", SimpleNamespace(stop=lambda *stop: self.told_peers.append(stop))
        )
        self.ranks = cast("RankTracker", SimpleNamespace(running_pids={21, 22}))
        order = Order("run", "a", 0, "/w", ("/bin/true",), {}, "/", (), grace_s=30.0)
        journal = cast("EventLog", self.journal)
        self.ladder = StopLadder(order, cast("LauncherProcess", Ranked()), journal)
        self.stop: Any = lambda *stop: self.stops.append(stop)
        self.link = JobLink(scheduled, run_now, id, journal, self.stop)

    def take_term(self, grace_s: float = 30.0) -> bool:
        """Have TERM come; return whether it is the scheduler's."""
        self.ladder._order = replace(self.ladder._order, grace_s=grace_s)
        loop = cast("EventLoop", SimpleNamespace(term_received=True))
        return self.link.take_term(loop, self.ladder, self.peers)

    def kills_after(self, seconds: float) -> bool:
        """Return whether what is left is killed by then."""
        self.now += seconds
        return self.ladder.grace_is_over

    def signal_ranks(self) -> None:
        """Have the batch script tell of the time limit."""
        monitor = cast("StallMonitor", None)
        self.link.on_command({"command": "signal_ranks"}, self.ranks, self.ladder, monitor)

    def signal_all(self, pids: set[int], signum: int) -> set[int]:
        """Note who gets a signal."""
        self.signalled += [({*pids}, signum)] if pids else []
        return {*pids}


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> World:
    """One with a scheduler, or as it is asked for."""
    made = World(getattr(request, "param", PLAIN))
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(procfs, "signal_all", made.signal_all)
    return made


limited = pytest.mark.parametrize("world", [LIMITED], indirect=True)
unscheduled = pytest.mark.parametrize("world", [None], indirect=True)


def test_a_term_is_slurms_and_taken_once(world: World) -> None:
    """Everyone gets it, and nobody another one; what is left dies a moment before Slurm's KILL."""
    assert world.take_term()
    assert world.journal.bodies == [Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER)]
    assert world.journal.monos == [world.now - TERM_SPREAD_S]
    assert world.told_peers == [(ENDED_BY_SCHEDULER, StopCause.PEER)]
    assert world.ladder.stopped_at == world.now - TERM_SPREAD_S
    world.ladder.term_new_ranks()
    world.ladder.term_program()
    assert world.signalled == []
    assert not world.kills_after(30.0 - RECORD_S - 0.1)
    assert world.kills_after(0.1)
    assert world.take_term()
    assert (len(world.journal.bodies), len(world.told_peers)) == (1, 1)


def test_what_failed_just_before_the_term_did_not_fail(world: World) -> None:
    """A rank may get its TERM a moment before the supervisor; what failed earlier did."""
    world.take_term()
    world.ladder.fail(world.now - TERM_SPREAD_S / 2)
    assert world.ladder.failed_at is None
    world.ladder.fail(world.now - 2 * TERM_SPREAD_S)
    assert world.ladder.failed_at == world.now - 2 * TERM_SPREAD_S


def test_a_term_during_a_stop_is_on_record(world: World) -> None:
    """A user's stop stays one, with its grace."""
    world.ladder.begin("told to", StopCause.USER, world.now)
    world.take_term()
    assert world.journal.bodies == [
        Stopping("told to", StopCause.USER),
        Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER),
    ]
    assert (world.ladder.reason, world.ladder.cause) == ("told to", StopCause.USER)
    assert world.kills_after(31)


@unscheduled
def test_without_a_scheduler_a_term_is_for_the_supervisor(world: World) -> None:
    """It stops as ever; a peer's word is followed at once."""
    assert not world.take_term()
    assert not world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.signal_ranks()
    world.link.tick(world.ladder)
    assert (world.journal.bodies, world.stops, world.signalled) == ([], [], [])


def test_a_peers_word_waits_for_our_own_term(world: World) -> None:
    """Ours comes a moment later, and has no second TERM for the ranks."""
    assert world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.now += OWN_TERM_S / 2
    assert world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.link.tick(world.ladder)
    assert world.stops == []
    world.take_term()
    assert not world.link.awaits_term(ENDED_BY_SCHEDULER)


@limited
def test_the_limit_stops_what_is_to_start_again(world: World) -> None:
    """The ranks alone get the signal, and have some time."""
    world.link.tick(world.ladder)
    assert world.stops == []
    world.signal_ranks()
    assert world.signalled == [({21, 22}, 10)]
    assert world.journal.bodies == [RanksSignalled(10, 2)]
    world.now += 59
    world.link.tick(world.ladder)
    assert world.stops == []
    world.now += 1
    world.link.tick(world.ladder)
    assert world.stops == [(LIMIT_REASON, StopCause.LOCAL)]
