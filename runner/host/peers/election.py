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
from runner.core.model.facts import OUR_ENV, Facts, FactsRequest
from runner.core.model.order import Order
from runner.core.model.past import Past
from runner.core.protocol.paths import RunFolder
from runner.core.relaunch.handover import Handover, Voter, majority, next_attempt
from runner.core.relaunch.policy import pause_s
from runner.host.facts import ports
from runner.host.facts.collect import collect
from runner.host.peers.connection import Peer
from runner.host.peers.election_links import Callers, Ring, Search
from runner.host.peers.group import BEAT_S
from runner.host.process import bounded_child
from runner.host.process.kill import KILL_S

MARGIN_S = 10.0
"""What a look at a host, or the end of its part, may take beyond its own deadlines."""

NAMED = 16
"""So many lost nodes are told: a stranger's first words have to be short."""


class Means(NamedTuple):
    """What a supervisor needs to take part.

    Attributes:
        handover: The run as it was asked for.
        request: What is to be known of this host.
        programs: The texts of what becomes a file in a run folder (see `records.prepare`).
    """

    handover: Handover
    request: FactsRequest
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
    handover: Optional[Handover] = None
    record: Mapping[str, Any] = {}


class Election:
    """One supervisor's part in it.

    Attributes:
        decision: What became of it; None so far.
        held: The ports reserved for the next attempt here.
    """

    def __init__(
        self,
        order: Order,
        means: Means,
        environ: Dict[str, str],
        listener: Optional[socket.socket],
        ring: Ring,
    ) -> None:
        self.decision: Optional[Decision] = None
        self.held = ports.NOTHING_HELD
        self._order, self._means, self._environ = order, means, environ
        self._voters = means.handover.voters
        names = [voter.node for voter in self._voters]
        self._callers = Callers(ring, listener, self._called)
        self._search = Search(ring, self._voters[: names.index(order.node)], self._told)
        self._next_beat = 0.0
        self._since, self._seconds = time.monotonic(), 0.0
        self._began: Optional[float] = None
        self._reason = ""
        self._lost: Set[str] = set()
        self._lost_to_others: Set[str] = set()
        self._failed: Dict[str, float] = {}  # when, by node
        self._promised = self._led = False
        self._look: Optional[bounded_child.Child] = None
        self._asked: Dict[str, Peer] = {}
        self._answer_by: Optional[float] = None
        self._facts: Dict[str, Facts] = {}

    @property
    def restarts_stalled(self) -> bool:
        """Whether a run that was stopped because nothing moved is to start once more."""
        return self._means.handover.spec.stall_restarts

    def begin(self, reason: str, failed: Optional[float], lost: Set[str]) -> None:
        """Nothing of the attempt is left here, which failed for that reason.

        Args:
            reason: Why it failed.
            failed: When something failed here, monotonic; None for never.
            lost: The nodes that were lost.
        """
        self._began, self._reason, self._lost = time.monotonic(), reason, set(lost)
        self._seconds = self._began - self._since
        if failed is not None:  # others may have told of theirs already
            self._failed[self._order.node] = failed

    def give_up(self, reason: str) -> None:
        """Take no part any more; the others may go on."""
        if self.decision is None:
            self.decision = Decision(reason)

    def end(self, reason: str) -> None:
        """Have the run not start once more; tell the others."""
        if self.decision is None:
            self._callers.say(say="end", reason=reason)
            if self._search.found is not None:
                self._search.found.say(say="end", reason=reason)
            self.decision = Decision(reason)

    def tick(self) -> None:
        """Look after the connections, and go on."""
        now = time.monotonic()
        due = now >= self._next_beat
        if due:
            self._next_beat = now + BEAT_S
        leads = self._began is not None and self._search.over
        self._callers.tick({"say": "here", "leads": leads} if due else None, self._patience_s)
        if self._began is None or self.decision is not None:
            return
        followed = self._search.found
        self._search.tick(self._beat if due else None, self._patience_s, self._lost)
        if followed is not self._search.found:
            self._next_beat = 0.0
            self._led = False
            if self._promised:
                self.give_up("who decided about it was lost meanwhile")
                return
        self._take_look()
        if self._search.over:
            self._lead(now, self._began)
        elif not self._led and now > self._began + self._wait_s:
            self.give_up("nobody decided about it in time")

    def close(self) -> None:
        """Part with the others."""
        if self._look is not None:
            self._look.kill()
        self._callers.close()
        self._search.close()
        if self.decision is None or self.decision.order is None:
            self.held.close()

    @property
    def _beat(self) -> Dict[str, Any]:
        lost = sorted(self._lost)[:NAMED]
        failed = self._failed.get(self._order.node)
        age = None if failed is None else time.monotonic() - failed
        return {"say": "here", "failed": age, "lost": lost}

    @property
    def _lost_s(self) -> float:
        return self._means.handover.spec.lost_s

    @property
    def _patience_s(self) -> float:
        return max(self._lost_s, KILL_S + MARGIN_S)

    @property
    def _wait_s(self) -> float:
        """How long others may take to notice the end, and to end their part."""
        return self._lost_s + self._order.grace_s + KILL_S + MARGIN_S

    # As one who follows

    def _told(self, peer: Peer, message: Dict[str, Any]) -> None:
        word = message["say"]
        if self.decision is not None:
            return
        if word == "here":
            self._led = self._led or bool(message.get("leads"))
        elif word == "facts" and not self._promised:
            self._promised = True
            self._begin_look()
        elif word == "order" and self._promised:
            told = unpacked(message["what"])
            self._decide(str(message["reason"]), told)
        elif word == "end":
            self.decision = Decision(str(message["reason"]))
        del peer

    def _decide(self, reason: str, told: Dict[str, Any]) -> None:
        order = decode(Order, told["order"])
        handover = decode(Handover, told["handover"])
        self.decision = Decision(reason, order, handover, told["record"])
        self.held = _kept(self.held, order)

    # What this host is now

    def _begin_look(self) -> None:
        """Hold the ports ourselves; all that may hang is done by a child."""
        request = self._means.request
        first, last = request.port_first, request.port_last
        self.held, self._port_error = ports.hold(first, last, store=True, hub=True)
        if len(self._voters) > 1:
            self.held = self.held._replace(voter=ports.hold_beside(first, last))
        environ = self._environ
        limit_s = request.deadline_s + MARGIN_S
        order = self._order
        stopped = RunFolder(order.workdir, order.run_id, order.node).stopped
        self._look = bounded_child.Child(lambda: _report(request, environ, stopped), limit_s)

    def _take_look(self) -> None:
        if self._look is None:
            return
        self._look.advance()
        if self._look.code is None:
            return
        told, self._look = self._look.told(), None
        if "facts" not in told:
            return  # the leader gives us up
        facts = replace(
            decode(Facts, told["facts"]),
            held_port=self.held.port,
            hub_port=self.held.hub_port,
            vote_port=self.held.vote_port,
            port_error=self._port_error,
        )
        if self._search.found is not None:
            self._search.found.say(say="facts", facts=packed(encode(facts)))
        else:
            self._facts[self._order.node] = facts

    # As the one who leads

    def _called(self, peer: Peer, message: Dict[str, Any]) -> None:
        word = message["say"]
        if word == "here":
            self._lost_to_others |= set(message["lost"]) - {self._order.node}
            if message["failed"] is not None:
                self._failed[peer.name] = time.monotonic() - float(message["failed"])
        elif word == "facts":
            self._facts[peer.name] = decode(Facts, unpacked(message["facts"]))
        elif word == "end":
            self.end(str(message["reason"]))

    def _lead(self, now: float, began: float) -> None:
        if self._answer_by is not None:
            awaited = {self._order.node, *self._there} - self._facts.keys()
            if not awaited or now > self._answer_by:
                self._plan()
            return
        present = {self._order.node, *self._callers.known}
        everybody = {
            voter.node for voter in self._voters
        } <= present | self._lost | self._lost_to_others
        late = now > began + self._wait_s
        if not everybody and not late:
            return
        if not majority(self._voters, present):
            self.end(f"only {_few(present, self._voters)}: it takes more than half of them")
        elif now >= began + self._pause_s:
            self._ask(now)

    @property
    def _suspect(self) -> Tuple[str, ...]:
        """The node on which it failed first: what failed elsewhere after that may be its fault."""
        return tuple(sorted(self._failed, key=lambda name: self._failed[name])[:1])

    @property
    def _pause_s(self) -> float:
        spec = self._means.handover.spec
        return pause_s(spec, max(1, spec.relaunch.max - self._order.relaunches + 1))

    @property
    def _there(self) -> Dict[str, Peer]:
        """Those who were asked, and have not left since."""
        known = self._callers.known
        return {name: peer for name, peer in self._asked.items() if known.get(name) is peer}

    def _ask(self, now: float) -> None:
        self._promised = True
        self._asked = dict(self._callers.known)
        for peer in self._asked.values():
            peer.say(say="facts")
        self._begin_look()
        self._answer_by = now + self._means.request.deadline_s + 2 * MARGIN_S

    def _plan(self) -> None:
        """Decide, and tell everybody."""
        there = {self._order.node, *self._there}
        facts = {name: told for name, told in self._facts.items() if name in there}
        if not majority(self._voters, facts):
            self.end(f"only {_few(facts, self._voters)}: it takes more than half of them")
            return
        if stopped := [name for name, told in facts.items() if told.run_stopped]:
            self.end(f"somebody told the run to stop on {stopped[0]}")
            return
        order, now = self._order, self._means.handover
        nodes = tuple(node.name for node in now.spec.nodes)
        unproven = tuple(name for name in nodes if name not in facts)
        ended = Past(order.attempt, nodes, self._reason, self._seconds, unproven)
        try:
            made = next_attempt(now, ended, order.relaunches - 1, facts, self._suspect)
        except NotReady as error:
            self.end("; ".join(str(problem) for problem in error.problems))
            return
        plan, handover = made.roster.plan, made.handover
        record = {
            "info": encode(handover.info),
            "plan": encode(plan),
            "config": handover.config,
        }
        told = {"record": record, "handover": encode(handover)}
        for name, each in made.roster.orders.items():
            if name == order.node:
                self._decide(self._reason, {**told, "order": encode(each)})
            else:
                what = packed({**told, "order": encode(each)})
                self._asked[name].say(say="order", reason=self._reason, what=what)
        self._callers.say(say="end", reason="it goes on without this node")  # after an order: late
        if self.decision is None:
            self.decision = Decision("it goes on without this node")


