"""Connections between supervisors: holders of the token are heard, strangers do no harm.

All of them live in this process, on a clock that only the tests move.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.model.order import Hub, Order, Program
from runner.core.protocol.events import StopCause
from runner.core.protocol.timing import HUB_TIMEOUT_S, JOIN_TIMEOUT_S
from runner.host.peers import hub, member
from runner.host.peers.connection import MAX_UNAUTHENTICATED
from runner.host.peers.hub import HubServer, PeerObserver
from runner.host.peers.member import HubClient
from runner.host.peers.messages import LastHeard
from runner.host.process.event_loop import EventLoop
from runner.host.supervisor.peer_exchange import PeerGroup, join_peers

pytestmark = [pytest.mark.promise(2, 4)]

LOST_S = 15.0
FAILED = "rank 0 on a exited with 3"
MAX_TURNS = 10_000
LAUNCH_BEFORE_S = 3.0  # when the launch was heard, before another controller


class Heard(PeerObserver):
    """A supervisor that only remembers what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.controllers: list[float] = []
        self.launches: list[float] = []
        self.kept = False

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        self.said.append(("stop", reason, cause))

    def on_peer_lost(self, peer: str, reason: str, since: float) -> None:
        assert since <= time.monotonic()
        self.said.append(("lost", peer, reason))

    def on_peer_departed(self, peer: str, reason: str, since: float, nodes: int) -> None:
        assert since <= time.monotonic()
        self.said.append(("left", peer, reason, nodes))

    def on_hub_joined(self) -> None:
        self.said.append(("joined",))

    def on_hub_unreachable(self, reason: str) -> None:
        self.said.append(("apart", reason))

    def on_lease_renewed(self, heard: LastHeard, *, detached: bool) -> None:
        self.kept = self.kept or detached
        self.controllers.append(heard.controller)
        self.launches.append(heard.launch)


