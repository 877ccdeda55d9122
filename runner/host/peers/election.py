"""How the hosts start a run once more by themselves, once no controller is needed any more.

Each supervisor that has ended its part of a failed attempt follows the first voter that lives; who
finds none before it leads. The leader needs more than half of all supervisors, waits out the
pause, asks each what its host is now, plans the next attempt, and hands out the orders. With what
its host is, a supervisor gives its word: it follows nobody else in this attempt, so that no two
leaders can have a majority. Whose leader is lost after that takes no part.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import time
import zlib
from dataclasses import replace
from typing import Any, Collection, Dict, Mapping, NamedTuple, Optional, Set, Tuple

from runner.core.codec import decode, encode
from runner.core.errors import NotReady
from runner.core.model.facts import MANAGED_ENV, Facts, FactsRequest
from runner.core.model.order import Order
from runner.core.model.past import PastAttempt
from runner.core.protocol.paths import RunPaths
from runner.core.relaunch.handover import RelaunchContext, Voter, has_quorum, plan_next_attempt
from runner.core.relaunch.policy import relaunch_delay_s
from runner.host.facts import ports
from runner.host.facts.collect import collect
from runner.host.peers.connection import Identity, PeerConnection
from runner.host.peers.election_links import MAX_PLAN_BYTES, Followers, LeaderSearch
from runner.host.peers.group import HEARTBEAT_S
from runner.host.process import bounded_child
from runner.host.process.event_loop import EventLoop
from runner.host.process.kill import KILL_TIMEOUT_S

DEADLINE_MARGIN_S = 10.0
"""What a look at a host, or the end of its part, may take beyond its own deadlines."""

MAX_LOST_NAMES = 16
"""So many lost nodes are told: a stranger's first words have to be short."""


class ElectionContext(NamedTuple):
    """What a supervisor needs to take part.

    Attributes:
        handover: The run as it was asked for.
        facts_request: What is to be known of this host.
        programs: The texts of what becomes a file in a run folder (see `records.prepare`).
    """

    handover: RelaunchContext
    facts_request: FactsRequest
    programs: Mapping[str, str]


class Decision(NamedTuple):
    """What became of it.

    Attributes:
        reason: Why the run starts once more, or why it does not.
        order: What this supervisor is to do in the next attempt; None for nothing.
        handover: For the attempt after it.
        record: What is on record of the whole run (see `records.prepare`).
    """

    reason: str
    order: Optional[Order] = None
    handover: Optional[RelaunchContext] = None
    record: Mapping[str, Any] = {}


