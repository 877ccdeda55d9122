"""The job link of a supervisor: the TERM of Slurm, that of a peer, and the time limit."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.core.model.container import Container
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
from runner.host.supervisor import job_link
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

    contained: list[int]

    def rank_pids(self) -> list[int]:
        """Return them."""
        return [21, 22]

    def container_pids(self) -> list[int]:
        """Return those that an engine's daemon has started."""
        return self.contained


class World:
    """A link, what it stops, and a clock."""

    def __init__(self, scheduled: Scheduled | None) -> None:
        self.now = 1000.0
        self.journal = Times()
        self.stops: list[tuple[str, StopCause]] = []
        self.told_peers: list[tuple[str, StopCause]] = []
        self.dumps: list[str] = []
        self.signalled: list[tuple[set[int], int]] = []
        self.peers = cast(
            "PeerExchange", SimpleNamespace(stop=lambda *stop: self.told_peers.append(stop))
        )
        self.ranks = cast("RankTracker", SimpleNamespace(running_pids={21, 22}))
        order = Order("run", "a", 0, "/w", ("/bin/true",), {}, "/", (), grace_s=30.0)
        journal = cast("EventLog", self.journal)
        self.program = Ranked()
        self.program.contained = []
        self.ladder = StopLadder(order, cast("LauncherProcess", self.program), journal)
        self.stop: Any = lambda *stop: self.stops.append(stop)
        self.link = JobLink(scheduled, run_now, id, journal, self.stop)

    def take_term(self, grace_s: float = 30.0, container: Container | None = None) -> bool:
        """Have TERM come; return whether it is the scheduler's."""
        self.ladder._order = replace(self.ladder._order, grace_s=grace_s, container=container)
        loop = cast("EventLoop", SimpleNamespace(term_received=True))
        return self.link.take_term(loop, self.ladder, self.peers)

    def kills_after(self, seconds: float) -> bool:
        """Return whether what is left is killed by then."""
        self.now += seconds
        return self.ladder.grace_is_over

    def signal_ranks(self) -> None:
        """Have the batch script tell of the time limit."""
        monitor = cast("StallMonitor", SimpleNamespace(dump=self.dumps.append))
        self.link.on_command({"command": "signal_ranks"}, self.ranks, self.ladder, monitor)
        told = {"command": "dump_stacks", "reason": "asked"}
        self.link.on_command(told, self.ranks, self.ladder, monitor)

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


@pytest.mark.parametrize("world", [PLAIN._replace(signals_all=False)], indirect=True)
def test_a_term_that_only_tasks_get_is_passed_on(world: World) -> None:
    """Then nothing else has ended by it before."""
    world.take_term()
    assert world.signalled == [({11}, 15)]
    assert world.ladder.stopped_at == world.now
    world.ladder.term_new_ranks()
    assert world.signalled[1:] == [({21, 22}, 15)]


@pytest.mark.parametrize(("grace_s", "killed_after_s"), [(10.0, 27.0), (600.0, 600.0)])
def test_a_longer_grace_than_slurms_counts(
    world: World, grace_s: float, killed_after_s: float
) -> None:
    """A preemption may give more time than KillWait."""
    world.take_term(grace_s)
    assert not world.kills_after(killed_after_s - 0.1)
    assert world.kills_after(0.2)


def test_a_container_of_a_daemon_does_not_outlive_us(world: World) -> None:
    """The scheduler does not know its processes: they get TERM from us, and KILL in time."""
    world.program.contained = [22]
    world.take_term(600.0, Container(engine="docker", start=("docker",), create=("docker",)))
    assert world.signalled == []
    world.ladder.term_new_ranks()
    assert world.signalled == [({22}, 15)]
    assert world.kills_after(28.0)


def test_a_rank_that_ends_by_the_term_at_once_shortens_no_grace(world: World) -> None:
    """Its end may be seen first."""
    world.ladder.begin("rank 1 exited with 1", StopCause.LOCAL, world.now - TERM_SPREAD_S / 2)
    world.take_term(600.0)
    assert not world.kills_after(29.0)


@pytest.mark.parametrize("world", [PLAIN._replace(kill_wait_s=2.0)], indirect=True)
def test_of_a_short_time_half_is_the_programs(world: World) -> None:
    """The rest is for the record."""
    world.take_term(1.0)
    assert world.kills_after(1.1)


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


@pytest.mark.parametrize(("grace_s", "killed_after_s"), [(10.0, 5.0), (600.0, 30.0 - RECORD_S)])
def test_a_term_during_a_stop_shortens_a_long_grace(
    world: World, grace_s: float, killed_after_s: float
) -> None:
    """What is left dies before Slurm's KILL; a grace that ends sooner stays as it is."""
    world.ladder._order = replace(world.ladder._order, grace_s=grace_s)
    world.ladder.begin("told to", StopCause.USER, world.now - 5)
    world.take_term(grace_s)
    assert not world.kills_after(killed_after_s - 0.1)
    assert world.kills_after(0.2)


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


