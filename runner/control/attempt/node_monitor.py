"""Node monitor of an attempt: connections and states of its nodes, which change here alone.

It carries out what the failure detector, the elastic membership and the agents report about a node,
and requests the stop of the whole attempt where it cannot continue without the node.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from runner.control.attempt.admission import NodeAdmission
from runner.control.attempt.elastic import Departure, ElasticMembership
from runner.control.attempt.node import AttemptNode, NodeConnection, Reconnector
from runner.control.attempt.node_failure_detector import Judgement, NodeFailureDetector
from runner.control.attempt.observer import EventLog, Role, RunObserver
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.states import NodeState
from runner.control.attempt.stop import StopSequence, send_stop
from runner.control.rpc.log_tail import LogTailer
from runner.control.rpc.session import HostSession
from runner.core.spec import Node, Spec
from runner.core.wire import events
from runner.core.wire.codec import Frame, encode
from runner.core.wire.events import Event, EventBody
from runner.core.wire.facts import Facts
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.text import counted
from runner.core.wire.timing import DISK_TIMEOUT_S


class NodeMonitor:
    """The nodes of one attempt, and what decides about them."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        sessions: dict[str, HostSession],
        reconnector: Reconnector,
        observer: RunObserver,
        event_log: EventLog,
    ) -> None:
        self.order_refused = False
        self.admission: NodeAdmission | None = None  # where nodes may join
        self.nodes: dict[str, AttemptNode] = {}
        self.elastic = ElasticMembership(plan, self.nodes, observer.fold_names)
        self.peer_status = PeerStatus(plan, self.nodes, self._is_silent, observer.fold_names)
        self.stop = StopSequence(spec, self.nodes, observer, event_log)
        self.detector = NodeFailureDetector(spec, self.nodes, self.peer_status)
        self._spec = spec
        self._sessions = sessions
        self._reconnector = reconnector
        self._observer = observer
        self._event_log = event_log

    def add_planned_nodes(self, **tail_options: Any) -> None:
        """Take in the nodes of the plan; `tail_options` are those of the `LogTailer`."""
        by_name = {node.name: node for node in self._spec.nodes}
        for node_plan in self.elastic.plan.nodes:
            session = self._sessions.get(node_plan.node)
            self._add_node(node_plan, by_name[node_plan.node], session, **tail_options)

    def _add_node(
        self, node_plan: NodePlan, node: Node, session: HostSession | None, **tail_options: Any
    ) -> None:
        def on_log(source: str, stream: str, offset: int, data: bytes) -> None:
            self._observer.log(node.name, source, stream, offset, data)

        tailer = LogTailer(node_plan, on_log, **tail_options)
        self.nodes[node.name] = AttemptNode(node_plan, node, tailer, NodeConnection(session))

    def _is_silent(self, name: str) -> bool:
        session = self._sessions.get(name)
        return session is None or session.closed or session.idle_s > self._spec.lost_s

    @property
    def role(self) -> Role:
        """What this controller may do."""
        return self.detector.role

    @property
    def _is_stopping(self) -> bool:
        return self.stop.requested is not None

    def tick(self, now: float) -> None:
        """Check every node, reopen broken connections, and let missing nodes join."""
        may_judge = self.detector.may_judge(now)
        is_full = self._observer.console.is_full
        for node in self.nodes.values():
            if node.live_session:
                node.live_session.hold(is_held=is_full)
            if may_judge and not node.is_finished:
                self._check(node, now, logs_paused=is_full)
        if self.admission is not None and self._may_admit:
            self.admission.retry_due(now)

    def _check(self, node: AttemptNode, now: float, *, logs_paused: bool) -> None:
        """Carry out what the failure detector says about a node."""
        if reason := self.detector.silent_connection(node):
            self.on_disconnect(node, reason)
        awaits_rejoin = self._awaits_rejoin(node)
        judgement = self.detector.judge(node, now, self.stop.deadline, awaits_rejoin=awaits_rejoin)
        if judgement is not None and not (node.has_ended and logs_paused):
            self._apply(node, judgement)
        if not node.is_finished and not self._awaits_rejoin(node):
            self._reconnector.reconnect_if_due(node.node, node.connection.backoff, now)

    def on_pong(self, node: AttemptNode, wait_s: float) -> None:
        """Show that the disk of a host does not answer, and when it does again."""
        if wait_s >= DISK_TIMEOUT_S and not node.disk_wait_s:
            self._observer.console.node_status(node.name, "waits for its disk")
            note = f"{node.name}: its disk has not answered for {wait_s:.0f} s"
            goes_on = node.supervisor_started and not self._is_stopping
            self._observer.message(f"{note}; the run goes on" if goes_on else note)
        elif node.disk_wait_s and not wait_s:
            if node.state is NodeState.RUNNING:
                self._observer.console.node_status(node.name, node.progress)
            self._observer.message(f"{node.name}: its disk answers again")
        elif wait_s < DISK_TIMEOUT_S and not node.disk_wait_s:
            return
        node.disk_wait_s = wait_s

    def _apply(self, node: AttemptNode, judgement: Judgement) -> None:
        if judgement.state is NodeState.LOST:
            self._on_lost(node, judgement.reason)
            return
        if judgement.show:
            self._observer.message(f"{node.name}: {judgement.reason}")
        if judgement.record:
            self._event_log.record_own(node.name, events.EndUnverified(judgement.reason))
        node.move_to(judgement.state)

    def _awaits_rejoin(self, node: AttemptNode) -> bool:
        is_scheduled = self.admission is not None and node.name in self.admission.backoffs
        return is_scheduled and node.is_lost and self._may_admit

    @property
    def _may_admit(self) -> bool:
        return not self._is_stopping and not self.elastic.is_finishing

    def on_disconnect(self, node: AttemptNode, reason: str) -> None:
        """Start to reconnect: the attempt goes on at the other end."""
        backoff = node.connection.backoff
        node.connection.close()
        if node.is_finished:
            return
        if backoff is not None:  # the new connection broke before it was of any use
            backoff.on_failure(reason)
        else:
            node.connection.begin_backoff(reason)
            if not (node.has_ended or node.is_lost):
                self._observer.console.node_status(node.name, "reconnecting")
                self._observer.message(f"{node.name}: {reason}; reconnecting")

    def on_rejected(self, node: AttemptNode, reason: str) -> None:
        """Take a host as lost that does not keep to the protocol."""
        if node.has_ended or node.is_lost:
            self.on_disconnect(node, reason)
        else:
            self._on_lost(node, reason)

    def _on_lost(self, node: AttemptNode, reason: str) -> None:
        """Go on without a lost node where that is possible, and stop the others where not."""
        is_launch = self.role is Role.LAUNCH
        last_heard = node.connection.last_heard
        may_depart = is_launch and not self._is_stopping
        if may_depart and (remaining := self.elastic.remaining_without(node)):
            self._announce(Departure(node.name, reason, last_heard, remaining))
            return
        node.move_to(NodeState.LOST)
        self._observer.console.node_status(node.name, "lost")
        lost = events.HostLost(reason, silence_s=time.monotonic() - last_heard)
        self._event_log.record_own(node.name, lost, last_heard)
        node.connection.disconnect(reason)
        if is_launch:  # an attached controller may itself be the one that is cut off
            self.stop_all(Reason(ReasonKind.LOST, node.name, detail=reason))

    def _announce(self, departure: Departure) -> None:
        """Go on without a node, and tell the supervisors of the others to do so."""
        silence_s = time.monotonic() - departure.at
        body = events.PeerDeparted(departure.name, departure.reason, departure.remaining, silence_s)
        self._event_log.record_own("", body, departure.at)
        self._depart(departure)
        for other in self.nodes.values():
            if other.live_session and not other.has_ended:
                fields = {"command": "peer_departed", **encode(body)}
                other.live_session.request("command", fields)

    def _depart(self, departure: Departure) -> None:
        name, reason, _, remaining = departure
        node = self.nodes[name]
        node.move_to(NodeState.LOST)
        self.elastic.depart(departure)
        self._observer.console.node_status(name, "lost")
        nodes = counted(remaining, "node") if remaining else "the others"
        self._observer.message(f"{name} was lost ({reason}); the run goes on with {nodes}")
        node.connection.disconnect(reason)
        if self.admission is not None:
            self.admission.schedule(name, reason)

    def follow_all(self) -> None:
        """Follow an attempt that this controller did not start."""
        for node in self.nodes.values():
            if node.connection.session is None:
                node.connection.begin_backoff("it could not be reached")
                self._observer.console.node_status(node.name, "not reached")
            else:
                self._follow(node, node.connection.session)

    def on_reconnected(self, node: AttemptNode | None, session: HostSession) -> None:
        """Follow the node over its new session."""
        if node is None or node.connection.backoff is None:  # opened for an earlier attempt
            session.close()
            return
        node.connection.session = session
        node.connection.was_reopened = True
        self._sessions[node.name] = session
        self._follow(node, session)

    def _follow(self, node: AttemptNode, session: HostSession) -> None:
        """Ask the agent to follow the run; `claim` keeps an order that never arrived from it."""
        is_launch = self.role is Role.LAUNCH
        order = encode(node.node_plan.order)
        claim = is_launch and not node.supervisor_started
        read_only = not self.role.may_stop
        request = {"order": order, "claim": claim, "read_only": read_only, "by_launch": is_launch}
        session.request("follow", request)
        session.request("ping")
        self.stop.send_to(session)

    def on_following(self, node: AttemptNode, session: HostSession) -> None:
        """Read the logs of a node on whose host the supervisor was reached."""
        backoff = node.connection.end_backoff()
        if backoff is not None:
            if self.role is Role.LAUNCH or backoff.tries:
                down_s = time.monotonic() - backoff.since
                self._observer.message(f"{node.name}: connected again after {down_s:.0f} s")
            self._observer.console.node_status(node.name, node.progress)
        if node.state is NodeState.STARTING:
            node.move_to(NodeState.RUNNING)
        node.supervisor_started = True
        node.last_data = time.monotonic()
        node.tailer.start(session)

    def on_stream(self, node: AttemptNode, frame: Frame) -> Iterator[Event]:
        """Take a part of the events or logs of a node; yield the events in it."""
        if error := frame.data.get("error"):
            self.show(f"{node.name}: the end of a log cannot be read: {error}")
        yield from node.tailer.on_frame(frame)
        node.last_data = time.monotonic()
        if node.tailer.is_complete:
            node.finish()

    def report_dropped_events(self) -> None:
        """Show how many events were not believed."""
        for name, node in self.nodes.items():
            if count := node.tailer.dropped_events:
                lines = counted(count, "line")
                self.show(f"{name}: {lines} of its events ignored: torn, or about another node")

    def end_streams(self) -> None:
        """Have no host send logs that nobody reads any more."""
        for node in self.nodes.values():
            if node.live_session:
                node.tailer.stop(node.live_session)
                node.live_session.hold(is_held=False)

    def skip_logs(self) -> None:
        """Read no more logs of nodes that have ended."""
        for node in self.nodes.values():
            if node.has_ended and not node.is_finished:
                node.finish()
                self.show(f"{node.name}: the rest of its logs stays there, in cluster.workdir")

    def on_ended(self, node: AttemptNode, body: events.Ended) -> None:
        """Take the end of a node; a failure ends the others too."""
        node.move_to(NodeState.COMPLETE if node.is_finished else NodeState.ENDED)
        self._observer.console.node_status(node.name, "ended")
        if all(other.has_ended for other in self.nodes.values()):
            self._observer.console.phase("fetching the last of the logs")
        if body.state in (State.FAILED, State.STUCK):
            self.stop_all(Reason(ReasonKind.HOST, node.name, detail="the run failed"))

    def on_refused(self, node: AttemptNode, reason: str) -> None:
        """Take the refusal of an order, or of the request to follow the run."""
        if node.is_finished:
            return
        if node.supervisor_started:  # its run folder is gone
            if not node.has_ended:
                self._on_lost(node, reason)
            node.finish()
            return
        if self._retry_later(node, reason):
            return
        node.move_to(NodeState.COMPLETE)
        refusal = Reason(ReasonKind.START, node.name, detail=reason)
        if node.live_session:  # in case it starts all the same
            send_stop(node.live_session, refusal)
        if self.role is not Role.LAUNCH:
            self._observer.message(f"{node.name}: {reason}")
            self._event_log.record_own(node.name, events.EndUnverified(reason))
        elif self._is_stopping:
            self._event_log.record_own(node.name, events.Ended(State.STOPPED, refusal))
        else:
            self.order_refused = True
            self._event_log.record_own(node.name, events.Ended(State.FAILED, refusal))
            self.stop_all(refusal)

    def _retry_later(self, node: AttemptNode, reason: str) -> bool:
        """Try a joining node again that refused its order: its old supervisor may still run."""
        if self.admission is None or self._is_stopping:
            return False
        departure = self.elastic.refuse(node.name, reason)
        if departure is None:
            return False
        node.move_to(NodeState.LOST)
        self._event_log.record_own("", departure)
        node.connection.disconnect(reason)
        self.admission.schedule(node.name, reason)
        self.on_admission_failed(node.name, reason)
        return True

    def on_node_arrived(self, session: HostSession, facts: Facts) -> None:
        """Send a node that was lost its order once more, unless the attempt is about to end."""
        name = session.node.name
        admission = self.admission
        if admission is None or name not in admission.backoffs or not self._may_admit:
            session.close()
            return
        node = self.nodes[name]
        node.rejoin(self.elastic.rejoin(name), session)
        self.peer_status.on_rejoin(name)
        self._sessions[name] = session
        admission.admit(node.node_plan.order, session, facts)
        self._observer.console.node_status(name, "starting")
        self._observer.message(f"{name} is available; torch takes it in")

    def on_membership_event(self, node: AttemptNode, body: EventBody, at: float) -> bool:
        """Carry out what an event means for the membership; return whether that is all."""
        reaction = self.elastic.on_event(
            node, body, at, is_stopping=self._is_stopping, may_stop=self.role.may_stop
        )
        if reaction.next_state is not None:
            node.move_to(reaction.next_state)
        if reaction.hub_lost:
            self.peer_status.on_hub_lost()
        if reaction.departure is not None:
            # The others may not know of a death, if it was before its node had joined them.
            is_news = self.role is Role.LAUNCH and isinstance(body, events.Stopping)
            (self._announce if is_news else self._depart)(reaction.departure)
        for name in reaction.surplus:
            if session := self.nodes[name].live_session:
                send_stop(
                    session, Reason(ReasonKind.OTHER, detail="the run had succeeded without it")
                )
            self._observer.message(f"{name} came too late: the run had succeeded without it")
        self.show(reaction.message)
        return reaction.handled

    def on_peer_lost(self, body: events.PeerLost) -> None:
        """Take the loss of a node as another supervisor reports it."""
        peer = self.nodes.get(body.peer)
        if peer is not None and not peer.has_ended:
            peer.move_to(NodeState.LOST)
            self._observer.console.node_status(body.peer, "lost")
        self.stop_all(Reason(ReasonKind.LOST, body.peer, detail=body.reason))

    def stop_all(self, reason: Reason) -> None:
        """Stop the whole attempt, if this controller may do so."""
        if self.role.may_stop:
            self.stop.begin(reason)

    def show(self, message: str) -> None:
        """Show a message, unless it is empty."""
        if message:
            self._observer.message(message)

    def on_admission_failed(self, name: str, reason: str) -> None:
        """Try a node again that cannot join as it is, and show why once."""
        if self.admission is not None:
            self.show(self.admission.on_failure(name, reason))
