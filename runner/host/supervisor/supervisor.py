"""Supervisor: starts what its order says, keeps the record, and guarantees that everything ends.

It knows nothing of torchrun. One loop, which waits for no file: a second thread has the file
access. Children are reaped in one place; it ends when nothing of the run is left, or when what is
left has outlived SIGKILL.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import replace
from typing import Any, Callable, Dict, List, Optional

from runner.core.wire.codec import decode
from runner.core.wire.events import Ended, HubUnreachable, PeerDeparted, PeerLost, ProgramExited
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.timing import DISK_TIMEOUT_S
from runner.host.container import remove_in_child
from runner.host.peers.fold import HubFold, MemberFold, News, PeerState, Upcoming
from runner.host.peers.group import PeerGroup
from runner.host.peers.links import hear_commands
from runner.host.process import subreaper
from runner.host.process.event_loop import EventLoop
from runner.host.process.jobs import FileWorker
from runner.host.process.subreaper import kill_until_gone
from runner.host.ranks.tracker import RankTracker
from runner.host.storage import run_owner
from runner.host.storage.run_folder import EventLog, create_run_folder
from runner.host.supervisor.attempt import (
    ControllerLease,
    Decision,
    SupervisorArgs,
    begin_next,
    tell_end,
)
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.stall_monitor import StallMonitor
from runner.host.supervisor.stop_ladder import StopLadder

TICK_S = 0.05
MAX_LEFT_OVER = 8  # commands that are named


class Supervisor:
    """One attempt of a run on one host, from its order to its last event."""

    def __init__(self, args: SupervisorArgs, guardian_pid: int) -> None:
        self._args = args
        self._guardian_pid = guardian_pid
        order = args.order
        self.order = order
        self._files = FileWorker()
        submit = self._files.submit
        submit(self._write_down, self._on_written_down)
        journal = EventLog(args.folder, order, submit)
        self._journal = journal
        self._loop = EventLoop()
        self._launcher = LauncherProcess(args.folder, order, args.environ, journal, submit)
        ladder = StopLadder(order, self._launcher, journal)
        self._ladder = ladder
        self._ranks = RankTracker(
            args.folder, order, journal, self._fail, submit, lambda: ladder.stopped_at
        )
        self._stall_monitor = StallMonitor(
            args.folder, order, journal, self._launcher, self._ranks, submit, self._fail
        )
        self._peers = PeerGroup(order, args.token, self._on_peer_news)
        self._lease = ControllerLease(order, journal)
        self._upcoming: Optional[Upcoming] = None
        self._began_at = time.monotonic()

    def run(self, listener: socket.socket, on_ready: Callable[[], None]) -> State:
        """Carry out the order, and return how it ended.

        Agents send commands to `listener`; `on_ready` is called once they are heard.
        """
        args = self._args
        subreaper.become_subreaper()
        self._loop.open()
        self._loop.add_reader(self._files.wake_fd, self._files.deliver)
        agents = hear_commands(listener, self._loop, self._on_command)
        self._peers.join(self._loop, args.reserved_ports.hub, args.upcoming)
        if args.user_stopped:
            self.stop(Reason(ReasonKind.USER, detail="stop requested"))
        on_ready()
        while not self._is_finished():
            self._loop.wait(TICK_S)
            self._tick()
        state = self._finish()
        agents.close()
        self._loop.remove_reader(self._files.wake_fd)
        self._files.close()
        self._loop.close()  # another attempt may follow in this process
        return state

    def next_start(self) -> Optional[SupervisorArgs]:
        """Return what to do here next, if the hosts relaunch the run."""
        if self._upcoming is None or self._loop.term_received:  # after the decision
            return None
        return begin_next(self._args, self._upcoming, user_stopped=self._ladder.user_stopped)

    def stop(self, reason: Reason) -> None:
        """Stop the attempt, unless it is over: TERM to the program, KILL after the grace."""
        ladder = self._ladder
        if reason.is_final and ladder.rules_out_relaunch(reason):
            self._peers.stop(reason)
        if ladder.is_stopping or self._journal.state.is_terminal:
            return
        only_follows = not (reason.is_final or reason.is_own(self.order.node))
        if only_follows and self._stall_monitor.is_dumping:
            # The stacks of our ranks are wanted, too.
            ladder.deferred_reason = ladder.deferred_reason or reason
            return
        stopped_at = time.monotonic()  # before anything ends by it
        if reason.is_by_user or not self.order.is_standby:  # a spare's trouble is its own
            self._peers.stop(reason)
        ladder.begin(reason, stopped_at)

    def _stop_here(self, problem: str) -> None:
        self.stop(Reason(ReasonKind.HOST, self.order.node, detail=problem))

    def _on_command(self, message: Dict[str, Any]) -> Dict[str, Any]:
        """Do what an agent says, and renew the controller lease; return what to answer.

        The answer to a renewal is how this host is.
        """
        kind = message["command"]
        is_stopping = self._ladder.is_stopping
        if kind == "peer_departed" and not is_stopping:
            left = PeerDeparted(message["peer"], message["reason"], int(message["nodes"]))
            if isinstance(self._peers.fold, HubFold):
                self._peers.fold.depart(left, time.monotonic())
            self._on_peer_news(left)
        elif kind == "detach" and not is_stopping:
            self._detach()
        elif kind in ("stop", "kill"):
            reason = decode(Reason, message["reason"])
            if not reason.is_final and message.get("attempt") not in (None, self.order.attempt):
                return {}  # what failed there is over
            self.stop(reason)
            if kind == "kill":
                self._ladder.skip_grace()
        elif kind == "dump_stacks":
            self._stall_monitor.dump(str(message["reason"]))
        elif kind == "signal_ranks" and not is_stopping:
            self._ranks.signal(int(message["signal"]))
        if kind != "dump_stacks":  # which comes from no controller; else after a stop has begun
            self._lease.renew(by_launch=bool(message.get("by_launch")))
        return {"disk_wait_s": round(self._files.wait_s, 1)} if kind == "renew_lease" else {}

    def _detach(self) -> None:
        """Need no controller; a member asks its hub, which alone knows what came first."""
        fold = self._peers.fold
        if isinstance(fold, MemberFold) and fold.hub_state and not fold.hub_finished:
            self._lease.wants_detach = True
        else:
            self._lease.detach()

    def _exchange(self, stalled_s: float) -> Optional[float]:
        """Exchange states with the others; return for how long nothing has moved on any host."""
        lease = self._lease
        is_detached = lease.detached or lease.wants_detach
        stalled_s_anywhere = self._peers.tick(
            lease.heard_to_tell, detached=is_detached, stalled_s=stalled_s
        )
        if lease.wants_detach and not self._ladder.is_stopping:
            self._detach()  # the hub may have finished, and can decide nothing any more
        return stalled_s_anywhere

    def _on_peer_news(self, news: News) -> None:
        name = self.order.node
        if isinstance(news, PeerState):
            self._lease.take(news, is_stopping=self._ladder.is_stopping)
        elif isinstance(news, Reason):
            self.stop(news.as_told_to(name))
        elif isinstance(news, PeerLost):
            self._journal.append(news, mono=time.monotonic() - news.silence_s)
            self.stop(Reason(ReasonKind.LOST, news.peer, detail=news.reason))
        elif isinstance(news, PeerDeparted):
            if not self._ladder.is_stopping:
                self._journal.append(news, mono=time.monotonic() - news.silence_s)
                self._restart_ranks(news.nodes)
        else:
            self._journal.append(news)
            if isinstance(news, HubUnreachable) and self.order.is_standby:
                self._stop_here(f"cannot reach {news.reason}")  # it would not hear of the end

    def _write_down(self) -> str:
        """Put the attempt and its owner on record; return why that was not possible, else ""."""
        args = self._args
        try:
            if args.upcoming is not None:  # else its agent has made the folder
                create_run_folder(args.folder, args.order, args.programs, args.record)
            run_owner.record(args.folder, [self._guardian_pid, os.getpid()])
        except OSError as error:
            return os.strerror(error.errno or 0)
        return ""

    def _on_written_down(self, problem: str) -> None:
        if problem:
            self._stop_here(f"cannot write its record: {problem}")
        elif not self.order.is_standby:
            self._launcher.start(self._on_program_started)

    def _on_program_started(self) -> None:
        if not self._launcher.pid:
            problem = "its program could not be started"
            self._fail(Reason(ReasonKind.PROGRAM, self.order.node, detail=problem))
        elif self._ladder.is_stopping:  # its disk answered too late
            self._ladder.term_launcher()

    def _tick(self) -> None:
        self._ranks.tick()
        if self._show_life():
            self._stall_monitor.sample()
        self._reap()
        ended_at = self._launcher.unrecorded_end
        if ended_at is not None and time.monotonic() > ended_at + DISK_TIMEOUT_S:
            self._on_program_ended()
        self._ladder.tick(self._ranks, self._live_processes)
        if self._loop.term_received and (reason := self._ladder.take_term()):
            self._peers.stop(reason)
        elif self._orphaned:
            self._stop_here("its supervisor lost its guardian")
        if self._journal.write_error:
            self._stop_here(self._journal.write_error)
        stalled_s = self._exchange(self._stall_monitor.stalled_s)
        self._stall_monitor.check(stalled_s, is_stopping=self._ladder.is_stopping)
        if self._ladder.deferred_reason and not self._stall_monitor.is_dumping:
            self.stop(self._ladder.deferred_reason)
        if reason := self._lease.expiry():
            self.stop(reason)
        if self._launcher.end_recorded:
            self._ladder.drain(self._left_over())

    def _show_life(self) -> bool:
        """Show that this supervisor lives, at intervals; return whether one is over."""
        is_due = self._stall_monitor.progress.is_due()
        if is_due:
            self._files.submit(lambda: run_owner.heartbeat(self._args.folder))
        return is_due

    def _live_processes(self) -> List[int]:
        """Return what is alive of the run here: our descendants, except our own helpers."""
        own = subreaper.own_descendants()  # before those of our helpers, which may start others
        helper_pids = self._stall_monitor.child_pids
        return [*(pid for pid in own if pid not in helper_pids), *self._launcher.container_pids()]

    def _left_over(self) -> List[int]:
        """Return what is alive of the run here, without a look around where that is not needed."""
        in_container = self.order.container is not None
        return self._live_processes() if in_container or not subreaper.no_children_left() else []

    def _restart_ranks(self, node_count: int) -> None:
        """End the ranks, which may wait for those of a node that has left: torch restarts them."""
        departed_at = time.monotonic()

        def terminate() -> None:
            if self._launcher.exit_status is None:
                self._ranks.terminate_for_restart(node_count, departed_at)

        terminate()
        self._ranks.scan_records(terminate)  # those that have just started

    def _fail(self, reason: Reason, failed_at: Optional[float] = None) -> None:
        self._ladder.fail(failed_at)
        self.stop(reason)

    def _reap(self) -> None:
        if self._launcher.is_starting:
            return  # whose child is not known yet
        for pid, status in subreaper.reap_all():
            if self._launcher.on_reaped(pid, status):
                self._ranks.scan_records(self._on_records_complete)

    def _on_records_complete(self) -> None:
        self._ranks.record_vanished(self._launcher.unrecorded_end)
        # After why ranks vanished.
        self._files.submit(self._launcher.read_end, self._on_program_ended)

    def _on_program_ended(self, body: Optional[ProgramExited] = None) -> None:
        """Record the program's end after those of its ranks, unless the disk takes too long."""
        ended_at = self._launcher.unrecorded_end
        self._launcher.unrecorded_end = None
        if ended_at is None:
            return
        code, signum = self._launcher.exit_status or (None, None)
        is_apart = self._stall_monitor.stores.looks_apart > 1
        body = replace(body or ProgramExited(code, signum), apart=is_apart)
        self._journal.append(body, mono=ended_at)
        if code != 0:
            self._fail(body.reason(self.order.node, "the program"), ended_at)
        elif self.order.decides and ended_at < self._ladder.stopped_at:
            self.stop(Reason(ReasonKind.DECIDED, self.order.node))

    def _is_finished(self) -> bool:
        fold = self._peers.fold
        if self._ladder.grace_is_over:
            return True
        if self.order.is_standby:
            return self._ladder.is_stopping or (fold is not None and fold.hub_finished)
        if not self._launcher.end_recorded or self._left_over():
            return False
        is_needed = fold is not None and fold.is_awaited(time.monotonic())
        return self._ladder.is_stopping or not is_needed

    def _finish(self) -> State:
        ladder = self._ladder
        self._stall_monitor.close()
        killed, survivors, is_proven = kill_until_gone(
            self._live_processes,
            self._keep_in_touch,
            self._ranks.shim_pids,
            helpers=lambda: self._stall_monitor.child_pids,
            is_disk_stalled=lambda: self._files.wait_s > DISK_TIMEOUT_S,
        )
        self._ranks.scan_records(self._ranks.record_vanished)
        self._wait_for_disk()
        container = None if self.order.is_standby else self.order.container
        unproven = remove_in_child(
            container, self._args.environ, lambda: self._keep_in_touch(TICK_S)
        )
        verified = is_proven and not unproven
        standby_ended = self.order.is_standby and not ladder.is_stopping
        if verified and not survivors:
            decision = Decision(
                self._args,
                ladder,
                self._peers,
                self._lease,
                self._journal,
                self._poll_for_decision,
            )
            self._upcoming = decision.wait(self._began_at)
        self._peers.leave()  # first: what they say after its end must not change the record
        if self._upcoming is None:
            self._args.reserved_ports.close()  # a next launch may want them
        state = ladder.final_state(survivors, standby_ended=standby_ended)
        reason = ladder.own_reason
        if problem := self._journal.write_error:
            reason = Reason(ReasonKind.HOST, self.order.node, detail=problem)
        left_over = tuple(sorted({*ladder.left_over.values()}))[:MAX_LEFT_OVER]
        end = Ended(state, reason, len(killed), survivors, verified, left_over, unproven)
        self._journal.finalise(end)
        self._wait_for_disk()
        notify = self.order.notify  # of the first node alone
        if notify is not None and self._upcoming is None and self._lease.is_unattended:
            tell_end(self._args, notify, end, ladder, time.monotonic() - self._began_at)
        return state

    def _keep_in_touch(self, seconds: float = 0.0) -> None:
        """Wait for a moment in which the other hosts and the agents hear from us."""
        self._loop.wait(seconds)
        self._reap()
        self._exchange(float("inf"))

    def _wait_for_disk(self) -> None:
        while self._files.busy:
            self._keep_in_touch(TICK_S)

    def _poll_for_decision(self) -> str:
        """Wait for a moment between two attempts; return what forbids another, "" if nothing."""
        self._keep_in_touch(TICK_S)
        self._show_life()
        if self._orphaned or self._journal.write_error:
            return f"the supervisor on {self.order.node} must end"
        return "a stop was requested" if self._ladder.user_stopped else ""

    @property
    def _orphaned(self) -> bool:
        return self._loop.term_received or os.getppid() != self._guardian_pid
