"""The supervisor: starts what its order says, keeps its record, and guarantees its death.

It knows nothing of torchrun. One thread, one loop; children are reaped in one place; it ends
when nothing of the run is left, or when what is left has outlived SIGKILL.
"""

from __future__ import annotations

import functools
import os
import selectors
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Set, Tuple

from runner.core.awake import Awake
from runner.core.codec import decode
from runner.core.events import (
    Apart,
    Cause,
    Ended,
    Joined,
    Kept,
    NotRelaunched,
    PeerLeft,
    PeerLost,
    PortTaken,
    ProgramExited,
    ProgramStarted,
    RankExited,
    RankStarted,
    Regrouping,
    Relaunching,
    Stopping,
)
from runner.core.exits import describe_exit
from runner.core.layout import PROGRAM, RunFolder
from runner.core.order import Order
from runner.core.stacks import STALLED
from runner.core.states import State
from runner.host import cgroup, deaths, keeper, ports, proc
from runner.host.circle import circle_of
from runner.host.door import Door
from runner.host.doorway import Doorway
from runner.host.election import Election, Means
from runner.host.ending import confirmed, kill_all, reap_all
from runner.host.heirs import Ring
from runner.host.records import Journal, prepare, rank_records, record_sizes
from runner.host.serving import Serving
from runner.host.touch import Circle, News
from runner.host.watchdog import Watchdog

TICK_S = 0.05
SAMPLE_S = 10.0
"""How often the length of the logs is put on record, for those who ask for the last minutes."""

PORT_LOOK_S = 0.5
"""How often to see who listens on the port: /proc/net/tcp costs milliseconds to read."""