def _few(present: Collection[str], voters: Collection[Voter]) -> str:
    return f"{len(present)} of {len(voters)} supervisors are in touch"


def _kept(held: ports.Held, order: Order) -> ports.Held:
    """Let go of the ports that are others' task now."""
    hub = order.hub is not None and order.hub.node == order.node
    store = order.hold_port != 0 and order.hold_port == held.port
    kept = ports.Held(
        held.store if store else None,
        held.hub if hub else None,
        held.voter if order.voters else None,
    )
    for each in held:
        if each is not None and each not in kept:
            each.close()
    return kept


def _report(request: FactsRequest, environ: Dict[str, str], stopped: str) -> None:
    """Tell what this host is, as seen from the environment that its setup left at the launch."""
    os.environ.clear()
    os.environ.update(environ)
    asked = replace(request, setup=(), hold_port=False, hold_hub=False, hold_vote=False)
    facts = collect(asked).facts
    own = {name: environ[name] for name in OUR_ENV if name in environ}
    told_to_stop = os.path.lexists(stopped)
    bounded_child.tell(facts=encode(replace(facts, own_env=own, run_stopped=told_to_stop)))


def packed(data: Any) -> str:
    """Return JSON data as a short text."""
    return base64.b85encode(zlib.compress(json.dumps(data).encode())).decode()


def unpacked(text: str) -> Any:
    """Return what `packed` took."""
    return json.loads(zlib.decompress(base64.b85decode(text)))
