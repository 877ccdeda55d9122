"""Node monitor of an attempt: connections, logs and states of its nodes, which change here alone.

It carries out what the failure detector, the elastic membership and the agents report about a node,
and requests the stop of the whole attempt where it cannot continue without the node.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from runner.control.attempt.attempt import Attempt, Role
from runner.control.attempt.elastic import ElasticMembership
from runner.control.attempt.node import AttemptNode, Backoff, NodeConnection, NodeState
from runner.control.attempt.node_failure_detector import NodeFailureDetector
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.stop import StopSequence, send_stop
from runner.control.code.source import ShippedTasks
from runner.control.rpc.facts import MAX_CONCURRENT_LOGINS
from runner.control.rpc.log_tail import STREAM_KINDS, LogTailer
from runner.control.rpc.session import Connector, HostSession, Inbox
from runner.control.rpc.wait import WaitLoop
from runner.core.errors import NotReady
from runner.core.spec import Node, Spec
from runner.core.wire import events
from runner.core.wire.codec import Frame, encode
from runner.core.wire.events import Event
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.order import Order
from runner.core.wire.plan import Plan
from runner.core.wire.states import Reason, ReasonKind, State
from runner.core.wire.text import counted
from runner.core.wire.timing import DISK_TIMEOUT_S, WORK_TIMEOUT_S


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
        data = {"order": encode(order), "record_bytes": len(self._record), **self._data}
        payload = self._record
        if self._tasks and not facts.has_tasks:
            data["tasks"] = self._tasks.header()
            payload += self._tasks.payload
        session.request("start", data, payload)


class NodeMonitor(WaitLoop):
    """The nodes of one attempt, and what decides about them; a subclass takes their events."""

    def __init__(self, attempt: Attempt, connector: Connector, inbox: Inbox) -> None:
        super().__init__(attempt.sessions, inbox)
        self.attempt = attempt
        self.plan = attempt.plan
        self.nodes = attempt.nodes
        self.timed_events = attempt.timed_events
        self.peer_status = PeerStatus(attempt)
        self.stop = StopSequence(attempt)
        self.detector = NodeFailureDetector(attempt)
        self.elastic = ElasticMembership(attempt, self)
        self.order_refused = False  # by a host
        self._order_sender: OrderSender | None = None  # of the launch
        self._connector = connector
        self._login_slots = threading.BoundedSemaphore(MAX_CONCURRENT_LOGINS)

    def _on_event(self, node: AttemptNode, session: HostSession, event: Event) -> None:
        raise NotImplementedError

    @property
    def is_stopping(self) -> bool:
        return self.stop.requested is not None

    def add_planned_nodes(self, **tail_options: Any) -> None:
        """Take in the nodes of the plan; `tail_options` are those of the `LogTailer`."""
        by_name = {node.name: node for node in self.attempt.spec.nodes}
        for node_plan in self.plan.nodes:
            name = node_plan.node
            tailer = LogTailer(node_plan, partial(self.attempt.log, name), **tail_options)
            connection = NodeConnection(self.sessions.get(name))
            self.nodes[name] = AttemptNode(node_plan, by_name[name], tailer, connection)

    def send_orders(self, order_sender: OrderSender, facts: Mapping[str, Facts]) -> None:
        self._order_sender = order_sender
        orders = {name: node.node_plan.order for name, node in self.nodes.items()}
        for name, order in {**orders, **order_sender.standby_orders}.items():
            order_sender.send(order, self.sessions[name], facts[name])

    def check_nodes(self, now: float) -> None:
        may_judge = self.detector.may_judge(now)
        is_full = self.attempt.console.is_full
        for node in self.nodes.values():
            if session := node.live_session:
                session.hold(is_held=is_full)
            if is_full and node.supervisor_started:
                node.last_data = now  # its logs are not asked for
            if may_judge and not node.is_finished:
                self._check(node, now)
            is_awaited = may_judge and (self._may_rejoin(node) or not node.is_finished)
            backoff = node.connection.backoff
            if is_awaited and backoff is not None and backoff.is_due:
                backoff.in_progress = True
                work = partial(self._reconnect, node.node, backoff)
                threading.Thread(target=work, daemon=True, name=f"connect {node.name}").start()

    def _reconnect(self, node: Node, backoff: Backoff) -> None:
        """Open a new connection, in a thread, and report "reconnected" to the inbox."""
        try:
            with self._login_slots:
                session = self._connector.open(node, self.inbox)
        except Exception as error:  # noqa: BLE001 (whatever it is, the next attempt may succeed)
            problems = error.problems if isinstance(error, NotReady) else ()
            text = problems[0].message if problems else f"{type(error).__name__}: {error}"
            backoff.on_failure(text)
        else:
            self.inbox.put((session, Frame("reconnected")))

    def _check(self, node: AttemptNode, now: float) -> None:
        if reason := self.detector.silent_connection(node):
            self.disconnect(node, reason)
        judgement = self.detector.judge(node, now, self.stop.deadline)
        if judgement is None:
            return
        if judgement.state is NodeState.LOST:
            self._declare_lost(node, judgement.reason)
            return
        if judgement.show:
            self.attempt.say(f"{node.name}: {judgement.reason}")
        if judgement.record:
            self.attempt.record_own(node.name, events.EndUnverified(judgement.reason))
        node.move_to(judgement.state)

    # Frames

    def _dispatch(self, session: HostSession | None, frame: Frame) -> None:
        if session is None:
            self.on_signal(int(frame.data["signal"]))
            return
        name = session.node.name
        node = self.nodes.get(name)
        if frame.kind == "reconnected":
            self._on_reconnected(node, session)
        elif node is None:
            self.peer_status.on_standby_reply(name, frame)
        elif session is node.connection.session and frame.kind in STREAM_KINDS:
            self._on_stream(node, session, frame)
        elif session is node.connection.session:
            self._on_node_frame(node, session, frame)

    def _on_node_frame(self, node: AttemptNode, session: HostSession, frame: Frame) -> None:
        match frame.kind:
            case "facts" if node.is_joining:
                self._on_facts(node, session, frame.data["facts"])
            case "following":
                self._on_following(node, session)
            case "pong":
                self._on_pong(node, frame.data["disk_wait_s"])
            case "command_sent":
                self.stop.on_command_sent(node.name, frame.data["id"])
            case "in_progress" if time.monotonic() < node.asked_at + WORK_TIMEOUT_S:
                node.last_data = time.monotonic()
            case "refused":
                self._on_refused(node, frame.data["reason"])
            case "closed" if session.rejected and not (node.has_ended or node.is_lost):
                self._declare_lost(node, session.rejected)
            case "closed":
                broke = f"the connection to it broke: {frame.data['reason']}"
                self.disconnect(node, session.rejected or broke)

    def _on_stream(self, node: AttemptNode, session: HostSession, frame: Frame) -> None:
        if error := frame.data.get("error"):
            self.attempt.say(f"{node.name}: the end of a log cannot be read: {error}")
            node.tailer.has_error = True
        for event in node.tailer.on_frame(frame):
            self._on_event(node, session, event)
        if frame.payload:
            node.last_data = time.monotonic()
        if node.tailer.is_complete:
            node.finish()

    def _on_pong(self, node: AttemptNode, wait_s: float) -> None:
        """Show that the disk of a host does not answer, and when it does again."""
        console = self.attempt.console
        if wait_s >= DISK_TIMEOUT_S and not node.disk_wait_s:
            console.node_status(node.name, "waits for its disk")
            note = f"{node.name}: its disk has not answered for {wait_s:.0f} s"
            goes_on = node.supervisor_started and not self.is_stopping
            self.attempt.say(f"{note}; the run goes on" if goes_on else note)
        elif node.disk_wait_s and not wait_s:
            if node.state is NodeState.RUNNING:
                console.node_status(node.name, node.progress)
            self.attempt.say(f"{node.name}: its disk answers again")
        elif wait_s < DISK_TIMEOUT_S and not node.disk_wait_s:
            return
        node.disk_wait_s = wait_s

    # Connections

    def disconnect(self, node: AttemptNode, reason: str) -> None:
        """Start to reconnect: the attempt goes on at the other end."""
        backoff = node.connection.backoff
        node.connection.close()
        node.is_joining = False
        if backoff is not None:  # the new connection broke before it was of any use
            backoff.on_failure(reason)
        elif not node.is_finished:
            node.connection.begin_backoff(reason)
            if not (node.has_ended or node.is_lost):
                self.attempt.console.node_status(node.name, "reconnecting")
                self.attempt.say(f"{node.name}: {reason}; reconnecting")

    def follow_all(self) -> None:
        """Follow an attempt that this controller did not start."""
        for node in self.nodes.values():
            if node.connection.session is None:
                node.connection.begin_backoff("it could not be reached")
                self.attempt.console.node_status(node.name, "not reached")
            else:
                self._follow(node, node.connection.session)

    def _on_reconnected(self, node: AttemptNode | None, session: HostSession) -> None:
        """Follow the node over its new session, or have one that was lost join again."""
        if node is None or node.connection.backoff is None:  # opened for an earlier attempt
            session.close()
            return
        node.connection.session = session
        self.attempt.sessions[node.name] = session
        if self._order_sender and self._may_rejoin(node):
            node.is_joining = True
            request = self._order_sender.facts_request(node.node)
            session.request("facts", {"request": encode(request)})
        else:
            self._follow(node, session)

    def _may_rejoin(self, node: AttemptNode) -> bool:
        """Return whether a node that was lost may take part again, once it is reached."""
        is_elastic = self._order_sender is not None and bool(self.attempt.spec.min_nodes)
        is_ending = self.is_stopping or self.elastic.is_finishing
        return is_elastic and node.is_absent and not (is_ending or node.is_surplus)

    def _on_facts(self, node: AttemptNode, session: HostSession, facts: Facts) -> None:
        """Send a node that was lost its order once more; its run folder has all that it needs."""
        if self._order_sender is None or not self._may_rejoin(node):
            node.is_joining = False
            self._follow(node, session)
            return
        node.rejoin()
        self._order_sender.send(node.node_plan.order, session, facts)
        self.attempt.console.node_status(node.name, "starting")
        self.attempt.say(f"{node.name} is available; torch takes it in")

    def _follow(self, node: AttemptNode, session: HostSession) -> None:
        """Ask the agent to follow the run; `claim` keeps an order that never arrived from it."""
        is_launch = self.attempt.is_launch
        node.asked_at = time.monotonic()
        request = {
            "order": encode(node.node_plan.order),
            "claim": is_launch and not node.supervisor_started,
            "read_only": self.attempt.role is Role.READ_ONLY,
            "by_launch": is_launch,
        }
        session.request("follow", request)
        session.request("ping")
        self.stop.send_to(session)

    def _on_following(self, node: AttemptNode, session: HostSession) -> None:
        """Read the logs of a node on whose host the supervisor was reached."""
        backoff = node.connection.end_backoff()
        if backoff is not None:
            if self.attempt.is_launch or backoff.tries:
                down_s = time.monotonic() - backoff.since
                self.attempt.say(f"{node.name}: connected again after {down_s:.0f} s")
            self.attempt.console.node_status(node.name, node.progress)
        if node.state is NodeState.STARTING:
            node.move_to(NodeState.RUNNING)
        node.supervisor_started = True
        node.is_joining = False
        node.last_data = time.monotonic()
        node.tailer.start(session)

    # Losses and refusals

    def _declare_lost(self, node: AttemptNode, reason: str) -> None:
        """Go on without a lost node where that is possible, and stop the others where not."""
        is_launch = self.attempt.is_launch
        last_heard = node.connection.last_heard
        may_depart = is_launch and not self.is_stopping
        if may_depart and (remaining := self.elastic.remaining_without(node)):
            self.depart(node, reason, last_heard, remaining, announce=True)
            return
        node.move_to(NodeState.LOST)
        self.attempt.console.node_status(node.name, "lost")
        lost = events.HostLost(reason, silence_s=time.monotonic() - last_heard)
        self.attempt.record_own(node.name, lost, last_heard)
        node.connection.disconnect(reason)
        if is_launch:  # an attached controller may itself be the one that is cut off
            self.stop_all(Reason(ReasonKind.LOST, node.name, detail=reason))
        else:
            self.attempt.say(f"{node.name}: {reason}")

    def depart(
        self, node: AttemptNode, reason: str, at: float, remaining: int, *, announce: bool = False
    ) -> None:
        """Go on with `remaining` nodes (0: not known); with `announce`, supervisors are told."""
        name = node.name
        node.move_to(NodeState.LOST)
        node.lost_at = at
        self.attempt.console.node_status(name, "lost")
        nodes = counted(remaining, "node") if remaining else "the others"
        self.attempt.say(f"{name} was lost ({reason}); the run goes on with {nodes}")
        node.connection.disconnect(reason)
        if not announce or not self.attempt.is_launch:
            return
        body = events.PeerDeparted(name, reason, remaining, time.monotonic() - at)
        self.attempt.record_own("", body, at)
        for other in self.nodes.values():
            session = other.live_session
            if session and not other.has_ended:
                fields = {"command": "peer_departed", **encode(body)}
                session.request("command", fields)

    def _on_refused(self, node: AttemptNode, reason: str) -> None:
        """Take the refusal of an order, or of the request to follow the run."""
        attempt = self.attempt
        if node.is_joining:
            self._retry_later(node, reason)
            return
        if node.is_finished:
            return
        if node.supervisor_started:  # its run folder is gone
            if not node.has_ended:
                self._declare_lost(node, reason)
            node.finish()
            return
        node.move_to(NodeState.COMPLETE)
        refusal = Reason(ReasonKind.START, node.name, detail=reason)
        if session := node.live_session:  # in case it starts all the same
            send_stop(session, refusal)
        if not attempt.is_launch:
            attempt.say(f"{node.name}: {reason}")
            attempt.record_own(node.name, events.EndUnverified(reason))
        elif self.is_stopping:
            attempt.record_own(node.name, events.Ended(State.STOPPED, refusal))
        else:
            self.order_refused = True
            attempt.record_own(node.name, events.Ended(State.FAILED, refusal))
            self.stop_all(refusal)

    def _retry_later(self, node: AttemptNode, reason: str) -> None:
        """Try a joining node again: what is left of its earlier part may have to end first."""
        if node.state is NodeState.STARTING:  # it had its order
            node.move_to(NodeState.LOST)
            remaining = sum(not other.is_absent for other in self.nodes.values())
            self.attempt.record_own("", events.PeerDeparted(node.name, reason, remaining))
        if reason != node.said_problem:
            node.said_problem = reason
            self.attempt.say(f"{node.name} cannot join: {reason}; trying again")
        self.disconnect(node, reason)

    def stop_all(self, reason: Reason) -> None:
        """Stop the whole attempt, if this controller may do so."""
        if self.attempt.role is not Role.READ_ONLY:
            self.stop.begin(reason)
