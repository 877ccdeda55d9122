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

from runner.core.local_pause import LocalPauseDetector
from runner.core.model.order import Order
from runner.core.outcome.exits import describe_exit
from runner.core.protocol.events import (
    Ended,
    HubJoined,
    HubUnreachable,
    PeerDeparted,
    PeerLost,
    PortTaken,
    ProgramExited,
    StopCause,
    Stopping,
)
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.facts import ports
from runner.host.peers.election import ElectionContext
from runner.host.peers.group import PeerGroup, PeerObserver
from runner.host.process import cgroup, procfs
from runner.host.process.event_loop import EventLoop
from runner.host.process.kill import cgroup_empty, kill_until_gone, reap_all
from runner.host.ranks.tracker import RankTracker
from runner.host.ranks.watchdog import Watchdog
from runner.host.storage import run_owner
from runner.host.storage.journal import EventLog
from runner.host.storage.log_sizes import sample_log_sizes
from runner.host.storage.run_lock import RunLock
from runner.host.supervisor.control_socket import ControlSocket
from runner.host.supervisor.controller_lease import ControllerLease
from runner.host.supervisor.peers import join_peers
from runner.host.supervisor.program import LauncherProcess, child_setup
from runner.host.supervisor.relaunch import AttemptEnd, HostRelaunch
from runner.host.supervisor.sidecar import SidecarProcess

TICK_S = 0.05
HUB_STOP_TIMEOUT_S = 2.0
"""How long the hub may take to say that all stop, after we began to."""

LOG_SAMPLE_INTERVAL_S = 10.0
"""How often the length of the logs is put on record, for those who ask for the last minutes."""


class SupervisorArgs(NamedTuple):
    """What a supervisor begins with.

    Attributes:
        folder: Of the run on this host.
        order: What to carry out.
        environ: What its program's environment is built on.
        reserved_ports: The ports that are reserved for the run here.
        token: The secret that the supervisors of the run share.
        election_context: What the hosts need to start the run once more by themselves; None where
            they do not.
    """

    folder: RunPaths
    order: Order
    environ: Dict[str, str]
    reserved_ports: ports.ReservedPorts
    token: bytes
    election_context: Optional[ElectionContext] = None


