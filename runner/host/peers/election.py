"""Leader election: the supervisors of a failed attempt choose the one that plans the next attempt.

It is held where no controller is needed. Each supervisor that has ended its part follows the first
voter that lives; one that finds none before it leads. The leader needs more than half of all
supervisors, waits out the pause, asks each for its facts, plans the next attempt, and sends it to
all. By answering, a supervisor votes for this leader and for no other in this attempt, so that no
two leaders can have a majority. One that loses its leader after that takes no part.
"""

from __future__ import annotations

import base64
import json
import socket
import time
import zlib
from typing import (
    Any,
    Collection,
    Dict,
    Mapping,
    NamedTuple,
    Optional,
    Set,
    Type,
    TypeVar,
)

from runner.core.codec import decode, encode, parse_json
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.order import Order
from runner.core.model.run_info import PastAttempt
from runner.core.protocol.timing import HEARTBEAT_S, KILL_TIMEOUT_S
from runner.core.relaunch.handover import AttemptEnd, NextAttempt, RelaunchContext
from runner.host.peers.connection import Identity, PeerConnection
from runner.host.peers.election_links import MAX_PLAN_BYTES, Followers, LeaderSearch
from runner.host.peers.facts_child import TIMEOUT_MARGIN_S, FactsChild
from runner.host.peers.messages import (
    ELECTION_MESSAGES,
    Cancel,
    ElectionHeartbeat,
    FactsMessage,
    NextAttemptMessage,
    no_message,
    parse,
)
from runner.host.process.event_loop import EventLoop

T = TypeVar("T")

MAX_LOST_NAMES = 16  # of lost nodes in a heartbeat: the first line of a connection must be short


class ElectionContext(NamedTuple):
    """What a supervisor needs to take part."""

    handover: RelaunchContext
    facts_request: FactsRequest
    programs: Mapping[str, str]  # see `create_run_folder`


class FactsPoll(NamedTuple):
    """The leader's question for facts: whom it asked, until when, and what they answered."""

    peers: Dict[str, PeerConnection]
    deadline: float
    facts: Dict[str, Facts]


