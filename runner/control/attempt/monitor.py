"""Monitor of one attempt: start or follow it, watch its nodes, and stop it when one of them fails.

It is a wait loop over the controller's inbox. `node_monitor` has what happens to single nodes;
other modules decide (failure detector, elastic membership, peer status, stop sequence).
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runner.control.attempt.attempt import Attempt, Role
from runner.control.attempt.node import AttemptNode, NodeState
from runner.control.attempt.node_monitor import NodeMonitor, OrderSender
from runner.control.attempt.stop import CONFIRM_TIMEOUT_S, send_stop
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.core.outcome.attempt_events import AttemptEvents
from runner.core.outcome.verdict import fold_events
from runner.core.wire import events
from runner.core.wire.events import Event
from runner.core.wire.facts import Facts
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.text import counted
from runner.core.wire.timing import HUB_REPORT_TIMEOUT_S, PING_S

TICK_S = 0.05

FEW_NODES = 64
"""Of more nodes, each is looked at less often: the time for that is the same for any number."""


class AttemptMonitor(NodeMonitor):
    """One attempt of a run, from its orders to its end."""

    def __init__(self, attempt: Attempt, connector: Connector, inbox: Inbox) -> None:
        super().__init__(attempt, connector, inbox)
        spec = attempt.spec
        limits = (spec.lost_s, spec.disconnect_s or PING_S * 5)
        self.ping_interval_s = min(PING_S, *(limit / 5 for limit in limits))
        self.is_over = False  # nothing more is expected of any node
        self.detached = False  # the user left, and the attempt goes on
        self.hung_up = False  # the terminal was closed
        self.on_interrupt: Callable[[int], bool] | None = None  # whether a signal stops the run
        self._wants_detach = False  # once the attempt runs
        self._detach_by: float | None = None  # when hosts had time to confirm it; None: not asked
        self._began_at = time.monotonic()
        self._all_started_at: float | None = None
        self._next_check = 0.0

    def start(
        self,
        facts: Mapping[str, Facts],
        order_sender: OrderSender,
        *,
        relaunch_follows: bool = False,
    ) -> None:
        """Send every host its order; in an elastic run, nodes that were lost get it once more.

        With `relaunch_follows`, another attempt follows if this one fails.
        """
        self.detector.relaunch_follows = relaunch_follows
        self.peer_status.pending_standbys = {*order_sender.standby_orders}
        self.add_planned_nodes()
        self.send_orders(order_sender, facts)
        self.attempt.console.phase("starting")
        for name in self.nodes:
            self.attempt.console.node_status(name, "starting")

    def attach(self, *, read_only: bool = False, age_s: float = 0.0, **tail_options: Any) -> None:
        """Follow an attempt that is running or over, and keep trying to reach missing hosts.

        With `read_only`, stop nothing and renew no controller lease. `age_s` is how long the run
        has been running, in seconds; `tail_options` are those of the `LogTailer`.
        """
        self.attempt.role = Role.READ_ONLY if read_only else Role.ATTACH
        self.add_planned_nodes(**tail_options)
        self._began_at = time.monotonic() - age_s
        self.attempt.console.phase("joining")
        self.follow_all()

    def run(self, *, detach: bool = False) -> None:
        """Return when all nodes are finished or the user left; with `detach`, once they run."""
        self._wants_detach = detach
        self.wait()
        self.stop.name_reason(self._first_failure, at_once=True)
        self.is_over = not self.detached
        for name, node in self.nodes.items():
            if count := node.tailer.dropped_events:
                lines = f"{counted(count, 'line')} of its events"
                self.attempt.say(f"{name}: {lines} ignored: torn, or about another node")
        self.end_streams()
        status = self.peer_status
        if not (self.detached or status.hosts_decide or status.next_attempt_number):
            for session in self._standby_sessions():  # its hub may be gone too early to do so
                send_stop(session, Reason(ReasonKind.OTHER, detail="the attempt is over"))

    def end_streams(self) -> None:
        """Have no host send logs that nobody reads any more."""
        for node in self.nodes.values():
            if session := node.live_session:
                node.tailer.stop(session)
                session.hold(is_held=False)

    def _pending(self) -> Collection[str]:
        return ()  # the failure detector judges silent nodes

    def _is_finished(self) -> bool:
        is_over = all(node.is_finished for node in self.nodes.values())
        return is_over or (self.detached and self.stop.may_leave)

    def _standby_sessions(self) -> list[HostSession]:
        names = self._order_sender.standby_orders if self._order_sender else ()
        return [self.sessions[name] for name in names if name in self.sessions]

    def _tick(self) -> float:
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + TICK_S * max(1.0, len(self.nodes) / FEW_NODES)
            self.check_nodes(now)
            self.stop.name_reason(self._first_failure)
        if self._wants_detach and self.is_stopping:
            return TICK_S  # a launch stays to see the end
        if self._detach_by is not None:
            if self.peer_status.all_detached or now >= self._detach_by:
                self.leave()
        elif self._wants_detach and self._all_started_at is not None:
            is_late = now - self._all_started_at > HUB_REPORT_TIMEOUT_S
            if self.peer_status.all_reported or is_late:
                self.detach()
        return TICK_S

    def _first_failure(self) -> Reason | None:
        return fold_events(self.plan, self.timed_events, 0.0).first_failure

    # What the user does

    def leave(self) -> None:
        """Have `run` return while the attempt goes on."""
        self.detached = True

    def detach(self) -> None:
        """Leave once the hosts know that the attempt goes on without a controller.

        A node that rejoins now hears it from the hub.
        """
        self._detach_by = time.monotonic() + CONFIRM_TIMEOUT_S
        status = self.peer_status
        nodes = [node for node in self.nodes.values() if not node.is_detached]
        sessions = [n.live_session for n in nodes if not (n.rejoin_count and n.is_joining)]
        standbys = self._standby_sessions()
        sessions += [each for each in standbys if each.node.name not in status.pending_standbys]
        for session in filter(None, sessions):
            session.request("command", {"command": "detach"})

    def signal_ranks(self, signum: int) -> None:
        for node in self.nodes.values():
            if session := node.live_session:
                data = {"command": "signal_ranks", "signal": signum}
                session.request("command", data)

    def on_signal(self, signum: int) -> None:
        """Stop everything for the user, and kill it the second time."""
        if self.on_interrupt is not None and not self.on_interrupt(signum):
            return
        has_started = self._all_started_at is not None or not self.attempt.is_launch
        if signum == signal.SIGHUP and has_started:
            self.detached = True  # the hosts go on
            self.hung_up = True
        elif self.stop.on_signal(signum):
            for name, node in self.nodes.items():
                if node.has_ended and not node.is_finished:
                    node.finish()
                    rest = "the rest of its logs stays there, in cluster.workdir"
                    self.attempt.say(f"{name}: {rest}")

    # What the attempt came to

    @property
    def unfollowed(self) -> set[str]:
        """The nodes whose agent gave no answer when it was to follow the run."""
        nodes = self.nodes.values()
        unverified = (node for node in nodes if node.state is NodeState.UNVERIFIED)
        return {node.name for node in unverified if not node.supervisor_started}

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for the stop by a signal."""
        return self.stop.signal_count > 0

    @property
    def is_cut(self) -> bool:
        """Whether the end of a node, or of a log, was not seen."""
        bodies = [timed.event.body for timed in self.timed_events]
        is_lost = any(isinstance(body, (events.EndUnverified, events.HostLost)) for body in bodies)
        return is_lost or any(node.tailer.has_error for node in self.nodes.values())

    def duration(self, began_at: float) -> float:
        """Return how long the run took or takes; `began_at` is in seconds since 1970.

        It is over once each node has reported its end, or another that it was lost.
        """
        ended_at = time.time()
        known = AttemptEvents(self.plan, self.timed_events)
        if all(node.has_ended or name in known.lost for name, node in self.nodes.items()):
            ends = [timed.event.wall for timed, _ in known.of(events.Ended)]
            ended_at = max(ends, default=ended_at)
        return max(0.0, ended_at - began_at)

    # Events

    def _on_event(self, node: AttemptNode, session: HostSession, event: Event) -> None:
        at = session.clock.to_local(event.mono, event.wall)
        body = event.body
        self.attempt.append(at, event)
        if self.elastic.on_event(node, body, at):
            return
        match body:
            case events.RankStarted():
                node.on_rank_started(body.rank, body.master, is_forked=body.forked)
                self.attempt.console.node_status(node.name, node.progress)
                self._check_all_started()
            case events.RankExited() if not body.succeeded:
                self.stop_all(body.reason(node.name))
            case events.ProgramExited() if not body.succeeded:
                self.stop_all(body.reason(node.name, self.plan.launcher))
            case events.Stopping():
                self.stop_all(body.reason)
            case events.Ended():
                self._on_ended(node, body)
            case events.PeerLost():
                self._on_peer_lost(body)
            case events.RelaunchPending():
                self.stop.extend_deadline()
                self.attempt.console.phase("waiting for the hosts to decide about a relaunch")
            case _:
                self.peer_status.on_event(node, body)

    def _on_ended(self, node: AttemptNode, body: events.Ended) -> None:
        node.move_to(NodeState.COMPLETE if node.is_finished else NodeState.ENDED)
        self.attempt.console.node_status(node.name, "ended")
        if all(other.has_ended for other in self.nodes.values()):
            self.attempt.console.phase("fetching the last of the logs")
        if body.state in (State.FAILED, State.STUCK):
            self.stop_all(Reason(ReasonKind.HOST, node.name, detail="the run failed"))

    def _on_peer_lost(self, body: events.PeerLost) -> None:
        peer = self.nodes.get(body.peer)
        if peer is not None and not peer.has_ended:
            peer.move_to(NodeState.LOST)
            self.attempt.console.node_status(body.peer, "lost")
        self.stop_all(Reason(ReasonKind.LOST, body.peer, detail=body.reason))

    def _check_all_started(self) -> None:
        nodes = self.nodes.values()
        whole = (len(n.started_ranks) == n.node_plan.nproc or n.is_absent for n in nodes)
        if self._all_started_at is not None or not all(whole):
            return
        self._all_started_at = time.monotonic()
        elapsed_s = self._all_started_at - self._began_at
        if not self.is_stopping:
            self.attempt.console.phase("running", elapsed_s)
        if self.attempt.is_launch:
            has_torch = all(node.are_forked for node in nodes)
            after = f"{elapsed_s:.1f} s{', torch imported' if has_torch else ''}"
            self.attempt.say(f"every rank started after {after}")
