"""The job link of a supervisor: the TERM of Slurm, that of a peer, and the time limit."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.model.plan import Order
from runner.core.protocol.events import (
    ENDED_BY_SCHEDULER,
    StopCause,
    Stopping,
)
from runner.host.process import procfs
from runner.host.process.event_loop import EventLoop
from runner.host.process.file_worker import run_now
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.attempt import Scheduled
from runner.host.supervisor.job_link import OWN_TERM_S, RECORD_S, TERM_SPREAD_S, JobLink
from runner.host.supervisor.peer_exchange import PeerExchange
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.stop_ladder import StopLadder
from tests.unit.host.supervisor.test_stop_ladder import Journal, Program

PLAIN = Scheduled("/nowhere/commands", kill_wait_s=30.0)


class Times(Journal):
    """A record in memory, with the moments of its events."""

    def __init__(self) -> None:
        super().__init__()
        self.monos: list[float | None] = []

    def append(self, body: object, **fields: float) -> None:
        super().append(body)
        self.monos.append(fields.get("mono"))


class World:
    def __init__(self) -> None:
        self.now = 1000.0
        self.journal = Times()
        self.stops: list[tuple[str, StopCause]] = []
        self.told_peers: list[tuple[str, StopCause]] = []
        self.signalled: list[set[int]] = []
        self.peers = cast(
            "PeerExchange", SimpleNamespace(stop=lambda *stop: self.told_peers.append(stop))
        )
        order = Order("run", "a", 0, "/w", ("/bin/true",), {}, "/", (), grace_s=30.0)
        journal = cast("EventLog", self.journal)
        self.ladder = StopLadder(order, cast("LauncherProcess", Program()), journal)
        stop: Any = lambda *stop: self.stops.append(stop)  # noqa: E731
        self.link = JobLink(PLAIN, run_now, id, journal, stop)

    def take_term(self) -> bool:
        """Have TERM come; return whether it is the scheduler's."""
        loop = cast("EventLoop", SimpleNamespace(term_received=True))
        return self.link.take_term(loop, self.ladder, self.peers)

    def kills_after(self, seconds: float) -> bool:
        """Return whether what is left is killed by then."""
        self.now += seconds
        return self.ladder.grace_is_over

    def signal_all(self, pids: set[int], _: int) -> set[int]:
        self.signalled += [{*pids}] if pids else []
        return {*pids}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(procfs, "signal_all", made.signal_all)
    return made


def test_a_term_is_slurms_and_taken_once(world: World) -> None:
    """Everyone gets it, and nobody another one; what is left dies a moment before Slurm's KILL."""
    assert world.take_term()
    assert world.journal.bodies == [Stopping(ENDED_BY_SCHEDULER, StopCause.SCHEDULER)]
    assert world.journal.monos == [world.now - TERM_SPREAD_S]
    assert world.told_peers == [(ENDED_BY_SCHEDULER, StopCause.PEER)]
    assert world.ladder.stopped_at == world.now - TERM_SPREAD_S
    world.ladder.term_launcher()
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


def test_a_peers_word_waits_for_our_own_term(world: World) -> None:
    """Ours comes a moment later, and has no second TERM for the ranks."""
    assert world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.now += OWN_TERM_S / 2
    assert world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.link.tick(world.ladder)
    assert world.stops == []
    world.take_term()
    assert not world.link.awaits_term(ENDED_BY_SCHEDULER)