class LeaderElection:
    """One supervisor's part in the election.

    Attributes:
        next_attempt: What follows on this host; None while undecided, or if nothing follows.
        refusal: Why nothing follows on this host; "" while undecided, or if something follows.
        facts_child: The look at this host. Once it was started, this supervisor has voted.
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
        self.next_attempt: Optional[NextAttempt] = None
        self.refusal = ""
        self.facts_child = FactsChild(order, context.facts_request, environ)
        self._order = order
        self._context = context
        voters = context.handover.voters
        subject = f"{order.run_id}/{order.attempt}/voters"
        identity = Identity(order.node, subject, token, MAX_PLAN_BYTES)
        self._followers = Followers(identity, loop, listening_socket, self._on_follower_message)
        rank = [voter.node for voter in voters].index(order.node)
        self._leader_search = LeaderSearch(identity, loop, voters[:rank], self._on_leader_message)
        self._leader_active = False
        self._next_heartbeat = 0.0
        self._attempt_started_at = time.monotonic()
        self._ended_at = 0.0
        self._end: Optional[AttemptEnd] = None
        self._lost_by_others: Set[str] = set()
        self._failed_at: Dict[str, float] = {}  # by node
        self._poll: Optional[FactsPoll] = None

    @property
    def is_decided(self) -> bool:
        """Whether it is known what follows on this host."""
        return self.next_attempt is not None or bool(self.refusal)

    @property
    def was_held(self) -> bool:
        """Whether this supervisor takes part, or did."""
        return self._end is not None

    @property
    def leads(self) -> bool:
        """Whether this supervisor decides, or did: no other led when it was decided."""
        return self._end is not None and self._leader_search.exhausted

    def start(self, end: AttemptEnd) -> None:
        """Take part: nothing of the attempt is left here."""
        self._end = end
        self._ended_at = time.monotonic()
        if end.failed_at is not None and not end.is_stall:  # a stall shows everywhere
            self._failed_at[self._order.node] = end.failed_at

    def withdraw(self, reason: str) -> None:
        """Take no part any more; the others may go on."""
        if not self.is_decided:
            self.refusal = reason

    def cancel(self, reason: str) -> None:
        """Have no attempt follow on any host."""
        if not self.is_decided:
            self._followers.broadcast(type="cancel", reason=reason)
            if self._leader_search.leader is not None:
                self._leader_search.leader.send(type="cancel", reason=reason)
                self._leader_search.is_over = True
            self.refusal = reason

    def tick(self) -> None:
        """Exchange heartbeats, and take the next step."""
        now = time.monotonic()
        heartbeat_due = now >= self._next_heartbeat
        if heartbeat_due:
            self._next_heartbeat = now + HEARTBEAT_S
        heartbeat = {"type": "heartbeat", "is_leader": self.leads} if heartbeat_due else None
        self._followers.tick(heartbeat, self._peer_timeout_s)
        if self._end is None or self.is_decided:
            return
        if self._withdraw_without_leader():
            return
        previous_leader = self._leader_search.leader
        heartbeat = self._follower_heartbeat(self._end) if heartbeat_due else None
        self._leader_search.tick(heartbeat, self._peer_timeout_s, self._end.lost_nodes)
        if self._withdraw_without_leader():  # a voter never leads: its leader may have decided
            return
        if previous_leader is not self._leader_search.leader:
            self._next_heartbeat = 0.0
            self._leader_active = False
        self._pass_on_facts()
        if self._leader_search.exhausted:
            self._lead(now, self._end)
        elif not self._leader_active and now > self._ended_at + self._gather_timeout_s:
            self.withdraw("no supervisor decided about it in time")

    def _withdraw_without_leader(self) -> bool:
        """Withdraw a vote whose leader was lost; return whether there was one."""
        has_voted = self.facts_child.started and self._poll is None
        if has_voted and self._leader_search.leader_lost:
            self.withdraw("its leader was lost before it decided")
            return True
        return False

    def close(self) -> None:
        """Close all connections, and release the ports if nothing follows here."""
        self.facts_child.kill()
        self._followers.close()
        self._leader_search.close()
        if self.next_attempt is None:
            self.facts_child.keep_ports(None)

    @property
    def _peer_timeout_s(self) -> float:
        return max(self._context.handover.spec.lost_s, KILL_TIMEOUT_S + TIMEOUT_MARGIN_S)

    @property
    def _gather_timeout_s(self) -> float:
        """How long others may take to notice the end, and to end their part."""
        lost_s = self._context.handover.spec.lost_s
        return lost_s + self._order.grace_s + KILL_TIMEOUT_S + TIMEOUT_MARGIN_S

    def _pass_on_facts(self) -> None:
        facts = self.facts_child.poll()
        if facts is None:
            return
        if self._leader_search.leader is not None:
            self._leader_search.leader.send(type="facts", facts=compress_json(encode(facts)))
        elif self._poll is not None:
            self._poll.facts[self._order.node] = facts

    def _adopt(self, next_attempt: NextAttempt) -> None:
        order = next_attempt.orders.orders.get(self._order.node)
        if order is None:
            self.withdraw("the run goes on without this node")
        elif not self.is_decided:
            self.next_attempt = next_attempt
            self.facts_child.keep_ports(order)

    # As a follower

    def _follower_heartbeat(self, end: AttemptEnd) -> Dict[str, Any]:
        failed_at = self._failed_at.get(self._order.node)
        age_s = None if failed_at is None else time.monotonic() - failed_at
        lost_nodes = sorted(end.lost_nodes)[:MAX_LOST_NAMES]
        return {"type": "heartbeat", "failure_age_s": age_s, "lost": lost_nodes}

    def _on_leader_message(self, _: PeerConnection, data: Dict[str, Any]) -> None:
        message = parse(ELECTION_MESSAGES, data)
        if self.is_decided:
            return
        if isinstance(message, ElectionHeartbeat):
            self._leader_active = self._leader_active or message.is_leader
        elif isinstance(message, FactsMessage) and not self.facts_child.started:
            self.facts_child.start()
        elif isinstance(message, NextAttemptMessage):
            self._adopt(_unpack(NextAttempt, message.next_attempt))
        elif isinstance(message, Cancel):
            self.refusal = message.reason
        self._leader_search.is_over = self.is_decided

    # As the leader

    def _on_follower_message(self, peer: PeerConnection, data: Dict[str, Any]) -> None:
        message = parse(ELECTION_MESSAGES, data)
        if isinstance(message, ElectionHeartbeat):
            self._lost_by_others |= {*message.lost} - {self._order.node}
            if message.failure_age_s is not None:
                self._failed_at[peer.name] = time.monotonic() - message.failure_age_s
        elif isinstance(message, FactsMessage) and self._poll is not None:
            self._poll.facts[peer.name] = _unpack(Facts, message.facts)
        elif isinstance(message, Cancel):
            self.cancel(message.reason)

    def _lead(self, now: float, end: AttemptEnd) -> None:
        poll = self._poll
        followers = self._followers.authenticated
        if poll is not None:
            present = {name for name, peer in poll.peers.items() if followers.get(name) is peer}
            answering = {self._order.node, *present}  # were asked, and have not left since
            if answering <= poll.facts.keys() or now > poll.deadline:
                self._decide(end, {name: poll.facts[name] for name in answering & {*poll.facts}})
            return
        present = {self._order.node, *followers}
        voters = {voter.node for voter in self._context.handover.voters}
        all_accounted_for = voters <= present | {*end.lost_nodes} | self._lost_by_others
        if not all_accounted_for and now <= self._ended_at + self._gather_timeout_s:
            return
        missing = self._missing_quorum(present)
        if missing:
            self.cancel(missing)
        elif now >= self._ended_at + self._pause_s:
            limit_s = self._context.facts_request.tools_limit_s + 2 * TIMEOUT_MARGIN_S
            self._poll = FactsPoll(dict(followers), now + limit_s, {})
            self._followers.broadcast(type="facts")
            self.facts_child.start()

    def _missing_quorum(self, supporters: Collection[str]) -> str:
        handover = self._context.handover
        if handover.has_quorum(supporters):
            return ""
        in_touch = f"{len(supporters)} of {len(handover.voters)} supervisors are in touch"
        return f"only {in_touch}: it takes more than half of them"

    @property
    def _pause_s(self) -> float:
        spec = self._context.handover.spec
        return spec.relaunch.delay_s(max(1, spec.relaunch.max - self._order.relaunches_left + 1))

    def _decide(self, end: AttemptEnd, facts: Mapping[str, Facts]) -> None:
        try:
            next_attempt = self._plan(end, facts)
        except NotReady as error:
            self.cancel("; ".join(str(problem) for problem in error.problems))
            return
        packed = compress_json(encode(next_attempt))
        self._followers.broadcast(type="next_attempt", next_attempt=packed)
        self._adopt(next_attempt)

    def _plan(self, end: AttemptEnd, facts: Mapping[str, Facts]) -> NextAttempt:
        # Imported here since only a leader needs the planner.
        from runner.core.relaunch.next_attempt import plan_next_attempt  # noqa: PLC0415

        missing = self._missing_quorum(facts.keys())
        if missing:
            raise NotReady([Problem("", missing)])
        for name, node_facts in facts.items():
            if node_facts.run_stopped:
                raise NotReady([Problem("", f"a stop was requested on {name}")])
        order = self._order
        handover = self._context.handover
        nodes = tuple(node.name for node in handover.spec.nodes)
        unverified = tuple(name for name in nodes if name not in facts)
        seconds = self._ended_at - self._attempt_started_at
        past_attempt = PastAttempt(order.attempt, nodes, end.reason, seconds, unverified)
        # What failed elsewhere after the first failure may be a consequence.
        first = tuple(sorted(self._failed_at, key=lambda name: self._failed_at[name])[:1])
        return plan_next_attempt(handover, past_attempt, order.relaunches_left - 1, facts, first)


def compress_json(data: Any) -> str:
    """Return JSON data as a short text."""
    return base64.b85encode(zlib.compress(json.dumps(data).encode())).decode()


def _unpack(cls: Type[T], text: str) -> T:
    """Return the object whose data `compress_json` took; raise PeerDisconnected."""
    try:
        return decode(cls, parse_json(zlib.decompress(base64.b85decode(text))))
    except (ValueError, zlib.error) as error:
        raise no_message(error) from error