class Relay:
    """A network between the members and the hub that can lose what it carries."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port = self._listener.getsockname()[1]
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lossy: list[tuple[socket.socket, socket.socket]] = []

    @property
    def carried(self) -> int:
        return len(self._pairs)

    def lose(self) -> None:
        self._lossy += self._pairs
        self._pairs = []

    def refuse(self) -> None:
        self._listener.close()

    def pass_on(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self._listener.accept()
            onward = socket.create_connection(("127.0.0.1", self._target))
            self._pairs.append((accepted, onward))
        for pair in self._pairs:
            for source, target in (pair, pair[::-1]):
                if select.select([source], [], [], 0)[0]:
                    target.sendall(source.recv(65536))

    def close(self) -> None:
        self._listener.close()
        for pair in self._pairs + self._lossy:
            for end in pair:
                end.close()


class Ring:
    """Supervisors of one attempt in one process, the first of them the hub.

    Attributes:
        now: Their time; it passes with their turns alone.
    """

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.loop = EventLoop()
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.circles: dict[str, PeerGroup] = {}
        self.heard: dict[str, Heard] = {}
        self.controller: dict[str, float] = {}
        self.kept: set[str] = set()
        self.relay: Relay | None = None

    def add(self, node: str, token: bytes = b"token", **more: Any) -> PeerGroup:
        """One more supervisor; of an elastic run where `min_nodes` says how many nodes it takes."""
        port = self.relay.port if self.relay else self.port
        hub = Hub("a", "127.0.0.1", port, 1, LOST_S, **more)
        order = Order("run", node, 0, "/w", "/", hub=hub)
        if "min_nodes" in more:
            order = replace(order, first_rank=None, program=Program(max_restarts=1))
        news = self.heard[node] = Heard()
        listener = self.listener if node == "a" else None
        circle = join_peers(order, listener, token, self.loop, news)
        assert circle is not None
        self.circles[node] = circle
        return circle

    def join(self, nodes: str, **more: Any) -> None:
        for node in nodes:
            self.add(node, **more)
        self.until(lambda: all(("joined",) in self.heard[node].said for node in nodes[1:]))

    def turn(self, step_s: float) -> None:
        """Let each of them read what came, and look at the clock `step_s` later."""
        self.now += step_s
        if self.relay:
            self.relay.pass_on()
        self.loop.wait(0.002)
        for node, circle in list(self.circles.items()):
            controller_at = self.controller.get(node, self.now)
            heard = LastHeard(controller_at, controller_at - LAUNCH_BEFORE_S)
            circle.tick(heard, detached=node in self.kept, stalled_s=0.0)

    def until(self, condition: Callable[[], object], *, step_s: float = 0.01) -> None:
        """Let them talk until a condition holds; with `step_s=0` no heartbeat becomes due."""
        for _ in range(MAX_TURNS):
            if condition():
                return
            self.turn(step_s)
        raise AssertionError({name: news.said for name, news in self.heard.items()})

    def later(self, seconds: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.turn(0.25)

    def names(self, node: str) -> list[tuple[Any, ...]]:
        return [said[:2] for said in self.heard[node].said]

    def vanish(self, node: str) -> None:
        """A supervisor is gone, and the kernel closes its connections."""
        gone: Any = self.circles.pop(node)
        for peer in list(gone._members.values()) if node == "a" else gone._peers:
            self.loop.remove_reader(peer.fileno())
            peer._socket.close()
        if node == "a":
            self.loop.remove_reader(self.listener.fileno())
            self.listener.close()

    def close(self) -> None:
        for circle in reversed(self.circles.values()):
            circle.shut_down()
        self.listener.close()
        if self.relay:
            self.relay.close()
        self.loop._selector.close()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    for end in (hub, member):
        monkeypatch.setattr(end, "GOODBYE_TIMEOUT_S", 0.0)  # they all share one thread here
    made = Ring()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    yield made
    made.close()


def test_a_stop_reaches_everybody(ring: Ring) -> None:
    """Whoever says it first, and who comes late, with the reason and whose wish it was."""
    ring.join("abc")
    ring.circles["b"].stop(FAILED, StopCause.PEER, detached=False)
    told = ("stop", FAILED, StopCause.PEER)
    ring.until(lambda: told in ring.heard["a"].said)
    ring.circles["a"].stop(FAILED, StopCause.PEER, detached=False)
    ring.until(lambda: told in ring.heard["c"].said)
    ring.add("d")
    ring.until(lambda: told in ring.heard["d"].said)
    assert ring.circles["a"].is_awaited


def test_the_hub_says_whether_a_controller_is_needed(ring: Ring) -> None:
    """As soon as it knows, and not with its next beat; who was told first has the hub say it."""
    for node in "abc":
        assert not ring.add(node).forward_detach()  # before it has joined, it is for itself to say
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    assert not ring.circles["a"].forward_detach()
    assert ring.circles["b"].forward_detach()
    ring.until(lambda: ring.heard["a"].kept, step_s=0)
    assert not ring.heard["b"].kept
    ring.kept.add("a")
    ring.until(lambda: ring.heard["b"].kept and ring.heard["c"].kept, step_s=0)


def test_a_hub_waits_until_those_who_come_by_themselves_have_heard(ring: Ring) -> None:
    """No controller would tell them of the end of what they are about to begin."""
    ring.add("a", required_members=("b",)).stop(FAILED, StopCause.PEER, detached=True)
    assert not ring.circles["a"].stop_acknowledged
    ring.kept.add("b")
    ring.add("b", required_members=("b",))
    ring.until(lambda: ring.circles["a"].stop_acknowledged and ring.circles["b"].stop_acknowledged)
    assert ("stop", FAILED, StopCause.PEER) in ring.heard["b"].said
    assert ring.heard["b"].kept


@pytest.mark.parametrize("expected", [(), ("b",)])
def test_a_hub_that_nobody_reaches(ring: Ring, expected: tuple[str, ...]) -> None:
    """It is said; where no controller watches over the start, it is the end of who cannot."""
    ring.listener.close()
    ring.add("b", required_members=expected)
    ring.until(lambda: ring.names("b"))
    ((word, reason),) = ring.heard["b"].said
    assert word == "apart"
    assert f"a at 127.0.0.1 port {ring.port}" in reason
    ring.later(JOIN_TIMEOUT_S)
    why = f"it could not be reached within {JOIN_TIMEOUT_S:g} s"
    assert ring.heard["b"].said[1:] == ([("lost", "a", why)] if expected else [])


def test_a_hub_to_which_nobody_comes(ring: Ring) -> None:
    """That is the end as well; for one that only may come it does not wait for long."""
    ring.add("a", required_members=("b",))
    ring.later(HUB_TIMEOUT_S + 1)
    assert not ring.circles["a"].is_awaited
    assert ring.heard["a"].said == []
    ring.later(JOIN_TIMEOUT_S)
    why = f"it did not start within {JOIN_TIMEOUT_S:g} s"
    assert ring.heard["a"].said == [("lost", "b", why)]


def test_those_who_are_left_go_on_while_they_are_enough(ring: Ring) -> None:
    """Each hears who left, and how many there are; the next loss is one too many."""
    ring.join("abcd", min_nodes=3)
    ring.vanish("d")
    for node in "abc":
        ring.until(lambda n=node: ("left", "d") in ring.names(n))  # type: ignore[misc]
        assert [said[3] for said in ring.heard[node].said if said[0] == "left"] == [3]
    ring.vanish("c")
    ring.until(lambda: ("lost", "c") in ring.names("a"))


@pytest.mark.parametrize("vital", [True, False])
def test_without_the_hub(ring: Ring, vital: bool) -> None:
    """Where the ranks' store is with it, that is the end; else each goes on by itself."""
    ring.join("abc", min_nodes=2, required=vital)
    ring.vanish("a")
    word = "lost" if vital else "left"
    for node in "bc":
        ring.until(lambda n=node: (word, "a") in ring.names(n))  # type: ignore[misc]
        assert any(said[0] == "apart" for said in ring.heard[node].said) is not vital


