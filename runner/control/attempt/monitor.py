"""Monitor of one attempt: start or follow it, watch its nodes, and stop it when one of them fails.

It is a wait loop over the controller's inbox. Other modules decide (failure detector, elastic
membership, peer status, stop and detach sequence); this module changes the state of the attempt,
and `node_monitor` those of its nodes.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from runner.control.attempt.node import AttemptNode, NodeState, Reconnector
from runner.control.attempt.node_monitor import NodeMonitor, OrderSender
from runner.control.attempt.observer import AttemptLog, Role, RunObserver
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.stop import DetachSequence
from runner.control.rpc.log_tail import STREAM_KINDS
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core.outcome.first_failure import lost_nodes
from runner.core.outcome.verdict import fold_events
from runner.core.spec import Spec
from runner.core.wire import events
from runner.core.wire.codec import Frame
from runner.core.wire.events import Event, TimedEvent
from runner.core.wire.facts import Facts
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason
from runner.core.wire.timing import PING_S

TICK_S = 0.05

FEW_NODES = 64
"""Of more nodes, each is looked at less often: the time for that is the same for any number."""


class AttemptMonitor(WaitLoop):
    """One attempt of a run, from its orders to its end."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        connector: Connector,
        sessions: dict[str, HostSession],
        inbox: Inbox,
        observer: RunObserver,
    ) -> None:
        super().__init__(sessions, inbox)
        limits = (spec.lost_s, spec.disconnect_s or PING_S * 5)
        self.ping_interval_s = min(PING_S, *(limit / 5 for limit in limits))
        self.is_over = False  # nothing more is expected of any node
        self.detached = False  # the user left, and the attempt goes on
        self.hung_up = False  # the terminal was closed
        self.on_interrupt: Callable[[int], bool] | None = None  # whether a signal stops the run
        self._spec = spec
        self._observer = observer
        self._event_log = AttemptLog(spec.run_id, plan.attempt, observer.record)
        self._node_monitor = NodeMonitor(
            spec, plan, sessions, Reconnector(connector, inbox), observer, self._event_log
        )
        self._nodes = self._node_monitor.nodes
        self._stop = self._node_monitor.stop
        self._detach = DetachSequence(self._nodes, sessions, self._node_monitor.peer_status)
        self._began_at = time.monotonic()
        self._all_started_at: float | None = None
        self._next_tick = 0.0

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
        self._node_monitor.detector.relaunch_follows = relaunch_follows
        self._detach.expect_standbys(order_sender.standby_orders)
        self._node_monitor.add_planned_nodes()
        self._node_monitor.start(order_sender, facts)
        self._observer.console.phase("starting")
        for name in self._nodes:
            self._observer.console.node_status(name, "starting")

    def attach(self, *, read_only: bool = False, age_s: float = 0.0, **tail_options: Any) -> None:
        """Follow an attempt that is running or over, and keep trying to reach missing hosts.

        With `read_only`, stop nothing and renew no controller lease. `age_s` is how long the run
        has been running, in seconds; `tail_options` are those of the `LogTailer`.
        """
        self._node_monitor.detector.role = Role.READ_ONLY if read_only else Role.ATTACH
        self._node_monitor.add_planned_nodes(**tail_options)
        self._began_at = time.monotonic() - age_s
        self._observer.console.phase("joining")
        self._node_monitor.follow_all()

    def run(self, *, detach: bool = False) -> None:
        """Return when all nodes are finished or the user left; with `detach`, once they run."""
        self._detach.is_requested = detach
        self.wait()
        self._stop.name_reason(self._first_failure, at_once=True)
        self.is_over = not self.detached
        self._node_monitor.report_dropped_events()
        self._node_monitor.end_streams()
        status = self.peer_status
        if not (self.detached or status.hosts_decide or status.next_attempt_number):
            self._detach.stop_standbys()

    def _pending(self) -> Collection[str]:
        return ()  # the node monitor judges silent nodes

    def _is_finished(self) -> bool:
        is_over = all(node.is_finished for node in self._nodes.values())
        return is_over or (self.detached and self._stop.may_leave)

    def _tick(self) -> float:
        now = time.monotonic()
        if now >= self._next_tick:
            self._next_tick = now + TICK_S * max(1.0, len(self._nodes) / FEW_NODES)
            self._node_monitor.tick(now)
            self._stop.name_reason(self._first_failure)
        self._advance()
        return TICK_S

    def _first_failure(self) -> Reason | None:
        return fold_events(self.plan, self.timed_events, 0.0).first_failure

    def _advance(self) -> None:
        if self._detach.is_requested and self.is_stopping:
            return  # a launch stays to see the end
        if self._detach.has_begun:
            if self._detach.is_complete:
                self.leave()
        elif self._detach.is_requested and self._detach.is_possible(self._all_started_at):
            self.detach()

    def leave(self) -> None:
        """Have `run` return while the attempt goes on."""
        self.detached = True

    def detach(self) -> None:
        """Leave once the hosts know that the attempt goes on without a controller."""
        nodes = self._nodes.items()
        self._detach.begin({n for n, node in nodes if node.rejoin_count and node.is_joining})

    def stop_by_user(self, reason: Reason) -> None:
        """Stop everything because the user asked for it, other than by a signal."""
        self._node_monitor.stop_all(reason)

    def signal_ranks(self, signum: int) -> None:
        """Send the ranks a signal, and nothing else of the run."""
        for node in self._nodes.values():
            if node.live_session:
                data = {"command": "signal_ranks", "signal": signum}
                node.live_session.request("command", data)

    def interrupt(self, signum: int) -> None:
        """Stop everything for the user, and kill it the second time."""
        is_launch = self._node_monitor.role is Role.LAUNCH
        if signum == signal.SIGHUP and (self._all_started_at is not None or not is_launch):
            self.detached = True  # the hosts go on
            self.hung_up = True
        elif self._stop.on_signal(signum):
            self._node_monitor.skip_logs()

    # What the attempt came to

    @property
    def plan(self) -> Plan:
        """The plan of this attempt."""
        return self._node_monitor.plan

    @property
    def peer_status(self) -> PeerStatus:
        """What the supervisors said about each other."""
        return self._node_monitor.peer_status

    @property
    def is_stopping(self) -> bool:
        """Whether a stop of the whole attempt is requested."""
        return self._stop.requested is not None

    @property
    def order_refused(self) -> bool:
        """Whether a host refused its order."""
        return self._node_monitor.order_refused

    @property
    def stop_unconfirmed(self) -> list[str]:
        """The nodes that have neither ended nor been handed the stop."""
        return self._stop.unconfirmed

    @property
    def unfollowed(self) -> set[str]:
        """The nodes whose agent gave no answer when it was to follow the run."""
        nodes = self._nodes.values()
        unverified = (node for node in nodes if node.state is NodeState.UNVERIFIED)
        return {node.name for node in unverified if not node.supervisor_started}

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for the stop by a signal."""
        return self._stop.signal_count > 0

    @property
    def timed_events(self) -> list[TimedEvent]:
        """The events so far, on our clock."""
        return self._event_log.timed_events

    @property
    def is_cut(self) -> bool:
        """Whether the end of a node, or of a log, was not seen."""
        bodies = [timed.event.body for timed in self.timed_events]
        is_lost = any(isinstance(body, (events.EndUnverified, events.HostLost)) for body in bodies)
        return is_lost or any(node.tailer.has_error for node in self._nodes.values())

    @property
    def port_retry_possible(self) -> bool:
        """Whether a taken port is all that kept this attempt from starting."""
        nodes = self._nodes.values()  # the facts of a host are not collected again when reopened
        is_clean = all(node.has_ended and not node.connection.was_reopened for node in nodes)
        bodies = (timed.event.body for timed in self.timed_events)
        port_taken = any(isinstance(body, events.PortTaken) for body in bodies)
        return port_taken and is_clean and not self.order_refused and not self.interrupted

    def duration(self, began_at: float) -> float:
        """Return how long the run took or takes; `began_at` is in seconds since 1970.

        It is over once each node has reported its end, or another that it was lost.
        """
        ended_at = time.time()
        lost = lost_nodes(self.plan, self.timed_events)
        if all(node.has_ended or name in lost for name, node in self._nodes.items()):
            happened = (timed.event for timed in self.timed_events)
            ends = [event.wall for event in happened if isinstance(event.body, events.Ended)]
            ended_at = max(ends, default=ended_at)
        return max(0.0, ended_at - began_at)

    # Frames

    def _dispatch(self, session: HostSession | None, frame: Frame) -> None:
        if session is None:
            if self.on_interrupt is None or self.on_interrupt(int(frame.data["signal"])):
                self.interrupt(int(frame.data["signal"]))
            return
        name = session.node.name
        node = self._nodes.get(name)
        if frame.kind == "reconnected":
            self._node_monitor.on_reconnected(node, session)
        elif node is None:
            self._node_monitor.show(self.peer_status.on_standby_reply(name, frame))
        elif session is node.connection.session:
            self._on_node_frame(node, session, frame)

    def _on_node_frame(self, node: AttemptNode, session: HostSession, frame: Frame) -> None:
        if frame.kind in STREAM_KINDS:
            for event in self._node_monitor.on_stream(node, frame):
                self._on_event(node, session, event)
        elif frame.kind == "facts" and node.is_joining:
            self._node_monitor.on_facts(node, session, frame.data["facts"])
        elif frame.kind == "following":
            self._node_monitor.on_following(node, session)
        elif frame.kind == "pong":
            self._node_monitor.on_pong(node, frame.data["disk_wait_s"])
        elif frame.kind == "command_sent":
            self._stop.on_command_sent(node.name, frame.data["id"])
        elif frame.kind == "in_progress":
            node.last_data = time.monotonic()
        elif frame.kind == "refused":
            self._node_monitor.on_refused(node, frame.data["reason"])
        elif frame.kind == "closed" and session.rejected:
            self._node_monitor.on_rejected(node, session.rejected)
        elif frame.kind == "closed":
            reason = f"the connection to it broke: {frame.data['reason']}"
            self._node_monitor.on_disconnect(node, reason)

    # Events

    def _on_event(self, node: AttemptNode, session: HostSession, event: Event) -> None:
        at = session.clock.to_local(event.mono, event.wall)
        self._event_log.append(at, event)
        elastic = self._node_monitor.elastic
        if elastic.on_event(node, event.body, at, is_stopping=self.is_stopping):
            return
        name = node.name
        body = event.body
        if isinstance(body, events.RankStarted):
            node.on_rank_started(body.rank, body.master, is_forked=body.forked)
            self._observer.console.node_status(name, node.progress)
            self._check_all_started()
        elif isinstance(body, events.RankExited) and not body.succeeded:
            self._node_monitor.stop_all(body.reason(name))
        elif isinstance(body, events.ProgramExited) and not body.succeeded:
            self._node_monitor.stop_all(body.reason(name, self.plan.launcher))
        elif isinstance(body, events.PortTaken):
            self._node_monitor.stop_all(body.reason(name))
        elif isinstance(body, events.Stopping):
            self._node_monitor.stop_all(body.reason)
        elif isinstance(body, events.Ended):
            self._node_monitor.on_ended(node, body)
        elif isinstance(body, events.PeerLost):
            self._node_monitor.on_peer_lost(body)
        elif isinstance(body, events.RelaunchPending):
            self._stop.extend_deadline()
            self._observer.console.phase("waiting for the hosts to decide about a relaunch")
        else:
            self._node_monitor.show(self.peer_status.on_event(name, body))

    def _check_all_started(self) -> None:
        if self._all_started_at is not None:
            return
        for node in self._nodes.values():
            is_complete = len(node.started_ranks) == node.node_plan.nproc
            if not (is_complete or node.is_absent):
                return
        self._all_started_at = time.monotonic()
        elapsed_s = self._all_started_at - self._began_at
        if not self.is_stopping:
            self._observer.console.phase("running", elapsed_s)
        if self._node_monitor.role is Role.LAUNCH:
            has_torch = all(node.are_forked for node in self._nodes.values())
            after = f"{elapsed_s:.1f} s{', torch imported' if has_torch else ''}"
            self._observer.message(f"every rank started after {after}")