class RankProcess(NamedTuple):
    """One start of a rank: its own program, and the shim above it."""

    pid: int
    shim: int


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
        self._held, self._hub = start.held.store, start.held.hub
        self._token = start.token
        self._journal = Journal(start.folder, order)
        self._selector = selectors.DefaultSelector()
        self._program: Optional[subprocess.Popen[bytes]] = None
        self._program_end: Optional[Tuple[Optional[int], Optional[int]]] = None
        self._seen: Set[str] = set()
        self._ranks: Dict[Tuple[int, int], RankProcess] = {}
        self._exited: Set[Tuple[int, int]] = set()
        self._member_of = 0
        self._renewed: Set[int] = set()
        self._renewed_by = float("inf")
        if order.again:  # what was recorded before was told before
            rank_records(start.folder.attempt(order.attempt), self._seen)
        self._heard = self._heard_elsewhere = time.monotonic()
        self._circle = Circle()
        self._awake = Awake()
        self._disconnect_s = order.disconnect_s
        self._stop_reason = ""
        self._stop_cause = Cause.USER
        self._failed = False
        self._failed_at: Optional[float] = None
        self._kill_at: Optional[float] = None
        self._termed: Set[int] = set()
        self._signalled = False
        self._next_port_look = time.monotonic() + PORT_LOOK_S
        self._next_sample = time.monotonic()
        self._sizes: Dict[str, int] = {}
        self._watchdog = Watchdog(start.folder, order, self._journal)
        self._sample_s = min(SAMPLE_S, self._watchdog.pause_s)
        self._stop_later = ""
        self._lookout = ports.Lookout(order.hold_port)
        self._cgroup = cgroup.Cgroup()
        self._serving = Serving(start.folder, order)
        self._wakeup: Tuple[int, ...] = ()
        self._lost: Set[str] = set()
        self._met = False
        self._election: Optional[Election] = None

    def run(self, ready: Callable[[], None]) -> State:
        """Carry out the order; `ready` is called once it can be spoken to; return how it ended."""
        proc.become_subreaper()
        self._listen()
        if not self.order.stands_by:
            self._cgroup = cgroup.make(self.order.run_id, self.order.node, self.order.attempt)
        self._serving.start(self._environ, functools.partial(_before_exec, self._cgroup))
        self._start_when_served()
        self._circle = circle_of(
            self.order, self._hub, self._token, self._watch, self._unwatch, self
        )
        self._prepare_election()
        if self._failed:
            self.stop(f"the program on {self.order.node} could not be started")
        ready()
        while not self._over():
            for key, _ in self._selector.select(TICK_S):
                key.data()
            self._tick()
        return self._end()

    def onward(self) -> Optional[Start]:
        """Return what is to be done here next, if the hosts start the run once more.

        Raises:
            OSError: It cannot be written down.
        """
        election, means = self._election, self._begin.means
        if election is None or election.decision is None or means is None:
            return None
        _, order, succession, record = election.decision
        if order is None or succession is None:
            return None
        prepare(self._folder, order, means.programs, record)
        return self._begin._replace(
            order=order, held=election.held, means=means._replace(succession=succession)
        )

    def stop(self, reason: str, cause: Cause = Cause.OWN) -> None:
        """Begin the ladder: TERM to the program, KILL after the grace."""
        if cause is Cause.USER and self._election is not None:
            self._election.end(reason)
        if self._stop_reason:
            return
        if cause is Cause.PEER and self._watchdog.dumping:  # where our ranks are, is wanted too
            self._stop_later = self._stop_later or reason
            return
        self._stop_reason, self._stop_cause = reason, cause
        mono, wall = time.monotonic(), time.time()  # before anything ends by it
        self._circle.stop(reason, Cause.PEER if cause is Cause.OWN else cause)
        self._kill_at = time.monotonic() + self.order.grace_s
        if self._program is not None and self._program_end is None:
            self._termed |= proc.send(self._hearers(self._program.pid), signal.SIGTERM)
        elif self._program is None:
            self._program_end = (None, None)  # it never begins
        self._journal.append(Stopping(reason, cause), mono=mono, wall=wall)
        if self._journal.state is not State.STOPPING:
            self._journal.enter(State.STOPPING)

    def _hearers(self, program: int) -> List[int]:
        """Return who gets TERM: a launcher alone, since it forwards; else the whole session."""
        if self.order.launcher:
            return [program]
        session = {pid for pid, each in proc.table().items() if each.session == program}
        return sorted(session | self._rank_pids())

    def _rank_pids(self) -> Set[int]:
        return {each.pid for key, each in self._ranks.items() if key not in self._exited}

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
        """Go on without it: ranks that may wait for it for long are ended, and torch starts anew.

        Those that it started since then, by themselves or with others, are left alone.
        """
        if self._stop_reason:
            return
        now = time.monotonic()
        wall = time.time() - (now - since)
        self._journal.append(PeerLeft(peer, reason, nodes), mono=since, wall=wall)
        self._note_ranks()
        if self._program_end is None and (not nodes or self._member_of > nodes):
            living = self._rank_pids()
            self._renewed = proc.send(living, signal.SIGTERM)
            self._renewed_by = now + self.order.grace_s

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
        self._heard_elsewhere = max(self._heard_elsewhere, when)
        if keep:
            self._keep()

    def _keep(self) -> None:
        if self._disconnect_s:
            self._disconnect_s = 0.0
            self._journal.append(Kept())

    def _listen(self) -> None:
        reading, writing = os.pipe()
        for descriptor in (reading, writing):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._note_signal)
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        self._wakeup = (reading, writing)
        self._watch(reading, lambda: os.read(reading, 4096))
        self._door = Door(self._doorway, self._watch, self._unwatch, self._told)

    def _note_signal(self, *_: Any) -> None:
        self._signalled = True

    def _watch(self, descriptor: int, handler: Callable[[], Any]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, handler)

    def _unwatch(self, descriptor: int) -> None:
        self._selector.unregister(descriptor)

    def _told(self, message: Dict[str, Any]) -> None:
        """Do what a link says: heard, keep, stop or kill."""
        word = message["say"]
        self._heard = time.monotonic()
        if word == "left":
            known = (str(message["peer"]), str(message["reason"]))
            self.peer_left(*known, self._heard, int(message["nodes"]))
        if word == "keep":
            self._keep()
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
        elif self._program is None and self._program_end is None and self._serving.open():
            self._start()

    def _start(self) -> None:
        order, folder = self.order, self._folder
        try:
            out, err = (
                os.open(folder.stream(order.attempt, PROGRAM, stream), _APPEND, 0o600)
                for stream in ("out", "err")
            )
            self._program = subprocess.Popen(
                order.argv,
                env={**self._environ, **order.env},
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=functools.partial(_before_exec, self._cgroup, order.launcher),  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            what = f"cannot start {order.argv[0]} in {order.cwd}: {error.strerror}"
            self._journal.append(ProgramExited(error=what))
            self._program_end = (None, None)
            self._failed, self._failed_at = True, time.monotonic()
            return
        os.close(out)
        os.close(err)
        if not self._cgroup.holds(self._program.pid):
            self._cgroup.remove()
            self._cgroup = cgroup.Cgroup()
        self._journal.append(ProgramStarted(self._program.pid, self._cgroup.path, order.again))
        self._journal.enter(State.RUNNING)

    def _tick(self) -> None:
        self._start_when_served()
        self._judge_service()
        self._note_ranks()
        if time.monotonic() >= self._next_port_look:
            self._next_port_look = time.monotonic() + PORT_LOOK_S
            self._hand_over_port()
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._sample_s
            self._look_for_progress()
            keeper.touch(self._folder)
            self._door.keep()
        self._reap()
        self._end_the_renewed()
        if self._signalled or os.getppid() != self._guardian:
            self.stop("its supervisor was told to end, or lost its guardian")
        if self._journal.failed:
            self.stop(self._journal.failed)
        now = time.monotonic()
        own_s = float("inf") if self.order.stands_by else self._watchdog.still_s
        still_s = self._circle.tick(self._heard, keep=not self._disconnect_s, still_s=own_s)
        if self._election is not None:
            self._election.tick()
        self._judge_progress(still_s)
        silence = now - max(self._heard, self._heard_elsewhere)
        if self._awake.look(now) and 0 < self._disconnect_s < silence:
            self.stop(f"no controller was heard for {self._disconnect_s:g} s")
        if self._program_end is not None:
            self._end_leftovers(now)

    def _judge_service(self) -> None:
        """End, if what the program needs is not there; or if it could not be started after it."""
        if self._serving.problem:
            self._fail(self._serving.problem)
        elif self._failed and self._program is None:
            self.stop(f"the program on {self.order.node} could not be started")

    def _look_for_progress(self) -> None:
        self._sizes = record_sizes(self._folder, self.order.attempt, self._sizes)
        if self._program is not None and self._program_end is None:
            self._watchdog.look(self._sizes, self._program.pid)

    def _judge_progress(self, still_s: Optional[float]) -> None:
        """Have the watchdog act, unless the end is near anyhow."""
        if self._stop_reason or self._program_end is not None:
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
        return [pid for pid in proc.descendants(os.getpid()) if pid not in own]

    def _note_ranks(self) -> None:
        attempt = self._folder.attempt(self.order.attempt)
        for kind, rank, data in rank_records(attempt, self._seen):
            key = (rank, int(data["start"]))
            if kind == "start":
                body = decode(RankStarted, {**data, "rank": rank})
                self._ranks[key] = RankProcess(body.pid, int(data["shim"]))
                self._member_of = body.nodes
                self._journal.append(body, mono=float(data["mono"]), wall=float(data["wall"]))
            else:
                self._exited.add(key)
                pid = self._ranks[key].pid if key in self._ranks else 0
                error = "" if self._stop_reason else deaths.seen(pid, data)
                self._journal.append_exit(rank, data, error)
                if data["code"] != 0:
                    how = error or describe_exit(data["code"], data["signal"])
                    self._rank_failed(
                        f"rank {rank} on {self.order.node} {how}", float(data["mono"])
                    )

    def _rank_failed(self, what: str, when: float) -> None:
        """A rank failed: that ends the run, unless torchrun may start it anew; it ends if not."""
        if not self.order.restarts:
            self._fail(what, when)

    def _end_the_renewed(self) -> None:
        """Kill ranks that were to end for a new membership, and take longer than the grace."""
        if time.monotonic() >= self._renewed_by:
            self._renewed_by = float("inf")
            living = self._rank_pids()
            proc.send(self._renewed & living, signal.SIGKILL)

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
            if self._program is None or pid != self._program.pid:
                continue
            signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
            code = None if signum else os.WEXITSTATUS(status)
            self._program.returncode = -signum if signum else code
            self._program_end = (code, signum)
            self._hand_over_port()  # first: that it was taken may be why the program ended
            self._note_ranks()
            self._note_unseen()
            self._journal.append(ProgramExited(code, signum))
            if code != 0:
                how = describe_exit(code, signum)
                self._fail(f"the program on {self.order.node} {how}")

    def _note_unseen(self) -> None:
        """Ranks whose shim is gone without a word: nobody saw how they ended."""
        alive = proc.descendants(os.getpid())
        for (rank, start), process in sorted(self._ranks.items()):
            if (rank, start) not in self._exited and process.shim not in alive:
                self._exited.add((rank, start))
                error = deaths.unseen(self._folder.root)
                self._journal.append(RankExited(rank, error=error, start=start))
                self._rank_failed(
                    f"rank {rank} on {self.order.node} ended unseen", time.monotonic()
                )

    def _hand_over_port(self) -> None:
        """Let go of the port once the program listens on it, or once somebody else does."""
        if self._held is None:
            return
        owners = self._lookout.owners(list(proc.table()))
        if owners is None:
            return
        self._held.close()
        self._held = None
        if not owners.intersection(proc.descendants(os.getpid())):
            self._journal.append(PortTaken(self.order.hold_port, tuple(sorted(owners))))
            self.stop("the master's port was taken")

    def _end_leftovers(self, now: float) -> None:
        """The program is gone: what it left behind gets TERM once, and the rest of the grace."""
        left = [] if proc.childless() else self._living()
        if not left and not self._stop_reason:
            self._kill_at = None  # it went by itself, and the others may still need us
        elif left and self._kill_at is None:
            self._kill_at = now + self.order.grace_s
            if self._journal.state is not State.STOPPING:
                self._journal.enter(State.STOPPING)
        self._termed |= proc.send(set(left) - self._termed, signal.SIGTERM)

    def _over(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        if self.order.stands_by:
            return bool(self._stop_reason) or self._circle.over
        if self._program_end is None:
            return False
        if not proc.childless() and self._living():
            return False
        return bool(self._stop_reason) or not (self._circle.needed or self._serving.needed)

    def _end(self) -> State:
        self._watchdog.close()
        self._serving.end(self._reap)
        shims = {process.shim for process in self._ranks.values()}
        killed, survivors = kill_all(
            *(self._living, self._reap, shims, self._cgroup),
            gone=lambda: proc.childless() or bool(self._watchdog.pids),
        )
        self._serving.clean()
        record_sizes(self._folder, self.order.attempt, self._sizes)
        self._note_ranks()
        self._note_unseen()
        proven = confirmed(self._cgroup, survivors)
        stood_by = self.order.stands_by and not self._stop_reason
        if proven and not survivors and self._may_go_on:
            self._elect()
        if survivors:
            state = State.STUCK
        elif (stood_by or self._program_end == (0, None)) and not self._failed:
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

    # Whether the run starts once more

    def _prepare_election(self) -> None:
        order, begin = self.order, self._begin
        if begin.means is None or not order.heirs:
            return
        about = f"{order.run_id}/{order.attempt}/heirs"
        ring = Ring(order.node, about, begin.token, self._watch, self._unwatch)
        self._election = Election(order, begin.means, self._environ, begin.held.heir, ring)

    @property
    def _may_go_on(self) -> bool:
        """Whether the hosts are to decide about it: while a controller is needed, that does."""
        election, order = self._election, self.order
        if election is None or election.decision is not None or self._disconnect_s:
            return False
        if self._stop_cause is Cause.USER or not self._stop_reason:
            return False
        if self._signalled or self._journal.failed or os.getppid() != self._guardian:
            return False
        if self._stop_reason.startswith(STALLED) and not election.restarts_stalled:
            return False
        return order.hub is None or order.hub.node == order.node or self._met

    def _elect(self) -> None:
        election = self._election
        assert election is not None  # noqa: S101 (asked before)
        self._circle.leave()
        self._circle = Circle()
        self._journal.append(Regrouping())
        stalled = self._stop_reason.startswith(STALLED)  # who saw that says nothing
        election.begin(self._stop_reason, None if stalled else self._failed_at, self._lost)
        while election.decision is None:
            for key, _ in self._selector.select(TICK_S):
                key.data()
            election.tick()
            if self._signalled or os.getppid() != self._guardian:
                election.give_up(f"the supervisor on {self.order.node} was told to end")
            if time.monotonic() >= self._next_sample:
                self._next_sample = time.monotonic() + self._sample_s
                keeper.touch(self._folder)
                self._door.keep()
        reason, order, succession, _ = election.decision
        if order is None or succession is None:
            self._journal.append(NotRelaunched(reason))
        else:
            nodes = tuple(node.name for node in succession.spec.nodes)
            self._journal.append(Relaunching(order.attempt, nodes, reason))

    def _close(self) -> None:
        """Leave nothing open: another attempt may follow in this process."""
        if self._election is not None:
            self._election.close()
        signal.set_wakeup_fd(-1)
        self._door.close()
        for descriptor in self._wakeup:
            os.close(descriptor)
        self._selector.close()


_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


def _before_exec(home: cgroup.Cgroup, launcher: str) -> None:
    home.enter()
    # A rank shim takes no notice of TERM; its own death ends its rank.
    proc.die_with_parent(signal.SIGTERM if launcher else signal.SIGKILL)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(signum, signal.SIG_DFL)