def test_a_farewell_is_no_loss(ring: Ring) -> None:
    """Who ends well says so, also at once, and meets the hub before; the hub waits for the last."""
    member = ring.add("b")
    assert member.is_awaited
    ring.add("a")
    ring.until(lambda: not member.is_awaited)
    assert ring.circles["a"].is_awaited
    ring.circles.pop("b").shut_down()
    ring.until(lambda: not ring.circles["a"].is_awaited)
    assert ring.heard["a"].said == []


def test_silence_is_a_loss_on_both_sides(ring: Ring) -> None:
    """After `lost_s`, and not before."""
    ring.join("ab")
    silent = ring.circles.pop("b")
    ring.later(LOST_S - 3)
    assert ring.heard["a"].said == []
    ring.later(4)
    assert ring.names("a") == [("lost", "b")]
    assert "nothing was heard" in ring.heard["a"].said[0][2]
    ring.circles["b"] = silent
    ring.until(lambda: len(ring.heard["b"].said) > 1)
    assert ring.heard["b"].said[1][:1] == ("stop",)
    assert "lost b: nothing was heard from it for " in ring.heard["b"].said[1][1]


def test_who_heard_a_controller_tells_all_and_nobody_is_told_it_back(ring: Ring) -> None:
    """What they tell each other is late, and may not become later with each round."""
    began = ring.now
    ring.controller = {"a": began - 20, "b": began - 10, "c": began - 20}
    ring.join("abc")
    ring.later(30)
    assert max(ring.heard["c"].controllers) == pytest.approx(began - 10, abs=1.0)
    launched_at = began - 10 - LAUNCH_BEFORE_S
    assert max(ring.heard["c"].launches) == pytest.approx(launched_at, abs=1.0)


