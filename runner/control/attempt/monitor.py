"""One attempt while it is on: send the orders or join, follow, keep contact, stop all if one fails.

One thread, one inbox. A broken wire changes nothing for the ranks: it is opened again, and every
file goes on at its byte.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import time
from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from runner.control.attempt.admission import AdmissionHooks, NodeAdmission
from runner.control.attempt.elastic import ElasticMembership
from runner.control.attempt.event_log import EventLog
from runner.control.attempt.failure_detector import FailureDetector
from runner.control.attempt.log_tail import LogTailer
from runner.control.attempt.node import NodeState
from runner.control.attempt.observer import RunObserver
from runner.control.attempt.peer_status import PeerStatus
from runner.control.attempt.reconnect import Backoff, Reconnector
from runner.control.attempt.start import OrderSender
from runner.control.attempt.stop import StopSequence
from runner.control.rpc.connector import Connector
from runner.control.rpc.session import HostSession, Inbox
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.spec import Spec
from runner.core.outcome.exits import describe_exit
from runner.core.outcome.verdict import TimedEvent
from runner.core.planning.build_plan import Plan
from runner.core.protocol.events import (
    Ended,
    EndUnverified,
    Event,
    PortTaken,
    ProgramExited,
    RankExited,
    RankStarted,
    StopCause,
    Stopping,
)
from runner.core.protocol.frames import Frame
from runner.core.protocol.states import State

TICK_S = 0.05
JOIN_TIMEOUT_S = 15.0
"""How long hosts may take to say whether they reach each other (see `host.touch.APART_S`)."""

DETACH_TIMEOUT_S = 2.0
"""How long the hosts may take to confirm that they need nobody."""


class AttemptMonitor:
    """One attempt of a run, from its orders to nothing left.

    Attributes:
        all_started: Whether every rank runs, or ran.
        on_interrupt: Says of a signal whether it shall stop the run; None for any.
        detached: Whether the user left, and the run goes on.
        hung_up: Whether it was the user's terminal that left.
        peer_status: What the hosts have settled among themselves.
    """

    def __init__(
        self,
        spec: Spec,
        plan: Plan,
        connector: Connector,
        sessions: dict[str, HostSession],
        inbox: Inbox,
        observer: RunObserver,
    ) -> None:
        self.spec, self.plan = spec, plan
        self.port_taken = self.order_refused = False
        self.all_started = self.detached = self.hung_up = False
        self._inbox, self._observer = inbox, observer
        self._sessions = sessions
        self._nodes: dict[str, NodeState] = {}
        self._event_log = EventLog(spec.run_id, plan.attempt, observer.record)
        self._stop = StopSequence(spec, self._nodes, observer, self._event_log)
        self._detector = FailureDetector(
            spec, self._nodes, Reconnector(connector, inbox), self._stop, self._event_log, observer
        )
        self._connector = connector
        self._elastic = ElasticMembership(
            lambda: self.plan, self._nodes, self._stop, self._detector, self._event_log, observer
        )
        self._order_sender: OrderSender | None = None
        self._has_reconnected = False
        self._next_tick = 0.0
        self._detach_deadline = float("inf")
        self._started_at = 0.0
        self._began_at = time.monotonic()
        self.peer_status = PeerStatus(plan, self._nodes, self._stop, observer)
        self.on_interrupt: Callable[[int], bool] | None = None

    def start(
        self,
        facts: Mapping[str, Facts],
        order_sender: OrderSender,
        record: bytes,
        admission_hooks: AdmissionHooks | None = None,
        *,
        relaunch_follows: bool = False,
    ) -> None:
        """Send every host its order.

        Args:
            facts: Of every node.
            order_sender: What goes with the order of every host.
            record: What every host is to have on record of the whole run, packed.
            admission_hooks: How nodes that are not there yet, or come back, are taken in; None for
                not.
            relaunch_follows: Whether another attempt follows if this one fails.
        """
        self._detector.relaunch_follows = relaunch_follows
        self._order_sender = order_sender
        self.peer_status.expect_standbys(order_sender.standby_orders)
        self._init_nodes(logs=True)
        if admission_hooks is not None:
            node_admission = NodeAdmission(
                admission_hooks, self._connector, self._inbox, self._observer.node_status
            )
            missing = [n.name for n in admission_hooks.spec.nodes if n.name not in self._nodes]
            node_admission.schedule(missing, "it was left out at the start")
            self._elastic.admission = node_admission
        node_orders = {name: node.node_plan.order for name, node in self._nodes.items()}
        for name, order in {**node_orders, **order_sender.standby_orders}.items():
            order_sender.send(order, self._sessions[name], facts[name], record)
        self._observer.phase("starting")
        for name in self._nodes:
            self._observer.node_status(name, "starting")

    def attach(
        self,
        *,
        logs: bool = True,
        start_at: Mapping[str, float] = MappingProxyType({}),
        ranks: Container[int] | None = None,
        read_only: bool = False,
        age_s: float = 0.0,
    ) -> None:
        """Follow a run that is on, or over; hosts without a session are tried again and again.

        To `read_only` is to change nothing: such a reader stops no run, and keeps none alive.
        `logs`, `start_at` and `ranks` are those of the `LogTailer`; `age_s` is how long the run has
        been on, in seconds.
        """
        self._detector.owns_run, self._detector.may_stop = False, not read_only
        self._init_nodes(logs=logs, start_at=start_at, ranks=ranks)
        self._began_at -= age_s
        self._observer.phase("joining")
        for node in self._nodes.values():
            if node.session is None:
                node.backoff = Backoff("it could not be reached", node.last_heard)
                self._observer.node_status(node.name, "not reached")
            else:
                self._adopt(node, node.session)

    def run(self, *, detach: bool = False) -> None:
        """Return when every host has settled: ended with its logs here, lost, or silent.

        Or, to `detach`, once every rank runs and the hosts know what they need of us.
        """
        while not all(node.finished for node in self._nodes.values()) and not self.detached:
            with contextlib.suppress(queue.Empty):
                self._dispatch(*self._inbox.get(timeout=TICK_S))
            if time.monotonic() >= self._next_tick:
                self._next_tick = time.monotonic() + TICK_S
                self._detector.tick()
                self._elastic.tick(time.monotonic())
            is_leaving = self._detach_deadline < float("inf")
            if detach and self.is_stopping:  # our own launch stays to see the end
                self._detach_deadline = float("inf")
            elif detach and not is_leaving and self._all_in_touch:
                self.detach()
            elif is_leaving and (
                self.peer_status.all_detached or time.monotonic() >= self._detach_deadline
            ):
                self.leave()
        if not (
            self.detached or self.peer_status.hosts_decide or self.peer_status.next_attempt_number
        ):
            self._stop_spares()

    @property
    def is_stopping(self) -> bool:
        """Whether all of it is to end."""
        return self._stop.requested is not None

    def leave(self) -> None:
        """Have `run` return, and the run go on."""
        self.detached = True

    def detach(self) -> None:
        """Leave once the hosts know that the run is to go on without any controller."""
        self._detach_deadline = time.monotonic() + DETACH_TIMEOUT_S
        for node in self._nodes.values():
            is_starting = node.joined_late and not node.supervisor_started  # the hub will tell it
            if node.live_session and not node.detached and not is_starting:
                node.live_session.request("command", {"command": "detach"})
        self._send_to_spares({"command": "detach"}, exclude=self.peer_status.pending_standbys)

    def _stop_spares(self) -> None:
        """End what stood by for this attempt: the hub may be gone before all of it came there."""
        command = {
            "command": "stop",
            "reason": "the attempt is over",
            "cause": StopCause.PEER.value,
        }
        self._send_to_spares(command)

    def _send_to_spares(self, command: dict[str, str], exclude: Container[str] = ()) -> None:
        for name in self._order_sender.standby_orders if self._order_sender else ():
            session = self._sessions.get(name)
            if session is not None and name not in exclude:
                session.request("command", command)

    @property
    def _all_in_touch(self) -> bool:
        """Whether every rank runs, and every host has reached the hub, or said that it cannot."""
        if not self.all_started:
            return False
        return self.peer_status.all_reported or time.monotonic() - self._started_at > JOIN_TIMEOUT_S

    def _init_nodes(self, *, logs: bool, **tail_options: Any) -> None:
        by_name = {node.name: node for node in self.spec.nodes}
        self._began_at = time.monotonic()
        for node_plan in self.plan.nodes:
            name = node_plan.node
            tailer = LogTailer(node_plan, self._log_sink(name), logs=logs, **tail_options)
            session = self._sessions.get(name)
            self._nodes[name] = NodeState(node_plan, by_name[name], tailer, session)

    # What comes in

    def _dispatch(self, session: HostSession | None, frame: Frame) -> None:
        if session is None:
            self._on_user_input(frame)
            return
        node = self._nodes.get(session.node.name)
        if frame.kind == "admitted":
            self._on_node_arrived(session, frame.data["facts"])
        elif frame.kind == "reconnected":
            self._on_reconnected(node, session)
        elif node is None:
            self.peer_status.on_standby_reply(session, frame)
        elif session is node.session:
            self._on_node_frame(node, session, frame)

    def _on_node_frame(self, node: NodeState, session: HostSession, frame: Frame) -> None:
        if frame.kind == "data":
            self._on_data(node, session, frame)
        elif frame.kind == "following":
            self._on_adopted(node, session)
        elif frame.kind == "in_progress":
            node.last_data = time.monotonic()
        elif frame.kind == "refused":
            self._on_refused(node, str(frame.data["reason"]))
        elif frame.kind == "closed":
            self._detector.on_disconnect(
                node, f"the connection to it broke: {frame.data['reason']}"
            )

    def _on_reconnected(self, node: NodeState | None, session: HostSession) -> None:
        if node is None or node.backoff is None:  # it was for an attempt that is over
            session.close()
            return
        self._has_reconnected = True
        self._sessions[node.name] = node.session = session
        self._adopt(node, session)

    def _adopt(self, node: NodeState, session: HostSession) -> None:
        claim = self._detector.owns_run and not node.supervisor_started
        session.request(
            "follow",
            {
                "order": encode(node.node_plan.order),
                "claim": claim,
                "read_only": not self._detector.may_stop,
            },
        )
        session.request("ping")
        self._stop.send_to(session)

    def _on_adopted(self, node: NodeState, session: HostSession) -> None:
        if node.backoff is not None:
            backoff, node.backoff = node.backoff, None
            node.reconnected_at, node.last_backoff = time.monotonic(), backoff
            if self._detector.owns_run or backoff.tries:
                down_s = time.monotonic() - backoff.since
                self._observer.message(f"{node.name}: connected again after {down_s:.0f} s")
            self._observer.node_status(node.name, node.progress)
        node.supervisor_started = True
        node.last_data = time.monotonic()
        node.tailer.start(session)

    def _on_data(self, node: NodeState, session: HostSession, frame: Frame) -> None:
        if "error" in frame.data:
            self._observer.message(
                f"{node.name}: the end of a log cannot be read: {frame.data['error']}"
            )
        hold_back = self._observer.console_full()
        for event in node.tailer.on_data(
            session,
            frame.data["id"],
            frame.data["offset"],
            frame.payload,
            eof=frame.data["eof"],
            hold_back=hold_back,
        ):
            self._on_event(node, session, event)
        node.last_data = time.monotonic()
        if node.tailer.is_complete:
            node.finished = True

    def _on_refused(self, node: NodeState, reason: str) -> None:
        if node.finished:
            return
        if node.supervisor_started:  # its folder is gone
            self._detector.declare_lost(node, reason)
            node.finished = True
            return
        if self._elastic.on_refused(node, reason):
            return
        node.ended = node.finished = True
        if node.live_session:  # in case it begins all the same
            node.live_session.request(
                "command", {"command": "stop", "reason": reason, "cause": StopCause.PEER.value}
            )
        if not self._detector.owns_run:
            self._observer.message(f"{node.name}: {reason}")
            self._event_log.record_own(node.name, EndUnverified(reason))
        elif self._stop.requested is not None:
            self._event_log.record_own(node.name, Ended(State.STOPPED, reason))
        else:
            self.order_refused = True
            self._event_log.record_own(node.name, Ended(State.FAILED, f"could not start: {reason}"))
            self._stop_all(f"{node.name} could not start: {reason}")

    def _on_event(self, node: NodeState, session: HostSession, event: Event) -> None:
        at = session.to_controller_clock(event.mono, event.wall)
        self._event_log.append(at, event)
        name, body = node.name, event.body
        if self._elastic.on_event(node, body, at):
            return
        if isinstance(body, RankStarted):
            node.on_rank_started(body.rank, body.master)
            self._observer.node_status(name, node.progress)
            self._check_all_started()
        elif isinstance(body, RankExited) and not body.succeeded:
            failure = body.error or describe_exit(body.code, body.signal)
            self._stop_all(f"rank {body.rank} on {name} {failure}")
        elif isinstance(body, ProgramExited) and (body.error or body.code != 0):
            failure = body.error or f"{self.plan.launcher} {describe_exit(body.code, body.signal)}"
            self._stop_all(f"{name}: {failure}")
        elif isinstance(body, PortTaken):
            self.port_taken = True
            self._stop_all(f"port {body.port} on {name} was taken")
        elif isinstance(body, Stopping):
            self._stop_all(body.reason, cause=body.cause)
        elif isinstance(body, Ended):
            self._on_ended(node, body)
        elif reason := self.peer_status.on_event(node, body):
            self._stop_all(reason)

    def _on_node_arrived(self, session: HostSession, facts: Facts) -> None:
        """Take in a node that is there now, if the run is to go on."""
        admitted = self._elastic.admit(session, facts)
        if admitted is None or self._order_sender is None:
            session.close()
            return
        name, (self.plan, record) = session.node.name, admitted
        node, node_plan = self._nodes.get(name), self.plan.node(name)
        if node is None:
            tailer = LogTailer(node_plan, self._log_sink(name))
            node = NodeState(node_plan, session.node, tailer, session, joined_late=True)
            self._nodes[name] = node
        else:
            node_plan = replace(
                node_plan, order=replace(node_plan.order, rejoin_count=node.order_count)
            )
            node.rejoin(node_plan, session)
        self._sessions[name] = session
        self._order_sender.send(node.node_plan.order, session, facts, record)
        self._observer.node_status(name, "starting")
        self._observer.message(f"{name} is there; torch takes it in")

    def _on_ended(self, node: NodeState, body: Ended) -> None:
        node.ended = True
        self._observer.node_status(node.name, "ended")
        if all(other.ended for other in self._nodes.values()):
            self._observer.phase("fetching the last of the logs")
        if body.state in (State.FAILED, State.STUCK):
            self._stop_all(f"the run failed on {node.name}")

    def _check_all_started(self) -> None:
        present = (node for node in self._nodes.values() if not node.lost)
        is_complete = all(len(node.started_ranks) == node.node_plan.rank_count for node in present)
        if is_complete and not self.all_started:
            self.all_started, self._started_at = True, time.monotonic()
            elapsed_s = time.monotonic() - self._began_at
            self._observer.phase("running", elapsed_s)
            if self._detector.owns_run:
                self._observer.message(f"every rank started after {elapsed_s:.1f} s")

    # Stopping

    @property
    def port_retry_possible(self) -> bool:
        """Whether a taken port is all that kept this attempt from its start."""
        all_ended = all(node.ended for node in self._nodes.values())
        has_facts = (
            not self.order_refused and not self._has_reconnected
        )  # a new link has asked no facts
        return self.port_taken and all_ended and has_facts and not self.interrupted

    @property
    def interrupted(self) -> bool:
        """Whether the user asked for the end."""
        return self._stop.signal_count > 0

    @property
    def timed_events(self) -> list[TimedEvent]:
        """What happened, on our clock."""
        return self._event_log.timed_events

    def stop_by_user(self, reason: str) -> None:
        """Stop everything because the user asked for it elsewhere than by a signal."""
        self._stop_all(reason, cause=StopCause.USER)

    def duration(self, began_at: float) -> float:
        """Return how long the run took or takes, `began_at` being in seconds since 1970."""
        if all(node.ended for node in self._nodes.values()):
            ends = [
                observed.event.wall
                for observed in self.timed_events
                if isinstance(observed.event.body, Ended)
            ]
            return max(0.0, max(ends, default=time.time()) - began_at)
        return max(0.0, time.time() - began_at)

    def _on_user_input(self, frame: Frame) -> None:
        if frame.kind == "prompt_answer":
            command = frame.data["command"]
            if command == "stop":
                self.stop_by_user("told to stop by its user")
                self._stop.signal_count = max(
                    1, self._stop.signal_count
                )  # as Ctrl-C would at a launch
            elif command == "detach":
                self.detach()
            else:
                self.leave()
        elif frame.kind == "admission_failed":
            self._elastic.on_unfit(str(frame.data["node"]), str(frame.data["reason"]))
        elif self.on_interrupt is None or self.on_interrupt(int(frame.data["signal"])):
            self.interrupt(int(frame.data["signal"]))

    def interrupt(self, signum: int) -> None:
        """Stop everything for the user; a second time, at once.

        A terminal that was closed asks for nothing: the run goes on, until `disconnect_s`, if
        all of it has begun.
        """
        if signum == signal.SIGHUP and (self.all_started or not self._detector.owns_run):
            self.hung_up = True
            self.leave()
            return
        self._stop.on_signal(signum)

    def _stop_all(self, reason: str, cause: StopCause = StopCause.PEER) -> None:
        if self._detector.may_stop:
            self._stop.begin(reason, cause=cause)

    def _log_sink(self, name: str) -> Callable[[str, str, int, bytes], None]:
        return lambda source, stream, offset, data: self._observer.log(
            name, source, stream, offset, data
        )
