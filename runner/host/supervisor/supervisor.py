"""The supervisor: starts what its order says, keeps its record, and guarantees its death.

It knows nothing of torchrun. One thread, one loop; children are reaped in one place; it ends
when nothing of the run is left, or when what is left has outlived SIGKILL.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set

from runner.core.local_pause import Awake
from runner.core.model.order import Order
from runner.core.outcome.exits import describe_exit
from runner.core.protocol.events import (
    Apart,
    Cause,
    Ended,
    Joined,
    PeerLeft,
    PeerLost,
    PortTaken,
    ProgramExited,
    Stopping,
)
from runner.core.protocol.paths import RunFolder
from runner.core.protocol.states import State
from runner.host.facts import ports
from runner.host.peers.circle import circle_of
from runner.host.peers.election import Means
from runner.host.peers.group import Circle, News
from runner.host.process import cgroup, procfs
from runner.host.process.event_loop import Loop
from runner.host.process.kill import confirmed, kill_all, reap_all
from runner.host.ranks.tracker import Ranks
from runner.host.ranks.watchdog import Watchdog
from runner.host.storage import run_owner
from runner.host.storage.run_folder import Journal, record_sizes
from runner.host.storage.run_lock import Doorway
from runner.host.supervisor.control_socket import Door
from runner.host.supervisor.controller_lease import Attendance
from runner.host.supervisor.program import Program, before_exec
from runner.host.supervisor.relaunch import Aftermath, Last
from runner.host.supervisor.sidecar import Serving

TICK_S = 0.05
WORD_S = 2.0
"""How long the hub may take to say that all stop, after we began to."""

SAMPLE_S = 10.0
"""How often the length of the logs is put on record, for those who ask for the last minutes."""


class Start(NamedTuple):
    """What a supervisor begins with.

    Attributes:
        folder: Of the run on this host.
        order: What to carry out.
        environ: What its program's environment is built on.
        held: The ports that are reserved for the run here.
        token: The secret that the supervisors of the run share.
        means: What the hosts need to start the run once more by themselves; None where they do not.
    """

    folder: RunFolder
    order: Order
    environ: Dict[str, str]
    held: ports.Held
    token: bytes
    means: Optional[Means] = None


class Supervisor(News):
    """One run on one host, from its order to its last event."""

    def __init__(self, start: Start, doorway: Doorway, guardian: int) -> None:
        self._guardian = guardian
        self._begin = start
        self.order = order = start.order
        self._folder = start.folder
        self._environ = start.environ
        self._doorway = doorway
        self._port = ports.Reserved(start.held.store, order.hold_port)
        self._hub = start.held.hub
        self._token = start.token
        self._journal = Journal(start.folder, order)
        self._loop = Loop()
        self._program = Program(start.folder, order, self._journal)
        self._ranks = Ranks(start.folder, order, self._journal, self._fail)
        self._attendance = Attendance(order, self._journal)
        self._circle = Circle()
        self._awake = Awake()
        self._stop_reason = ""
        self._stop_cause = Cause.USER
        self._user_stops = False
        self._failed = False
        self._failed_at: Optional[float] = None
        self._kill_at: Optional[float] = None
        self._termed: Set[int] = set()
        self._next_sample = time.monotonic()
        self._sizes: Dict[str, int] = {}
        self._watchdog = Watchdog(start.folder, order, self._journal)
        self._sample_s = min(SAMPLE_S, self._watchdog.pause_s)
        self._stop_later = ""
        self._cgroup = cgroup.Cgroup()
        self._serving = Serving(start.folder, order)
        self._lost: Set[str] = set()
        self._met = False
        self._aftermath = Aftermath(order, start.means, start.environ, self._journal)

    def run(self, ready: Callable[[], None]) -> State:
        """Carry out the order; `ready` is called once it can be spoken to; return how it ended."""
        procfs.become_subreaper()
        self._loop.open()
        watch, unwatch = self._loop.watch, self._loop.unwatch
        self._door = Door(self._doorway, watch, unwatch, self._told)
        if not self.order.stands_by:
            self._cgroup = cgroup.make(self.order.run_id, self.order.node, self.order.attempt)
        as_ours = functools.partial(before_exec, self._cgroup, signal.SIGTERM)
        self._serving.start(self._environ, as_ours)
        self._start_when_served()
        self._circle = circle_of(self.order, self._hub, self._token, watch, unwatch, self)
        self._aftermath.prepare(self._begin.held, self._token, watch, unwatch)
        if self._failed:
            self.stop(f"the program on {self.order.node} could not be started")
        ready()
        while not self._over():
            self._loop.wait(TICK_S)
            self._tick()
        return self._end()

    def onward(self) -> Optional[Start]:
        """Return what is to be done here next, if the hosts start the run once more.

        Raises:
            OSError: It cannot be written down.
        """
        if self._loop.signalled:  # after the last look
            return None
        follows = self._aftermath.onward(self._folder)
        return self._begin._replace(**follows._asdict()) if follows else None

    def stop(self, reason: str, cause: Cause = Cause.OWN) -> None:
        """Begin the ladder: TERM to the program, KILL after the grace."""
        if cause is Cause.USER:
            self._aftermath.end(reason)
            known, self._user_stops = self._user_stops, True
            if self._stop_reason and not known:  # nor are the others to start it once more
                self._circle.stop(reason, cause, keep=self._attendance.needless)
        if self._stop_reason:
            return
        if cause is Cause.PEER and self._watchdog.dumping:  # where our ranks are, is wanted too
            self._stop_later = self._stop_later or reason
            return
        self._stop_reason, self._stop_cause = reason, cause
        mono, wall = time.monotonic(), time.time()  # before anything ends by it
        if cause is Cause.USER or not self.order.stands_by:  # a spare's trouble is its own
            told = Cause.PEER if cause is Cause.OWN else cause
            self._circle.stop(reason, told, keep=self._attendance.needless)
        self._kill_at = time.monotonic() + self.order.grace_s
        if self._program.runs:
            self._termed |= procfs.send(self._program.hearers(), signal.SIGTERM)
        self._program.never()
        self._journal.append(Stopping(reason, cause), mono=mono, wall=wall)
        if self._journal.state is not State.STOPPING:
            self._journal.enter(State.STOPPING)

    def peer_stops(self, reason: str, cause: Cause) -> None:
        """End with the others."""
        self.stop(reason, cause)

    def peer_lost(self, peer: str, reason: str, since: float) -> None:
        """End, since one of us is gone."""
        self._lost.add(peer)
        now = time.monotonic()
        wall = time.time() - (now - since)
        self._journal.append(PeerLost(peer, reason), mono=since, wall=wall)
        self.stop(f"lost {peer}: {reason}", Cause.PEER)

    def peer_left(self, peer: str, reason: str, since: float, nodes: int) -> None:
        """Go on without it: ranks that may wait for it are ended, and torch starts them anew."""
        if self._stop_reason:
            return
        self._lost.add(peer)
        wall = time.time() - (time.monotonic() - since)
        self._journal.append(PeerLeft(peer, reason, nodes), mono=since, wall=wall)
        self._note_ranks()
        if self._program.end is None:
            self._ranks.renew(nodes)

    def joined(self) -> None:
        """Record it: from now on the controller need not watch for us."""
        self._met = True
        self._journal.append(Joined())

    def apart(self, reason: str) -> None:
        """Record that it has to; who only stands by would not hear of the end."""
        self._journal.append(Apart(reason))
        if self.order.stands_by:
            self.stop(f"cannot reach {reason}")

    def controller_heard(self, when: float, *, keep: bool) -> None:
        """Count what the others hear as well."""
        self._attendance.hear_of(when)
        if keep:
            self._attendance.told_to_keep(stopping=bool(self._stop_reason))

    def _told(self, message: Dict[str, Any]) -> None:
        """Do what a link says: heard, keep, stop or kill."""
        word = message["say"]
        self._attendance.hear()
        if word == "left":
            known = (str(message["peer"]), str(message["reason"]))
            self.peer_left(*known, self._attendance.heard, int(message["nodes"]))
        elif word == "keep":
            stopping = bool(self._stop_reason)
            self._attendance.asked_to_keep(self._circle, met=self._met, stopping=stopping)
        elif word in ("stop", "kill"):
            cause = Cause(message.get("cause", "user"))
            attempt = message.get("attempt", self.order.attempt)
            if cause is Cause.PEER and attempt != self.order.attempt:
                return  # what failed there is over
            self.stop(str(message.get("reason", "told to stop")), cause)
            if word == "kill":
                self._kill_at = time.monotonic()

    def _start_when_served(self) -> None:
        """Start the program, if there is one, once what it needs is there."""
        if self.order.stands_by:
            if self._journal.state is State.STARTING:
                self._journal.enter(State.RUNNING)
        elif not self._program.begun and self._serving.open():
            if not self._program.start(self._environ, self._cgroup):
                self._failed, self._failed_at = True, time.monotonic()
                return
            if not self._cgroup.holds(self._program.pid):
                self._cgroup.remove()
                self._cgroup = cgroup.Cgroup()
            self._journal.enter(State.RUNNING)

    def _tick(self) -> None:
        self._start_when_served()
        self._judge_service()
        self._note_ranks()
        if self._port.look_due:
            self._hand_over_port()
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._sample_s
            self._look_for_progress()
            run_owner.touch(self._folder)
            self._door.keep()
        self._reap()
        self._ranks.end_the_renewed()
        if self._stop_reason:  # it may have begun while the others were told
            self._termed |= procfs.send({*self._program.rank()} - self._termed, signal.SIGTERM)
        if self._orphaned:
            self.stop("its supervisor was told to end, or lost its guardian")
        if self._journal.failed:
            self.stop(self._journal.failed)
        now = time.monotonic()
        own_s = float("inf") if self.order.stands_by else self._watchdog.still_s
        still_s = self._touch(own_s)
        self._aftermath.tick()
        self._judge_progress(still_s)
        if self._awake.look(now) and self._attendance.missing:
            self.stop(self._attendance.missing)
        if self._program.end is not None:
            self._end_leftovers(now)

    def _judge_service(self) -> None:
        """End, if what the program needs is not there; or if it could not be started after it."""
        if self._serving.problem:
            self._fail(self._serving.problem)
        elif self._failed and not self._program.pid:
            self.stop(f"the program on {self.order.node} could not be started")

    def _look_for_progress(self) -> None:
        self._sizes = record_sizes(self._folder, self.order.attempt, self._sizes)
        if self._program.runs:
            self._watchdog.look(self._sizes, self._program.pid)

    def _judge_progress(self, still_s: Optional[float]) -> None:
        """Have the watchdog act, unless the end is near anyhow."""
        if self._stop_reason or self._program.end is not None:
            self._watchdog.close()
        elif self._watchdog.judge(still_s):
            self._look_for_progress()
            if self._watchdog.reason:
                self._fail(self._watchdog.reason)
        if self._stop_later and not self._watchdog.dumping:
            self.stop(self._stop_later, Cause.PEER)

    def _living(self) -> List[int]:
        """Return all that lives of the run here: our descendants, but for our own helpers."""
        own = {*self._watchdog.pids, self._serving.pid}
        return [pid for pid in procfs.descendants(os.getpid()) if pid not in own]

    def _note_ranks(self) -> None:
        self._ranks.note(stopping=bool(self._stop_reason))

    def _fail(self, what: str, when: Optional[float] = None) -> None:
        """Something of the task failed: unless we stop already, that ends it everywhere."""
        if not self._stop_reason:
            self._failed = True
            self._failed_at = time.monotonic() if when is None else when
            self.stop(what)

    def _reap(self) -> None:
        for pid, status in reap_all():
            if self._serving.took(pid, status):
                continue
            if not self._program.took(pid, status):
                continue
            self._hand_over_port()  # first: that it was taken may be why the program ended
            self._note_ranks()
            self._ranks.note_unseen()
            code, signum = self._program.end or (None, None)
            self._journal.append(ProgramExited(code, signum))
            if code != 0:
                how = describe_exit(code, signum)
                self._fail(f"the program on {self.order.node} {how}")

    def _hand_over_port(self) -> None:
        """Let go of the port once the program listens on it, or once somebody else does."""
        owners = self._port.handed_over_to()
        if owners is not None and not owners.intersection(procfs.descendants(os.getpid())):
            self._journal.append(PortTaken(self.order.hold_port, tuple(sorted(owners))))
            self.stop("the master's port was taken")

    def _end_leftovers(self, now: float) -> None:
        """The program is gone: what it left behind gets TERM once, and the rest of the grace."""
        left = [] if procfs.childless() else self._living()
        if not left and not self._stop_reason:
            self._kill_at = None  # it went by itself, and the others may still need us
        elif left and self._kill_at is None:
            self._kill_at = now + self.order.grace_s
            if self._journal.state is not State.STOPPING:
                self._journal.enter(State.STOPPING)
        self._termed |= procfs.send(set(left) - self._termed, signal.SIGTERM)

    def _over(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        if self.order.stands_by:
            return bool(self._stop_reason) or self._circle.over
        if self._program.end is None:
            return False
        if not procfs.childless() and self._living():
            return False
        return bool(self._stop_reason) or not (self._circle.needed or self._serving.needed)

    def _end(self) -> State:
        self._watchdog.close()
        self._serving.end(self._reap)
        killed, survivors = kill_all(
            *(self._living, self._reap, self._ranks.shims, self._cgroup),
            gone=lambda: procfs.childless() or bool(self._watchdog.pids),
        )
        self._serving.clean()
        record_sizes(self._folder, self.order.attempt, self._sizes)
        self._note_ranks()
        self._ranks.note_unseen()
        proven = confirmed(self._cgroup, survivors)
        stood_by = self.order.stands_by and not self._stop_reason
        if proven and not survivors:
            self._follow_up()
        if survivors:
            state = State.STUCK
        elif (stood_by or self._program.end == (0, None)) and not self._failed:
            state = State.SUCCEEDED
        elif self._stop_reason and not self._failed:
            state = State.STOPPED
        else:
            state = State.FAILED
        own = self._stop_cause is Cause.OWN and not self._failed
        reason = self._journal.failed or (self._stop_reason if own else "")
        self._journal.end(Ended(state, reason, len(killed), survivors, proven))
        self._cgroup.remove()
        self._circle.leave()
        self._close()
        return state

    def _follow_up(self) -> None:
        """Have the hosts decide whether another attempt follows, if that is up to them."""
        self._hear_the_hub()
        if not self._must_end and self._aftermath.may_follow(self._last):
            self._circle.leave()
            self._circle = Circle()
            self._port.let_go()
            self._aftermath.decide(self._last, self._wait)

    def _hear_the_hub(self) -> None:
        """Wait for its word that all stop, by which every host knows the same of controllers."""
        until = time.monotonic() + WORD_S
        while self._stop_reason and self._aftermath.possible and not self._circle.agreed:
            if self._must_end or time.monotonic() > until:
                return
            self._loop.wait(TICK_S)
            self._touch(float("inf"))

    def _touch(self, still_s: float) -> Optional[float]:
        """Keep in touch with the others; return for how long nothing has moved anywhere."""
        attendance = self._attendance
        return self._circle.tick(attendance.heard, keep=attendance.needless, still_s=still_s)

    @property
    def _last(self) -> Last:
        failed_at = self._ranks.to_blame(self._failed_at)
        how = (self._stop_reason, self._stop_cause, failed_at)
        return Last(*how, lost=self._lost, met=self._met, kept=self._attendance.agreed)

    @property
    def _orphaned(self) -> bool:
        return self._loop.signalled or os.getppid() != self._guardian

    @property
    def _must_end(self) -> bool:
        return self._orphaned or bool(self._journal.failed)

    def _wait(self) -> str:
        """Wait for a moment between two attempts; return what forbids another, "" if nothing."""
        self._loop.wait(TICK_S)
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._sample_s
            run_owner.touch(self._folder)
            self._door.keep()
        return f"the supervisor on {self.order.node} was told to end" if self._must_end else ""

    def _close(self) -> None:
        """Leave nothing open: another attempt may follow in this process."""
        self._aftermath.close()
        self._door.close()
        self._loop.close()