@pytest.mark.promise(12)
def test_strangers_do_no_harm(ring: Ring) -> None:
    """Whatever they send; the others do not even notice."""
    ring.join("ab")
    signed = b'{"node": "b", "nonce": "' + b"0" * 32 + b'"}\n' + b"0" * 64 + b' {"type":"stop"}\n'
    for words in (
        b"[" * 900 + b"\n",
        b"x" * 100_000,
        signed,
        b'{"node": "b\\u0000", "nonce": "1"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ):
        with socket.create_connection(("127.0.0.1", ring.port)) as stranger:
            stranger.sendall(words)
            ring.later(1)
        ring.later(1)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    "words",
    [
        {"type": "stop"},
        {"type": "peer_departed", "peer": "b", "reason": "x", "age_s": 1e400, "nodes": 1},
        pytest.param({"type": ["stop"]}, marks=pytest.mark.all),
        pytest.param({"no": 1}, marks=pytest.mark.all),
    ],
    ids=["incomplete", "no finite number", "no type", "none at all"],
)
@pytest.mark.parametrize("sender", ["a", "b"])
def test_odd_words_cost_their_sender_the_connection(
    ring: Ring, words: dict[str, Any], sender: str
) -> None:
    """Its supervisor may be another's by now; who hears them says so and goes on."""
    ring.join("ab")
    hub, member = ring.circles["a"], ring.circles["b"]
    assert isinstance(hub, HubServer)
    assert isinstance(member, HubClient)
    peer = hub._members["b"] if sender == "a" else member._hub_peer
    assert peer is not None
    peer.send(**words)
    listener = "b" if sender == "a" else "a"
    ring.until(lambda: ("lost", sender) in ring.names(listener))
    assert "it sent what is no message" in ring.heard[listener].said[-1][2]


def greeted(ring: Ring, origin: str = "127.0.0.1") -> socket.socket:
    """A connection of somebody who says nothing to the hub, from an address of this machine."""
    end = socket.create_connection(("127.0.0.1", ring.port), source_address=(origin, 0))
    ring.until(lambda: select.select([end], [], [], 0)[0], step_s=0)
    return end


@pytest.mark.promise(12)
def test_strangers_who_say_nothing_keep_nobody_out(ring: Ring) -> None:
    """The oldest makes room, of the address that has most of them: not who is about to prove it."""
    ring.add("a")
    with contextlib.ExitStack() as connections:
        slow = connections.enter_context(greeted(ring))
        for _ in range(MAX_UNAUTHENTICATED + 9):
            connections.enter_context(greeted(ring, "127.0.0.2"))
        assert slow.recv(4096).endswith(b"\n")
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)
        ring.add("b")
        ring.until(lambda: ("joined",) in ring.heard["b"].said, step_s=0)
    assert ring.heard["a"].said == []


@pytest.mark.promise(12)
def test_a_hub_that_knows_no_token_is_nobody(ring: Ring) -> None:
    """And who holds its port is not believed."""
    ring.add("a", token=b"other")
    ring.add("b")
    ring.later(5)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == []


@pytest.mark.promise(11)
def test_who_was_asleep_listens_before_it_judges(ring: Ring) -> None:
    """All wait for one disk for longer than `lost_s`: nobody is lost, all of them are well."""
    ring.join("abc")
    ring.now += 2 * LOST_S
    for circle in ring.circles.values():
        heard = LastHeard(ring.now, ring.now)
        circle.tick(heard, detached=False, stalled_s=0.0)  # before it has read anything
    ring.later(2 * LOST_S)
    assert [ring.heard[node].said for node in "abc"] == [[], [("joined",)], [("joined",)]]


def test_a_member_that_hears_nothing_connects_anew(ring: Ring) -> None:
    """TCP may take its time after a cable was out, a new connection takes none: nobody is lost."""
    ring.relay = Relay(ring.port)
    ring.join("ab")
    ring.relay.lose()
    ring.until(lambda: ring.relay and ring.relay.carried == 1)
    ring.later(2 * LOST_S)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]
    ring.circles.pop("b").shut_down()
    ring.until(lambda: not ring.circles["a"].is_awaited)


def test_a_hub_that_refuses_is_gone(ring: Ring) -> None:
    """Nothing listens there any more: its supervisor ended, and nobody waits for `lost_s`."""
    ring.relay = Relay(ring.port)
    ring.join("ab")
    ring.relay.lose()
    ring.relay.refuse()
    ring.until(lambda: ("lost", "a", "its supervisor is gone") in ring.heard["b"].said)
