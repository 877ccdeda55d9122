"""Node monitor of an attempt: connections and states of its nodes, which change here alone.

It carries out what the failure detector, the elastic membership and the agents report about a node,
and requests the stop of the whole attempt where it cannot continue without the node.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from runner.control.attempt.elastic import ElasticMembership
from runner.control.attempt.node import AttemptNode, NodeConnection, NodeState, Reconnector
from runner.control.attempt.node_failure_detector import NodeFailureDetector
from runner.control.attempt.observer import AttemptLog, Role, RunObserver
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.stop import StopSequence, send_stop
from runner.control.code.source import ShippedTasks
from runner.control.rpc.log_tail import LogTailer
from runner.control.rpc.session import HostSession
from runner.core.spec import Node, Spec
from runner.core.wire import events
from runner.core.wire.codec import Frame, encode
from runner.core.wire.events import Event
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.order import Order
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.text import counted
from runner.core.wire.timing import DISK_TIMEOUT_S


class OrderSender:
    """Sends orders, with what every host of the attempt gets besides.

    `record` is that of the whole run, packed; `facts_request` is what to ask a node before.
    """

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        tasks: ShippedTasks | None,
        record: bytes,
        facts_request: Callable[[Node], FactsRequest],
    ) -> None:
        stands_by = plan.nodes[0].order.hub is not None
        self.standby_orders = {each.node: each.order for each in plan.spares if stands_by}
        self.facts_request = facts_request
        self._record = record
        self._tasks = tasks
        revealed = {name: secret.reveal() for name, secret in spec.secrets.items()}
        self._data: dict[str, Any] = {"secrets": revealed, "token": secrets.token_hex(16)}

    def send(self, order: Order, session: HostSession, facts: Facts) -> None:
        """Start an order on a host."""
        data = {"order": encode(order), "record_bytes": len(self._record), **self._data}
        payload = self._record
        if self._tasks and not facts.has_tasks:
            data["tasks"] = self._tasks.header()
            payload += self._tasks.payload
        session.request("start", data, payload)


class NodeMonitor:
    """The nodes of one attempt, and what decides about them."""

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        sessions: dict[str, HostSession],
        reconnector: Reconnector,
        observer: RunObserver,
        event_log: AttemptLog,
    ) -> None:
        self.order_refused = False
        self.nodes: dict[str, AttemptNode] = {}
        self.elastic = ElasticMembership(plan, self.nodes, self)
        self.peer_status = PeerStatus(plan, self.nodes, self._is_silent, observer.fold_names)
        self.stop = StopSequence(spec, self.nodes, observer, event_log)
        self.detector = NodeFailureDetector(spec, self.nodes, self.peer_status)
        self._order_sender: OrderSender | None = None  # of the launch
        self.plan = plan
        self._spec = spec
        self._sessions = sessions
        self._reconnector = reconnector
        self._observer = observer
        self._event_log = event_log

    def add_planned_nodes(self, **tail_options: Any) -> None:
        """Take in the nodes of the plan; `tail_options` are those of the `LogTailer`."""
        by_name = {node.name: node for node in self._spec.nodes}
        for node_plan in self.plan.nodes:
            name = node_plan.node
            tailer = LogTailer(node_plan, partial(self._observer.log, name), **tail_options)
            connection = NodeConnection(self._sessions.get(name))
            self.nodes[name] = AttemptNode(node_plan, by_name[name], tailer, connection)

    def start(self, order_sender: OrderSender, facts: Mapping[str, Facts]) -> None:
        """Send every host its order."""
        self._order_sender = order_sender
        orders = {name: node.node_plan.order for name, node in self.nodes.items()}
        for name, order in {**orders, **order_sender.standby_orders}.items():
            order_sender.send(order, self._sessions[name], facts[name])

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
        """Check every node, and reopen broken connections."""
        may_judge = self.detector.may_judge(now)
        is_full = self._observer.console.is_full
        for node in self.nodes.values():
            if node.live_session:
                node.live_session.hold(is_held=is_full)
            if is_full and node.supervisor_started:
                node.last_data = now  # its logs are not asked for
            if may_judge and not node.is_finished:
                self._check(node, now)
            if may_judge and (self._may_rejoin(node) or not node.is_finished):
                self._reconnector.reconnect_if_due(node.node, node.connection.backoff, now)

    def _check(self, node: AttemptNode, now: float) -> None:
        """Carry out what the failure detector says about a node."""
        if reason := self.detector.silent_connection(node):
            self.on_disconnect(node, reason)
        judgement = self.detector.judge(node, now, self.stop.deadline)
        if judgement is None:
            return
        if judgement.state is NodeState.LOST:
            self._on_lost(node, judgement.reason)
            return
        if judgement.show:
            self._observer.message(f"{node.name}: {judgement.reason}")
        if judgement.record:
            self._event_log.record_own(node.name, events.EndUnverified(judgement.reason))
        node.move_to(judgement.state)

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

    def on_disconnect(self, node: AttemptNode, reason: str) -> None:
        """Start to reconnect: the attempt goes on at the other end."""
        backoff = node.connection.backoff
        node.connection.close()
        node.is_joining = False
        if backoff is not None:  # the new connection broke before it was of any use
            backoff.on_failure(reason)
        elif not node.is_finished:
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
            self.depart(node, reason, last_heard, remaining, announce=True)
            return
        node.move_to(NodeState.LOST)
        self._observer.console.node_status(node.name, "lost")
        lost = events.HostLost(reason, silence_s=time.monotonic() - last_heard)
        self._event_log.record_own(node.name, lost, last_heard)
        node.connection.disconnect(reason)
        if is_launch:  # an attached controller may itself be the one that is cut off
            self.stop_all(Reason(ReasonKind.LOST, node.name, detail=reason))
        else:
            self._observer.message(f"{node.name}: {reason}")

    def depart(
        self, node: AttemptNode, reason: str, at: float, remaining: int, *, announce: bool = False
    ) -> None:
        """Go on with `remaining` nodes (0: not known); with `announce`, supervisors are told."""
        name = node.name
        node.move_to(NodeState.LOST)
        node.lost_at = at
        self._observer.console.node_status(name, "lost")
        nodes = counted(remaining, "node") if remaining else "the others"
        self._observer.message(f"{name} was lost ({reason}); the run goes on with {nodes}")
        node.connection.disconnect(reason)
        if not announce or self.role is not Role.LAUNCH:
            return
        body = events.PeerDeparted(name, reason, remaining, time.monotonic() - at)
        self._event_log.record_own("", body, at)
        for other in self.nodes.values():
            if other.live_session and not other.has_ended:
                fields = {"command": "peer_departed", **encode(body)}
                other.live_session.request("command", fields)

    def follow_all(self) -> None:
        """Follow an attempt that this controller did not start."""
        for node in self.nodes.values():
            if node.connection.session is None:
                node.connection.begin_backoff("it could not be reached")
                self._observer.console.node_status(node.name, "not reached")
            else:
                self._follow(node, node.connection.session)

    def on_reconnected(self, node: AttemptNode | None, session: HostSession) -> None:
        """Follow the node over its new session, or have one that was lost join again."""
        if node is None or node.connection.backoff is None:  # opened for an earlier attempt
            session.close()
            return
        node.connection.session = session
        node.connection.was_reopened = True
        self._sessions[node.name] = session
        if self._order_sender and self._may_rejoin(node):
            node.is_joining = True
            request = self._order_sender.facts_request(node.node)
            session.request("facts", {"request": encode(request)})
        else:
            self._follow(node, session)

    def _may_rejoin(self, node: AttemptNode) -> bool:
        """Return whether a node that was lost may take part again, once it is reached."""
        is_elastic = self._order_sender is not None and bool(self._spec.min_nodes)
        is_ending = self._is_stopping or self.elastic.is_finishing
        return is_elastic and node.is_absent and not (is_ending or node.is_surplus)

    def on_facts(self, node: AttemptNode, session: HostSession, facts: Facts) -> None:
        """Send a node that was lost its order once more; its run folder has all that it needs."""
        if self._order_sender is None or not self._may_rejoin(node):
            node.is_joining = False
            self._follow(node, session)
            return
        node.rejoin()
        self.peer_status.on_rejoin(node.name)
        self._order_sender.send(node.node_plan.order, session, facts)
        self._observer.console.node_status(node.name, "starting")
        self._observer.message(f"{node.name} is available; torch takes it in")

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
        node.is_joining = False
        node.last_data = time.monotonic()
        node.tailer.start(session)

    def on_stream(self, node: AttemptNode, frame: Frame) -> Iterator[Event]:
        """Take a part of the events or logs of a node; yield the events in it."""
        if error := frame.data.get("error"):
            self.show(f"{node.name}: the end of a log cannot be read: {error}")
            node.tailer.has_error = True
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
        if node.is_joining:
            self._retry_later(node, reason)
            return
        if node.is_finished:
            return
        if node.supervisor_started:  # its run folder is gone
            if not node.has_ended:
                self._on_lost(node, reason)
            node.finish()
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

    def _retry_later(self, node: AttemptNode, reason: str) -> None:
        """Try a joining node again: what is left of its earlier part may have to end first."""
        if node.state is NodeState.STARTING:  # it had its order
            node.move_to(NodeState.LOST)
            remaining = sum(not other.is_absent for other in self.nodes.values())
            departed = events.PeerDeparted(node.name, reason, remaining)
            self._event_log.record_own("", departed)
        if reason != node.said_problem:
            node.said_problem = reason
            self.show(f"{node.name} cannot join: {reason}; trying again")
        self.on_disconnect(node, reason)

    def stop_surplus(self, node: AttemptNode) -> None:
        """Stop a node that came when the run had succeeded without it."""
        if node.live_session and self.role.may_stop:
            text = "the run had succeeded without it"
            node.is_surplus = True
            send_stop(node.live_session, Reason(ReasonKind.OTHER, detail=text))
            self.show(f"{node.name} came too late: {text}")

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