def test_a_peers_word_is_followed_without_a_term_of_ours(world: World) -> None:
    """The moment is over: Slurm may have ended one node alone."""
    assert world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.now += OWN_TERM_S
    assert not world.link.awaits_term(ENDED_BY_SCHEDULER)
    world.link.tick(world.ladder)
    assert world.stops == [(ENDED_BY_SCHEDULER, StopCause.PEER)]


def test_other_words_of_peers_do_not_wait(world: World) -> None:
    """Such as that a rank failed there."""
    assert not world.link.awaits_term("rank 1 on b exited with 1")
    world.now += 2 * OWN_TERM_S
    world.link.tick(world.ladder)
    assert world.stops == []


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


@pytest.mark.parametrize(
    ("world", "killed_after_s"),
    [
        (LIMITED, 30.0),
        (LIMITED._replace(stop_after_s=30.0), 20.0),
        (LIMITED._replace(stop_after_s=15.0), 7.5),
    ],
    indirect=["world"],
)
def test_what_is_left_at_the_limit_dies_before_it(world: World, killed_after_s: float) -> None:
    """Also if the stop is a peer's, with a grace of 30 s: later the job would not start again."""
    world.signal_ranks()
    world.now = world.link._limit_at
    world.ladder.begin(LIMIT_REASON, StopCause.PEER, world.now)
    world.link.tick(world.ladder)
    assert not world.kills_after(killed_after_s - 0.1)
    assert world.kills_after(0.1)


@limited
def test_a_stop_that_is_on_at_the_signal_ends_before_the_limit_too(world: World) -> None:
    """However long its grace is."""
    world.ladder._order = replace(world.ladder._order, grace_s=600.0)
    world.ladder.begin("told to", StopCause.USER, world.now)
    world.signal_ranks()
    world.link.tick(world.ladder)
    assert not world.kills_after(109.9)
    assert world.kills_after(0.1)


@pytest.mark.parametrize(
    ("world", "signalled"),
    [(Scheduled("/c", limit_signal=12), [({21, 22}, 12)]), (PLAIN, [])],
    indirect=["world"],
)
def test_without_requeue_the_limit_is_slurms(
    world: World, signalled: list[tuple[set[int], int]]
) -> None:
    """The ranks are told, if they are to be, and go on until it ends them."""
    world.signal_ranks()
    world.now += 10**6
    world.link.tick(world.ladder)
    assert (world.signalled, world.stops) == (signalled, [])


@limited
def test_ranks_that_end_are_not_signalled(world: World) -> None:
    """They have their TERM; an attempt after this one has the same limit."""
    world.ladder.begin("told to", StopCause.USER, world.now)
    world.signalled.clear()
    world.signal_ranks()
    assert world.signalled == []
    assert world.link.next_scheduled == LIMITED._replace(limit_at=world.now + 60)


@limited
def test_an_attempt_after_the_signal_has_its_limit_too(world: World) -> None:
    """It is in the same job; what was said to the one before is not said to it."""
    world.signal_ranks()
    following = world.link.next_scheduled
    assert following == LIMITED._replace(limit_at=world.now + 60)
    world.link = JobLink(following, run_now, id, cast("EventLog", world.journal), world.stop)
    world.now += 60
    world.link.tick(world.ladder)
    assert world.stops == [(LIMIT_REASON, StopCause.LOCAL)]


def test_an_attempt_takes_only_the_commands_that_are_left(tmp_path: Path) -> None:
    """Also those that came between two attempts."""
    path = tmp_path / "a.commands"
    path.write_text('{"command": "signal_ranks"}\n')
    scheduled: Scheduled | None = PLAIN._replace(commands=str(path))
    taken: list[list[Any]] = []
    journal, stop, ladder = cast("EventLog", Journal()), cast("Any", id), World(None).ladder
    for line in ('{"command": "stop"}\n', ""):
        taken.append([])
        link = JobLink(scheduled, run_now, taken[-1].append, journal, stop)
        link.tick(ladder)
        with path.open("a") as file:
            file.write(line)
        scheduled = link.next_scheduled
    assert taken == [[{"command": "signal_ranks"}], [{"command": "stop"}]]
    assert JobLink(None, run_now, id, journal, stop).next_scheduled is None


def test_commands_are_taken_in_every_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file of this start; without a scheduler there is none."""
    polled: list[str] = []

    class File:
        """Its commands."""

        def __init__(self, path: str, *_: object) -> None:
            self.path = path

        def poll(self) -> None:
            """Look for them."""
            polled.append(self.path)

    monkeypatch.setattr(job_link, "CommandFile", File)
    for scheduled in (PLAIN, None):
        world = World(scheduled)
        world.link.tick(world.ladder)
    assert polled == ["/nowhere/commands"]