class Supervisor(PeerObserver):
    """One run on one host, from its order to its last event."""

    def __init__(self, args: SupervisorArgs, run_lock: RunLock, guardian_pid: int) -> None:
        self._guardian_pid = guardian_pid
        self._args = args
        self.order = order = args.order
        self._folder = args.folder
        self._environ = args.environ
        self._run_lock = run_lock
        self._port_reservation = ports.PortReservation(
            args.reserved_ports.store, order.reserve_port
        )
        self._hub_listener = args.reserved_ports.hub
        self._token = args.token
        self._journal = EventLog(args.folder, order)
        self._loop = EventLoop()
        self._launcher = LauncherProcess(args.folder, order, self._journal)
        self._ranks = RankTracker(args.folder, order, self._journal, self._fail)
        self._lease = ControllerLease(order, self._journal)
        self._peer_group = PeerGroup()
        self._pause_detector = LocalPauseDetector()
        self._stop_reason = ""
        self._stop_cause = StopCause.USER
        self._stopped_by_user = False
        self._failed = False
        self._failed_at: Optional[float] = None
        self._kill_at: Optional[float] = None
        self._term_sent: Set[int] = set()
        self._next_sample = time.monotonic()
        self._log_sizes: Dict[str, int] = {}
        self._watchdog = Watchdog(args.folder, order, self._journal)
        self._sample_interval_s = min(LOG_SAMPLE_INTERVAL_S, self._watchdog.interval_s)
        self._deferred_stop_reason = ""
        self._cgroup = cgroup.Cgroup()
        self._sidecar = SidecarProcess(args.folder, order)
        self._lost_nodes: Set[str] = set()
        self._joined_hub = False
        self._relaunch = HostRelaunch(order, args.election_context, args.environ, self._journal)

    def run(self, on_ready: Callable[[], None]) -> State:
        """Carry out the order; `on_ready` is called once it can be spoken to; return how it ended."""
        procfs.become_subreaper()
        self._loop.open()
        self._control_socket = ControlSocket(self._run_lock, self._loop, self._on_command)
        if not self.order.is_standby:
            self._cgroup = cgroup.create(self.order.run_id, self.order.node, self.order.attempt)
        preexec_fn = functools.partial(child_setup, self._cgroup, signal.SIGTERM)
        self._sidecar.start(self._environ, preexec_fn)
        self._start_when_ready()
        self._peer_group = join_peers(self.order, self._hub_listener, self._token, self._loop, self)
        self._relaunch.listen(self._args.reserved_ports, self._token, self._loop)
        if self._failed:
            self.stop(f"the program on {self.order.node} could not be started")
        on_ready()
        while not self._is_finished():
            self._loop.wait(TICK_S)
            self._tick()
        return self._finish()

    def next_start(self) -> Optional[SupervisorArgs]:
        """Return what is to be done here next, if the hosts start the run once more.

        Raises:
            OSError: It cannot be written down.
        """
        if self._loop.term_received:  # after the last look
            return None
        next_attempt = self._relaunch.next_start(self._folder)
        return self._args._replace(**next_attempt._asdict()) if next_attempt else None

    def stop(self, reason: str, cause: StopCause = StopCause.LOCAL) -> None:
        """Begin the ladder: TERM to the program, KILL after the grace."""
        if cause is StopCause.USER:
            self._relaunch.cancel(reason)
            was_stopped_by_user, self._stopped_by_user = self._stopped_by_user, True
            if (
                self._stop_reason and not was_stopped_by_user
            ):  # nor are the others to start it once more
                self._peer_group.stop(reason, cause, detached=self._lease.detached)
        if self._stop_reason:
            return
        if (
            cause is StopCause.PEER and self._watchdog.is_dumping
        ):  # where our ranks are, is wanted too
            self._deferred_stop_reason = self._deferred_stop_reason or reason
            return
        self._stop_reason, self._stop_cause = reason, cause
        mono, wall = time.monotonic(), time.time()  # before anything ends by it
        if cause is StopCause.USER or not self.order.is_standby:  # a spare's trouble is its own
            peer_cause = StopCause.PEER if cause is StopCause.LOCAL else cause
            self._peer_group.stop(reason, peer_cause, detached=self._lease.detached)
        self._kill_at = time.monotonic() + self.order.grace_s
        if self._launcher.is_running:
            self._term_sent |= procfs.signal_all(self._launcher.term_targets(), signal.SIGTERM)
        self._launcher.cancel()
        self._journal.append(Stopping(reason, cause), mono=mono, wall=wall)
        if self._journal.state is not State.STOPPING:
            self._journal.set_state(State.STOPPING)

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        """End with the others."""
        self.stop(reason, cause)

    def on_peer_lost(self, peer: str, reason: str, last_seen: float) -> None:
        """End, since one of us is gone."""
        self._lost_nodes.add(peer)
        now = time.monotonic()
        wall = time.time() - (now - last_seen)
        self._journal.append(PeerLost(peer, reason), mono=last_seen, wall=wall)
        self.stop(f"lost {peer}: {reason}", StopCause.PEER)

    def on_peer_departed(self, peer: str, reason: str, last_seen: float, node_count: int) -> None:
        """Go on without it: ranks that may wait for it are ended, and torch starts them anew."""
        if self._stop_reason:
            return
        self._lost_nodes.add(peer)
        wall = time.time() - (time.monotonic() - last_seen)
        self._journal.append(PeerDeparted(peer, reason, node_count), mono=last_seen, wall=wall)
        self._scan_rank_records()
        if self._launcher.exit_status is None:
            self._ranks.terminate_for_restart(node_count)

    def on_hub_joined(self) -> None:
        """Record it: from now on the controller need not watch for us."""
        self._joined_hub = True
        self._journal.append(HubJoined())

    def on_hub_unreachable(self, reason: str) -> None:
        """Record that it has to; who only stands by would not hear of the end."""
        self._journal.append(HubUnreachable(reason))
        if self.order.is_standby:
            self.stop(f"cannot reach {reason}")

    def on_lease_renewed(self, renewed_at: float, *, detached: bool) -> None:
        """Count what the others hear as well."""
        self._lease.renew_from_peer(renewed_at)
        if detached:
            self._lease.confirm_detach(stopping=bool(self._stop_reason))

    def _on_command(self, message: Dict[str, Any]) -> None:
        """Do what a link says: heard, keep, stop or kill."""
        kind = message["command"]
        self._lease.renew()
        if kind == "peer_departed":
            departure = (str(message["peer"]), str(message["reason"]))
            self.on_peer_departed(*departure, self._lease.renewed_at, int(message["nodes"]))
        elif kind == "detach":
            stopping = bool(self._stop_reason)
            self._lease.request_detach(
                self._peer_group, joined_hub=self._joined_hub, stopping=stopping
            )
        elif kind in ("stop", "kill"):
            cause = StopCause(message.get("cause", "user"))
            attempt = message.get("attempt", self.order.attempt)
            if cause is StopCause.PEER and attempt != self.order.attempt:
                return  # what failed there is over
            self.stop(str(message.get("reason", "told to stop")), cause)
            if kind == "kill":
                self._kill_at = time.monotonic()

    def _start_when_ready(self) -> None:
        """Start the program, if there is one, once what it needs is there."""
        if self.order.is_standby:
            if self._journal.state is State.STARTING:
                self._journal.set_state(State.RUNNING)
        elif not self._launcher.start_settled and self._sidecar.is_ready():
            if not self._launcher.start(self._environ, self._cgroup):
                self._failed, self._failed_at = True, time.monotonic()
                return
            if not self._cgroup.contains(self._launcher.pid):
                self._cgroup.remove()
                self._cgroup = cgroup.Cgroup()
            self._journal.set_state(State.RUNNING)

    def _tick(self) -> None:
        self._start_when_ready()
        self._check_sidecar()
        self._scan_rank_records()
        if self._port_reservation.check_due:
            self._release_port_if_listening()
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._sample_interval_s
            self._sample_progress()
            run_owner.heartbeat(self._folder)
            self._control_socket.reopen_if_removed()
        self._reap()
        self._ranks.kill_overdue()
        if self._stop_reason:  # it may have begun while the others were told
            self._term_sent |= procfs.signal_all(
                {*self._launcher.rank_pids()} - self._term_sent, signal.SIGTERM
            )
        if self._orphaned:
            self.stop("its supervisor was told to end, or lost its guardian")
        if self._journal.write_error:
            self.stop(self._journal.write_error)
        now = time.monotonic()
        local_stalled_s = float("inf") if self.order.is_standby else self._watchdog.stalled_s
        stalled_s = self._exchange_heartbeats(local_stalled_s)
        self._relaunch.tick()
        self._check_progress(stalled_s)
        if self._pause_detector.may_judge(now) and self._lease.expiry_reason:
            self.stop(self._lease.expiry_reason)
        if self._launcher.exit_status is not None:
            self._terminate_leftovers(now)

    def _check_sidecar(self) -> None:
        """End, if what the program needs is not there; or if it could not be started after it."""
        if self._sidecar.problem:
            self._fail(self._sidecar.problem)
        elif self._failed and not self._launcher.pid:
            self.stop(f"the program on {self.order.node} could not be started")

    def _sample_progress(self) -> None:
        self._log_sizes = sample_log_sizes(self._folder, self.order.attempt, self._log_sizes)
        if self._launcher.is_running:
            self._watchdog.sample(self._log_sizes, self._launcher.pid)

    def _check_progress(self, stalled_s: Optional[float]) -> None:
        """Have the watchdog act, unless the end is near anyhow."""
        if self._stop_reason or self._launcher.exit_status is not None:
            self._watchdog.close()
        elif self._watchdog.check(stalled_s):
            self._sample_progress()
            if self._watchdog.reason:
                self._fail(self._watchdog.reason)
        if self._deferred_stop_reason and not self._watchdog.is_dumping:
            self.stop(self._deferred_stop_reason, StopCause.PEER)

    def _live_processes(self) -> List[int]:
        """Return all that lives of the run here: our descendants, but for our own helpers."""
        helper_pids = {*self._watchdog.child_pids, self._sidecar.pid}
        return [pid for pid in procfs.descendants(os.getpid()) if pid not in helper_pids]

    def _scan_rank_records(self) -> None:
        self._ranks.scan_records(stopping=bool(self._stop_reason))

    def _fail(self, reason: str, failed_at: Optional[float] = None) -> None:
        """Something of the task failed: unless we stop already, that ends it everywhere."""
        if not self._stop_reason:
            self._failed = True
            self._failed_at = time.monotonic() if failed_at is None else failed_at
            self.stop(reason)

    def _reap(self) -> None:
        for pid, status in reap_all():
            if self._sidecar.on_reaped(pid, status):
                continue
            if not self._launcher.on_reaped(pid, status):
                continue
            self._release_port_if_listening()  # first: that it was taken may be why the program ended
            self._scan_rank_records()
            self._ranks.record_vanished()
            code, signum = self._launcher.exit_status or (None, None)
            self._journal.append(ProgramExited(code, signum))
            if code != 0:
                outcome = describe_exit(code, signum)
                self._fail(f"the program on {self.order.node} {outcome}")

    def _release_port_if_listening(self) -> None:
        """Let go of the port once the program listens on it, or once somebody else does."""
        owners = self._port_reservation.release_if_listening()
        if owners is not None and not owners.intersection(procfs.descendants(os.getpid())):
            self._journal.append(PortTaken(self.order.reserve_port, tuple(sorted(owners))))
            self.stop("the master's port was taken")

    def _terminate_leftovers(self, now: float) -> None:
        """The program is gone: what it left behind gets TERM once, and the rest of the grace."""
        leftovers = [] if procfs.no_children_left() else self._live_processes()
        if not leftovers and not self._stop_reason:
            self._kill_at = None  # it went by itself, and the others may still need us
        elif leftovers and self._kill_at is None:
            self._kill_at = now + self.order.grace_s
            if self._journal.state is not State.STOPPING:
                self._journal.set_state(State.STOPPING)
        self._term_sent |= procfs.signal_all(set(leftovers) - self._term_sent, signal.SIGTERM)

    def _is_finished(self) -> bool:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            return True
        if self.order.is_standby:
            return bool(self._stop_reason) or self._peer_group.hub_finished
        if self._launcher.exit_status is None:
            return False
        if not procfs.no_children_left() and self._live_processes():
            return False
        return bool(self._stop_reason) or not (
            self._peer_group.has_members or self._sidecar.has_clients
        )

    def _finish(self) -> State:
        self._watchdog.close()
        self._sidecar.stop(self._reap)
        killed, survivors = kill_until_gone(
            *(self._live_processes, self._reap, self._ranks.shim_pids, self._cgroup),
            all_gone=lambda: procfs.no_children_left() or bool(self._watchdog.child_pids),
        )
        self._sidecar.clean()
        sample_log_sizes(self._folder, self.order.attempt, self._log_sizes)
        self._scan_rank_records()
        self._ranks.record_vanished()
        verified = cgroup_empty(self._cgroup, survivors)
        standby_ended = self.order.is_standby and not self._stop_reason
        if verified and not survivors:
            self._try_relaunch()
        if survivors:
            state = State.STUCK
        elif (standby_ended or self._launcher.exit_status == (0, None)) and not self._failed:
            state = State.SUCCEEDED
        elif self._stop_reason and not self._failed:
            state = State.STOPPED
        else:
            state = State.FAILED
        is_local = self._stop_cause is StopCause.LOCAL and not self._failed
        reason = self._journal.write_error or (self._stop_reason if is_local else "")
        self._journal.finalise(Ended(state, reason, len(killed), survivors, verified))
        self._cgroup.remove()
        self._peer_group.shut_down()
        self._close()
        return state

    def _try_relaunch(self) -> None:
        """Have the hosts decide whether another attempt follows, if that is up to them."""
        self._wait_for_hub()
        if not self._must_end and self._relaunch.is_eligible(self._attempt_end):
            self._peer_group.shut_down()
            self._peer_group = PeerGroup()
            self._port_reservation.release()
            self._relaunch.decide(self._attempt_end, self._wait_during_election)

    def _wait_for_hub(self) -> None:
        """Wait for its word that all stop, by which every host knows the same of controllers."""
        deadline = time.monotonic() + HUB_STOP_TIMEOUT_S
        while (
            self._stop_reason
            and self._relaunch.is_undecided
            and not self._peer_group.stop_acknowledged
        ):
            if self._must_end or time.monotonic() > deadline:
                return
            self._loop.wait(TICK_S)
            self._exchange_heartbeats(float("inf"))

    def _exchange_heartbeats(self, stalled_s: float) -> Optional[float]:
        """Keep in touch with the others; return for how long nothing has moved anywhere."""
        lease = self._lease
        return self._peer_group.tick(lease.renewed_at, detached=lease.detached, stalled_s=stalled_s)

    @property
    def _attempt_end(self) -> AttemptEnd:
        failed_at = self._ranks.first_own_failure(self._failed_at)
        stop = (self._stop_reason, self._stop_cause, failed_at)
        return AttemptEnd(
            *stop,
            lost_nodes=self._lost_nodes,
            joined_hub=self._joined_hub,
            detach_agreed=self._lease.detach_agreed,
        )

    @property
    def _orphaned(self) -> bool:
        return self._loop.term_received or os.getppid() != self._guardian_pid

    @property
    def _must_end(self) -> bool:
        return self._orphaned or bool(self._journal.write_error)

    def _wait_during_election(self) -> str:
        """Wait for a moment between two attempts; return what forbids another, "" if nothing."""
        self._loop.wait(TICK_S)
        if time.monotonic() >= self._next_sample:
            self._next_sample = time.monotonic() + self._sample_interval_s
            run_owner.heartbeat(self._folder)
            self._control_socket.reopen_if_removed()
        return f"the supervisor on {self.order.node} was told to end" if self._must_end else ""

    def _close(self) -> None:
        """Leave nothing open: another attempt may follow in this process."""
        self._relaunch.close()
        self._control_socket.close()
        self._loop.close()