class LeaderElection:
    """One supervisor's part in it.

    Attributes:
        decision: What became of it; None so far.
        reserved_ports: The ports reserved for the next attempt here.
    """

    def __init__(
        self,
        order: Order,
        context: ElectionContext,
        environ: Dict[str, str],
        listening_socket: Optional[socket.socket],
        token: bytes,
        loop: EventLoop,
    ) -> None:
        self.decision: Optional[Decision] = None
        self.reserved_ports = ports.NO_PORTS
        self._order, self._context, self._environ = order, context, environ
        self._voters = context.handover.voters
        names = [voter.node for voter in self._voters]
        subject = f"{order.run_id}/{order.attempt}/voters"
        identity = Identity(order.node, subject, token, MAX_PLAN_BYTES)
        self._followers = Followers(identity, loop, listening_socket, self._on_follower_message)
        self._leader_search = LeaderSearch(
            *(identity, loop), self._voters[: names.index(order.node)], self._on_leader_message
        )
        self._next_heartbeat = 0.0
        self._attempt_started_at, self._attempt_seconds = time.monotonic(), 0.0
        self._started_at: Optional[float] = None
        self._reason = ""
        self._lost_nodes: Set[str] = set()
        self._lost_by_others: Set[str] = set()
        self._failed_at: Dict[str, float] = {}  # when, by node
        self._voted = self._leader_active = False
        self._facts_child: Optional[bounded_child.BoundedChild] = None
        self._polled: Dict[str, PeerConnection] = {}
        self._answer_deadline: Optional[float] = None
        self._facts: Dict[str, Facts] = {}

    @property
    def relaunch_on_stall(self) -> bool:
        """Whether a run that was stopped because nothing moved is to start once more."""
        return self._context.handover.spec.relaunch_on_stall

    def start(self, reason: str, failed_at: Optional[float], lost_nodes: Set[str]) -> None:
        """Nothing of the attempt is left here, which failed for that reason.

        Args:
            reason: Why it failed.
            failed_at: When something failed here, monotonic; None for never.
            lost_nodes: The nodes that were lost.
        """
        self._started_at, self._reason, self._lost_nodes = time.monotonic(), reason, set(lost_nodes)
        self._attempt_seconds = self._started_at - self._attempt_started_at
        if failed_at is not None:  # others may have told of theirs already
            self._failed_at[self._order.node] = failed_at

    def withdraw(self, reason: str) -> None:
        """Take no part any more; the others may go on."""
        if self.decision is None:
            self.decision = Decision(reason)

    def cancel(self, reason: str) -> None:
        """Have the run not start once more; tell the others."""
        if self.decision is None:
            self._followers.broadcast(type="cancel", reason=reason)
            if self._leader_search.leader is not None:
                self._leader_search.leader.send(type="cancel", reason=reason)
            self.decision = Decision(reason)

    def tick(self) -> None:
        """Look after the connections, and go on."""
        now = time.monotonic()
        heartbeat_due = now >= self._next_heartbeat
        if heartbeat_due:
            self._next_heartbeat = now + HEARTBEAT_S
        is_leader = self._started_at is not None and self._leader_search.exhausted
        self._followers.tick(
            {"type": "heartbeat", "is_leader": is_leader} if heartbeat_due else None,
            self._peer_timeout_s,
        )
        if self._started_at is None or self.decision is not None:
            return
        previous_leader = self._leader_search.leader
        self._leader_search.tick(
            self._heartbeat if heartbeat_due else None, self._peer_timeout_s, self._lost_nodes
        )
        if previous_leader is not self._leader_search.leader:
            self._next_heartbeat = 0.0
            self._leader_active = False
            if self._voted:
                self.withdraw("who decided about it was lost meanwhile")
                return
        self._poll_facts_child()
        if self._leader_search.exhausted:
            self._lead(now, self._started_at)
        elif not self._leader_active and now > self._started_at + self._gather_timeout_s:
            self.withdraw("nobody decided about it in time")

    def close(self) -> None:
        """Part with the others."""
        if self._facts_child is not None:
            self._facts_child.kill()
        self._followers.close()
        self._leader_search.close()
        if self.decision is None or self.decision.order is None:
            self.reserved_ports.close()

    @property
    def _heartbeat(self) -> Dict[str, Any]:
        lost_nodes = sorted(self._lost_nodes)[:MAX_LOST_NAMES]
        failed_at = self._failed_at.get(self._order.node)
        age_s = None if failed_at is None else time.monotonic() - failed_at
        return {"type": "heartbeat", "failure_age_s": age_s, "lost": lost_nodes}

    @property
    def _lost_s(self) -> float:
        return self._context.handover.spec.lost_s

    @property
    def _peer_timeout_s(self) -> float:
        return max(self._lost_s, KILL_TIMEOUT_S + DEADLINE_MARGIN_S)

    @property
    def _gather_timeout_s(self) -> float:
        """How long others may take to notice the end, and to end their part."""
        return self._lost_s + self._order.grace_s + KILL_TIMEOUT_S + DEADLINE_MARGIN_S

    # As one who follows

    def _on_leader_message(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if self.decision is not None:
            return
        if kind == "heartbeat":
            self._leader_active = self._leader_active or bool(message.get("is_leader"))
        elif kind == "facts" and not self._voted:
            self._voted = True
            self._start_facts_child()
        elif kind == "order" and self._voted:
            payload = decompress_json(message["assignment"])
            self._adopt_order(str(message["reason"]), payload)
        elif kind == "cancel":
            self.decision = Decision(str(message["reason"]))
        del peer

    def _adopt_order(self, reason: str, payload: Dict[str, Any]) -> None:
        order = decode(Order, payload["order"])
        handover = decode(RelaunchContext, payload["handover"])
        self.decision = Decision(reason, order, handover, payload["record"])
        self.reserved_ports = _keep_needed_ports(self.reserved_ports, order)

    # What this host is now

    def _start_facts_child(self) -> None:
        """Hold the ports ourselves; all that may hang is done by a child."""
        request = self._context.facts_request
        first, last = request.port_first, request.port_last
        self.reserved_ports, self._port_error = ports.reserve_ports(
            first, last, store=True, hub=True
        )
        if len(self._voters) > 1:
            self.reserved_ports = self.reserved_ports._replace(
                voter=ports.reserve_extra(first, last)
            )
        environ = self._environ
        limit_s = request.tool_timeout_s + DEADLINE_MARGIN_S
        order = self._order
        stop_marker = RunPaths(order.workdir, order.run_id, order.node).stop_marker
        self._facts_child = bounded_child.BoundedChild(
            lambda: _report_facts(request, environ, stop_marker), limit_s
        )

    def _poll_facts_child(self) -> None:
        if self._facts_child is None:
            return
        self._facts_child.advance()
        if self._facts_child.code is None:
            return
        reply, self._facts_child = self._facts_child.report(), None
        if "facts" not in reply:
            return  # the leader gives us up
        facts = replace(
            decode(Facts, reply["facts"]),
            reserved_port=self.reserved_ports.store_port,
            hub_port=self.reserved_ports.hub_port,
            vote_port=self.reserved_ports.voter_port,
            port_error=self._port_error,
        )
        if self._leader_search.leader is not None:
            self._leader_search.leader.send(type="facts", facts=compress_json(encode(facts)))
        else:
            self._facts[self._order.node] = facts

    # As the one who leads

    def _on_follower_message(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "heartbeat":
            self._lost_by_others |= set(message["lost"]) - {self._order.node}
            if message["failure_age_s"] is not None:
                self._failed_at[peer.name] = time.monotonic() - float(message["failure_age_s"])
        elif kind == "facts":
            self._facts[peer.name] = decode(Facts, decompress_json(message["facts"]))
        elif kind == "cancel":
            self.cancel(str(message["reason"]))

    def _lead(self, now: float, started_at: float) -> None:
        if self._answer_deadline is not None:
            unanswered = {self._order.node, *self._answering} - self._facts.keys()
            if not unanswered or now > self._answer_deadline:
                self._plan()
            return
        present = {self._order.node, *self._followers.authenticated}
        all_accounted_for = {
            voter.node for voter in self._voters
        } <= present | self._lost_nodes | self._lost_by_others
        timed_out = now > started_at + self._gather_timeout_s
        if not all_accounted_for and not timed_out:
            return
        if not has_quorum(self._voters, present):
            self.cancel(
                f"only {_quorum_text(present, self._voters)}: it takes more than half of them"
            )
        elif now >= started_at + self._pause_s:
            self._request_facts(now)

    @property
    def _first_failed(self) -> Tuple[str, ...]:
        """The node on which it failed first: what failed elsewhere after that may be its fault."""
        return tuple(sorted(self._failed_at, key=lambda name: self._failed_at[name])[:1])

    @property
    def _pause_s(self) -> float:
        spec = self._context.handover.spec
        return relaunch_delay_s(spec, max(1, spec.relaunch.max - self._order.relaunches_left + 1))

    @property
    def _answering(self) -> Dict[str, PeerConnection]:
        """Those who were asked, and have not left since."""
        followers = self._followers.authenticated
        return {name: peer for name, peer in self._polled.items() if followers.get(name) is peer}

    def _request_facts(self, now: float) -> None:
        self._voted = True
        self._polled = dict(self._followers.authenticated)
        for peer in self._polled.values():
            peer.send(type="facts")
        self._start_facts_child()
        self._answer_deadline = (
            now + self._context.facts_request.tool_timeout_s + 2 * DEADLINE_MARGIN_S
        )

    def _plan(self) -> None:
        """Decide, and tell everybody."""
        answering = {self._order.node, *self._answering}
        facts = {name: data for name, data in self._facts.items() if name in answering}
        if not has_quorum(self._voters, facts):
            self.cancel(
                f"only {_quorum_text(facts, self._voters)}: it takes more than half of them"
            )
            return
        if stopped := [name for name, data in facts.items() if data.run_stopped]:
            self.cancel(f"somebody told the run to stop on {stopped[0]}")
            return
        order, handover_before = self._order, self._context.handover
        nodes = tuple(node.name for node in handover_before.spec.nodes)
        unverified = tuple(name for name in nodes if name not in facts)
        past_attempt = PastAttempt(
            order.attempt, nodes, self._reason, self._attempt_seconds, unverified
        )
        try:
            upcoming = plan_next_attempt(
                handover_before, past_attempt, order.relaunches_left - 1, facts, self._first_failed
            )
        except NotReady as error:
            self.cancel("; ".join(str(problem) for problem in error.problems))
            return
        plan, handover = upcoming.attempt_orders.plan, upcoming.context
        record = {
            "info": encode(handover.info),
            "plan": encode(plan),
            "config": handover.config_yaml,
        }
        data = {"record": record, "handover": encode(handover)}
        for name, node_order in upcoming.attempt_orders.orders.items():
            if name == order.node:
                self._adopt_order(self._reason, {**data, "order": encode(node_order)})
            else:
                payload = compress_json({**data, "order": encode(node_order)})
                self._polled[name].send(type="order", reason=self._reason, assignment=payload)
        self._followers.broadcast(
            type="cancel", reason="it goes on without this node"
        )  # after an order: late
        if self.decision is None:
            self.decision = Decision("it goes on without this node")


def _quorum_text(supporters: Collection[str], voters: Collection[Voter]) -> str:
    return f"{len(supporters)} of {len(voters)} supervisors are in touch"


def _keep_needed_ports(reserved: ports.ReservedPorts, order: Order) -> ports.ReservedPorts:
    """Let go of the ports that are others' task now."""
    keeps_hub = order.hub is not None and order.hub.node == order.node
    keeps_store = order.reserve_port != 0 and order.reserve_port == reserved.store_port
    needed = ports.ReservedPorts(
        reserved.store if keeps_store else None,
        reserved.hub if keeps_hub else None,
        reserved.voter if order.voter_count else None,
    )
    for sock in reserved:
        if sock is not None and sock not in needed:
            sock.close()
    return needed


def _report_facts(request: FactsRequest, environ: Dict[str, str], stop_marker: str) -> None:
    """Tell what this host is, as seen from the environment that its setup left at the launch."""
    os.environ.clear()
    os.environ.update(environ)
    local_request = replace(
        request, setup=(), reserve_port=False, reserve_hub_port=False, reserve_vote_port=False
    )
    facts = collect(local_request).facts
    own_env = {name: environ[name] for name in MANAGED_ENV if name in environ}
    run_stopped = os.path.lexists(stop_marker)
    bounded_child.report_facts(
        facts=encode(replace(facts, preset_env=own_env, run_stopped=run_stopped))
    )


def compress_json(data: Any) -> str:
    """Return JSON data as a short text."""
    return base64.b85encode(zlib.compress(json.dumps(data).encode())).decode()


def decompress_json(text: str) -> Any:
    """Return what `compress_json` took."""
    return json.loads(zlib.decompress(base64.b85decode(text)))
