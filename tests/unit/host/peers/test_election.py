"""Leader election among supervisors in one process, over the loopback interface."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Order
from runner.core.model.release import CodeRef
from runner.core.model.spec import Relaunch
from runner.core.protocol.events import StopCause
from runner.core.relaunch.handover import AttemptEnd, Voter, relaunch_context, run_info
from runner.host.peers import election as election_module
from runner.host.peers import election_links
from runner.host.peers.election import ElectionContext, LeaderElection
from runner.host.process.event_loop import EventLoop
from tests.unit.core.relaunch.test_handover import asked, enrolled, told


class PreparedFacts:
    """The look at a host, whose outcome is known."""

    def __init__(self, order: Order, *_: object) -> None:
        self.started = False
        self.kept: Order | None = None
        self._node = order.node
        self._reply: Facts | None = None

    def start(self) -> None:
        """Look."""
        self.started = True
        self._reply = told("abcd")[self._node]

    def poll(self) -> Facts | None:
        """Return the facts, once."""
        reply, self._reply = self._reply, None
        return reply

    def keep_ports(self, order: Order | None) -> None:
        """Remember what for."""
        self.kept = order

    def kill(self) -> None:
        """End the look."""


class Scene:
    """The supervisors of one attempt, each with its part in the election."""

    def __init__(self, nodes: str, spares: str = "", token: bytes = b"token") -> None:
        spec = replace(asked(nodes, spares), relaunch=Relaunch(2, 0.0))
        made = enrolled(spec, told(nodes + spares))
        self.loop = EventLoop()
        sockets = {name: socket.socket() for name in nodes + spares}
        voters = []
        for name, sock in sockets.items():
            sock.bind(("127.0.0.1", 0))
            voters.append(Voter(name, "127.0.0.1", sock.getsockname()[1]))
        info = run_info(made.plan, "ada@desk", 0.0, (), 2)
        context = relaunch_context(spec, CodeRef(), info, "a: 1\n", tuple(voters))
        host_context = ElectionContext(context, FactsRequest(""), {})
        self.parts = {
            name: LeaderElection(
                made.orders[name], host_context, {}, sockets[name], token, self.loop
            )
            for name in sockets
        }

    def end(self, node: str, failed_at: float | None = None, lost: str = "") -> None:
        """Have a supervisor end its part of the attempt."""
        reason = f"rank 0 on {node} exited with 3"
        end = AttemptEnd(
            reason,
            StopCause.PEER,
            failed_at,
            lost_nodes=set(lost),
            joined_hub=True,
            detach_agreed=True,
        )
        self.parts[node].start(end)

    def until(self, condition: Callable[[], object], seconds: float = 5) -> None:
        """Let them talk until a condition holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, {n: vars(p) for n, p in self.parts.items()}
            self.loop.wait(0.01)
            for part in self.parts.values():
                part.tick()

    def until_decided(self, nodes: str) -> None:
        """Let them talk until each of them knows what follows."""
        self.until(lambda: all(self.parts[name].is_decided for name in nodes))

    def next_nodes(self, node: str) -> list[str]:
        """Return the nodes of the next attempt, as one of them knows it."""
        next_attempt = self.parts[node].next_attempt
        return [share.node for share in next_attempt.orders.plan.nodes] if next_attempt else []


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Scene]]:
    """Start an election; no host is looked at."""
    monkeypatch.setattr(election_module, "FactsChild", PreparedFacts)
    monkeypatch.setattr(election_links, "GOODBYE_TIMEOUT_S", 0.05)  # all share one thread here
    scenes: list[Scene] = []

    def start(*words: Any, **more: Any) -> Scene:
        scenes.append(Scene(*words, **more))
        return scenes[-1]

    yield start
    for made in scenes:
        for part in made.parts.values():
            part.close()
        made.loop._selector.close()


def test_all_hear_of_one_plan(scene: Callable[..., Scene]) -> None:
    """Each adopts its own order of it, and the node that failed makes room for the spare."""
    made = scene("abc", "d")
    for name in "abcd":
        made.end(name, time.monotonic() if name == "b" else None)
    made.until_decided("abcd")
    assert [made.next_nodes(name) for name in "abcd"] == [["a", "c", "d"]] * 4
    kept: Any = made.parts["d"].facts_child
    assert kept.kept.node == "d"
    assert not kept.kept.is_standby


def test_who_was_told_does_not_lead_when_the_leader_has_gone(scene: Callable[..., Scene]) -> None:
    """The leader goes on with the next attempt, perhaps before the others do."""
    made = scene("abc")
    for name in "abc":
        made.end(name)
    made.until_decided("abc")
    assert [made.parts[name].leads for name in "abc"] == [True, False, False]
    made.parts.pop("a").close()
    made.until(lambda: made.parts["b"]._leader_search.leader_lost)
    assert not made.parts["b"].leads


def test_without_the_first_voter_the_next_one_leads(scene: Callable[..., Scene]) -> None:
    """It refuses connections, since its supervisor is gone."""
    made = scene("abc", "d")
    made.parts.pop("a").close()
    for name in "bcd":
        made.end(name, lost="a")
    made.until_decided("bcd")
    assert [made.next_nodes(name) for name in "bcd"] == [["b", "c", "d"]] * 3


def test_without_a_majority_nothing_follows(scene: Callable[..., Scene]) -> None:
    """All that are left say why."""
    made = scene("abc", "d")
    for name in "cd":
        made.parts.pop(name).close()
    for name in "ab":
        made.end(name, lost="cd")
    made.until_decided("ab")
    assert {made.parts[name].refusal for name in "ab"} == {
        "only 2 of 4 supervisors are in touch: it takes more than half of them"
    }


def test_a_stop_reaches_all(scene: Callable[..., Scene]) -> None:
    """Whichever of them hears of it."""
    made = scene("abc")
    for name in "bc":
        made.end(name)
    made.until(lambda: {*made.parts["a"]._followers.authenticated} == {"b", "c"})
    made.parts["c"].cancel("stop requested by ada")
    made.until_decided("abc")
    assert {part.refusal for part in made.parts.values()} == {"stop requested by ada"}


@pytest.mark.parametrize(
    "words",
    [
        {"type": "next_attempt", "next_attempt": "x"},
        {"type": "next_attempt", "next_attempt": election_module.compress_json([1])},
        {"type": "heartbeat", "is_leader": 1},
        {"no": 1},
    ],
    ids=["not compressed", "another object", "no bool", "no type"],
)
def test_who_leads_with_odd_words_does_not_lead(
    scene: Callable[..., Scene], words: dict[str, Any]
) -> None:
    """The next one does."""
    made = scene("ab")
    made.end("b")
    made.until(lambda: made.parts["a"]._followers.authenticated)
    made.parts["a"]._followers.broadcast(**words)
    made.until(lambda: made.parts["b"]._leader_search.exhausted)
    assert not made.parts["b"].is_decided


def test_a_leader_that_is_lost_takes_its_voters_along(scene: Callable[..., Scene]) -> None:
    """Who has voted follows no other in this attempt."""
    made = scene("abc")
    for name in "bc":
        made.end(name)
    made.until(lambda: {*made.parts["a"]._followers.authenticated} == {"b", "c"})
    made.parts["b"].facts_child.start()
    made.parts.pop("a").close()
    made.until_decided("b")
    assert made.parts["b"].refusal == "its leader was lost before it decided"
