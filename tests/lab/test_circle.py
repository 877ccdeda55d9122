"""Connections between supervisors: holders of the token are heard, strangers do no harm."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runner.core.model.plan import Hub, Order
from runner.core.protocol.events import StopCause
from runner.core.protocol.timing import HEARTBEAT_S
from runner.host.peers import hub, member
from runner.host.peers.connection import MAX_UNAUTHENTICATED, Listener
from runner.host.peers.hub import HubServer, PeerObserver
from runner.host.peers.member import HubClient
from runner.host.process.event_loop import EventLoop
from runner.host.supervisor.peer_exchange import PeerGroup, join_peers

PATIENT = {"auth_timeout_s": 3600.0, "max_unauthenticated": MAX_UNAUTHENTICATED}


class Heard(PeerObserver):
    """A supervisor that only remembers what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []
        self.controllers: list[float] = []
        self.kept = False

    def on_peer_stop(self, reason: str, cause: StopCause) -> None:
        """The others stop."""
        self.said.append(("stop", reason, cause))

    def on_peer_lost(self, peer: str, reason: str, since: float) -> None:
        """A node is lost."""
        assert since <= time.monotonic()
        self.said.append(("lost", peer, reason))

    def on_peer_departed(self, peer: str, reason: str, since: float, nodes: int) -> None:
        """A node is lost, and the run goes on."""
        assert since <= time.monotonic()
        self.said.append(("left", peer, reason, nodes))

    def on_hub_joined(self) -> None:
        """The hub is reached."""
        self.said.append(("joined",))

    def on_hub_unreachable(self, reason: str) -> None:
        """It is not."""
        self.said.append(("apart", reason))

    def on_lease_renewed(self, when: float, *, detached: bool) -> None:
        """A controller spoke to another one."""
        self.kept = self.kept or detached
        self.controllers.append(when)


class Ring:
    """Supervisors of one attempt in one process, the first of them the hub."""

    def __init__(self) -> None:
        self.loop = EventLoop()
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.circles: dict[str, PeerGroup] = {}
        self.heard: dict[str, Heard] = {}
        self.controller: dict[str, float] = {}
        self.kept: set[str] = set()

    def add(
        self, node: str, token: bytes = b"token", lost_s: float = 15.0, **more: Any
    ) -> PeerGroup:
        """One more supervisor; of an elastic run where `min_nodes` says how many nodes it takes."""
        hub = Hub("a", "127.0.0.1", self.port, 1, lost_s, **more)
        order = Order("run", node, 0, "/w", (), {}, "/", (), hub=hub)
        order = replace(order, restarts_ranks="min_nodes" in more)
        news = self.heard[node] = Heard()
        listener = self.listener if node == "a" else None
        circle = join_peers(order, listener, token, self.loop, news)
        assert circle is not None
        self.circles[node] = circle
        return circle

    @property
    def watched(self) -> int:
        """How many connections and listeners any of them watches."""
        return len(self.loop._selector.get_map())

    def until(self, condition: Callable[[], object], seconds: float = 5) -> None:
        """Let them talk until a condition holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, {name: news.said for name, news in self.heard.items()}
            self.loop.wait(0.01)
            for node, circle in list(self.circles.items()):
                heard = self.controller.get(node, time.monotonic())
                circle.tick(heard, detached=node in self.kept, stalled_s=0.0)

    def quiet(self, seconds: float = 0.05) -> None:
        """Let them talk for a while."""
        end = time.monotonic() + seconds
        self.until(lambda: time.monotonic() > end, seconds + 1)

    def close(self) -> None:
        """End all."""
        for circle in reversed(self.circles.values()):
            circle.shut_down()
        self.listener.close()
        self.loop._selector.close()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    """No supervisor yet."""
    for end in (hub, member):
        monkeypatch.setattr(end, "GOODBYE_TIMEOUT_S", 0.05)  # they all share one thread here
    made = Ring()
    yield made
    made.close()


def test_a_stop_reaches_everybody(ring: Ring) -> None:
    """Whoever says it first, with the reason and whose wish it was."""
    for node in "abc":
        ring.add(node)
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    ring.circles["b"].stop("rank 1 on b exited with 3", StopCause.PEER, detached=False)
    told = ("stop", "rank 1 on b exited with 3", StopCause.PEER)
    ring.until(lambda: told in ring.heard["a"].said)
    ring.circles["a"].stop("rank 1 on b exited with 3", StopCause.PEER, detached=False)
    ring.until(lambda: told in ring.heard["c"].said)
    assert ring.circles["a"].is_awaited


def test_the_hub_says_whether_a_controller_is_needed(ring: Ring) -> None:
    """As soon as it knows, and not with its next beat."""
    for node in "abc":
        ring.add(node)
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    ring.kept.add("a")
    ring.until(lambda: ring.heard["b"].kept and ring.heard["c"].kept, HEARTBEAT_S / 2)


def test_a_member_that_was_told_first_has_the_hub_say_it(ring: Ring) -> None:
    """At once; before it has joined, it is for itself to say."""
    for node in "abc":
        assert not ring.add(node).forward_detach()
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    ring.quiet()
    assert not ring.circles["a"].forward_detach()
    assert ring.circles["b"].forward_detach()
    ring.until(lambda: ring.heard["a"].kept, HEARTBEAT_S / 2)
    assert not ring.heard["b"].kept
    ring.kept.add("a")
    ring.until(lambda: ring.heard["b"].kept and ring.heard["c"].kept, HEARTBEAT_S / 2)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_hub_that_is_gone_says_nothing_any_more(ring: Ring, stopped: bool) -> None:
    """What it did not answer then holds, unless its last word was that all stop."""
    for node in "ab":
        ring.add(node)
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    if stopped:
        ring.circles["a"].stop("rank 0 on a exited with 3", StopCause.PEER, detached=False)
        ring.until(
            lambda: ("stop", "rank 0 on a exited with 3", StopCause.PEER) in ring.heard["b"].said
        )
    assert ring.circles["b"].forward_detach()
    vanish(ring, "a")
    ring.until(lambda: ("lost", "a") in [said[:2] for said in ring.heard["b"].said])
    assert ring.heard["b"].kept is not stopped


def test_who_stops_hears_from_the_hub_who_decides(ring: Ring) -> None:
    """It had no time to hear it before, and waits for that."""
    for node in "abc":
        ring.add(node)
    assert all(ring.circles[node].stop_acknowledged for node in "abc")
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    assert [ring.circles[node].stop_acknowledged for node in "abc"] == [True, False, False]
    ring.circles["b"].stop("rank 1 on b exited with 3", StopCause.PEER, detached=False)
    ring.until(lambda: ring.heard["a"].said)
    assert not ring.circles["b"].stop_acknowledged
    ring.circles["a"].stop("rank 1 on b exited with 3", StopCause.PEER, detached=True)
    ring.until(lambda: ring.circles["b"].stop_acknowledged and ring.circles["c"].stop_acknowledged)
    assert [ring.heard[node].kept for node in "abc"] == [False, True, True]


def test_a_hub_waits_until_those_who_come_by_themselves_have_heard(ring: Ring) -> None:
    """No controller would tell them of the end of what they are about to begin."""
    ring.add("a", required_members=("b",)).stop(
        "rank 0 on a exited with 3", StopCause.PEER, detached=True
    )
    assert not ring.circles["a"].stop_acknowledged
    ring.kept.add("b")
    ring.add("b", required_members=("b",))
    ring.until(lambda: ring.circles["a"].stop_acknowledged and ring.circles["b"].stop_acknowledged)
    assert ("stop", "rank 0 on a exited with 3", StopCause.PEER) in ring.heard["b"].said
    assert ring.heard["b"].kept


@pytest.mark.parametrize("elastic", [{}, {"min_nodes": 1, "required": False}], ids=["", "elastic"])
@pytest.mark.parametrize("expected", [(), ("b",)])
def test_a_hub_that_nobody_reaches(
    ring: Ring,
    monkeypatch: pytest.MonkeyPatch,
    expected: tuple[str, ...],
    elastic: dict[str, Any],
) -> None:
    """Where no controller watches over the start, that is the end of who cannot."""
    monkeypatch.setattr(member, "JOIN_TIMEOUT_S", 0.3)
    ring.listener.close()
    ring.add("b", required_members=expected, **elastic)
    ring.quiet(0.6)
    why = "it could not be reached within 0.3 s"
    assert ring.heard["b"].said == ([("lost", "a", why)] if expected else [])


def test_a_hub_to_which_nobody_comes(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is the end as well."""
    monkeypatch.setattr(hub, "JOIN_TIMEOUT_S", 0.3)
    ring.add("a", required_members=("b",))
    ring.until(lambda: ring.heard["a"].said == [("lost", "b", "it did not start within 0.3 s")])


def vanish(ring: Ring, node: str) -> None:
    """A supervisor is gone, and the kernel closes its connections."""
    gone: Any = ring.circles.pop(node)
    for peer in list(gone._members.values()) if node == "a" else gone._peers:
        ring.loop.remove_reader(peer.fileno())
        peer._socket.close()
    if node == "a":
        ring.loop.remove_reader(ring.listener.fileno())
        ring.listener.close()


def test_those_who_are_left_go_on_while_they_are_enough(ring: Ring) -> None:
    """Each hears who left, and how many there are; the next loss is one too many."""
    for node in "abcd":
        ring.add(node, min_nodes=3)
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bcd"))
    vanish(ring, "d")
    ring.until(lambda: all(_left(ring, node) == [("d", 3)] for node in "abc"))
    vanish(ring, "c")
    ring.until(lambda: ("lost", "c") in [s[:2] for s in ring.heard["a"].said])


def _left(ring: Ring, node: str) -> list[tuple[str, int]]:
    """Who left, and how many are left, as a supervisor heard."""
    return [(said[1], said[3]) for said in ring.heard[node].said if said[0] == "left"]


@pytest.mark.parametrize("vital", [True, False])
def test_without_the_hub(ring: Ring, vital: bool) -> None:
    """Where the ranks' store is with it, that is the end; else each goes on by itself."""
    for node in "abc":
        ring.add(node, min_nodes=2, required=vital)
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    vanish(ring, "a")
    word = "lost" if vital else "left"
    for node in "bc":
        ring.until(lambda n=node: (word, "a") in [s[:2] for s in ring.heard[n].said])  # type: ignore[misc]
        assert any(said[0] == "apart" for said in ring.heard[node].said) is not vital


def test_who_comes_late_hears_of_a_stop(ring: Ring) -> None:
    """Also who connects anew, and whose old connection took the word with it."""
    ring.add("a")
    ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    ring.circles["a"].stop("rank 0 on a exited with 3", StopCause.PEER, detached=False)
    ring.add("c")
    told = ("stop", "rank 0 on a exited with 3", StopCause.PEER)
    ring.until(lambda: told in ring.heard["c"].said and told in ring.heard["b"].said)


def test_a_connection_that_was_given_up_is_no_death(ring: Ring) -> None:
    """The hub closes what it was told to forget; a member that went back to it connects anew."""
    hub_end, member_end = ring.add("a"), ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert isinstance(hub_end, HubServer)
    assert isinstance(member_end, HubClient)
    before = hub_end._members["b"]
    member_end._reset_at = time.monotonic()
    hub_end._disconnected["b"] = before.last_heard
    hub_end._drop(before)
    ring.until(lambda: hub_end._members.get("b") not in (None, before))
    ring.quiet(0.3)
    assert ring.heard["b"].said == [("joined",)]
    assert ring.heard["a"].said == []


def test_a_farewell_is_no_loss(ring: Ring) -> None:
    """Who ends well says so; the hub is needed until the last one has."""
    ring.add("a")
    ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    ring.circles.pop("b").shut_down()
    ring.until(lambda: not ring.circles["a"].is_awaited)
    assert ring.heard["a"].said == []


def test_a_hub_that_left_watches_nothing(ring: Ring) -> None:
    """Else the next connection, at the number of a closed one, could not be watched."""
    ring.add("a")
    ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    with socket.create_connection(("127.0.0.1", ring.port)):
        ring.until(lambda: ring.watched == 4)
        ring.circles.pop("a").shut_down()
    assert ring.watched == 1  # b's


def test_silence_is_a_loss_on_both_sides(ring: Ring) -> None:
    """After `lost_s`, and not before."""
    ring.add("a", lost_s=0.6)
    ring.add("b", lost_s=0.6)
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    silent = ring.circles.pop("b")
    began = time.monotonic()
    ring.until(lambda: ring.heard["a"].said)
    assert time.monotonic() - began > 0.4
    assert ring.heard["a"].said[0][:2] == ("lost", "b")
    assert "nothing was heard" in ring.heard["a"].said[0][2]
    ring.circles["b"] = silent
    ring.until(lambda: len(ring.heard["b"].said) > 1)
    assert ring.heard["b"].said[1][:1] == ("stop",)
    assert "lost b: nothing was heard from it for " in ring.heard["b"].said[1][1]


def test_who_heard_a_controller_tells_all_and_nobody_is_told_it_back(ring: Ring) -> None:
    """What they tell each other is late, and may not become later with each round."""
    long_ago = time.monotonic() - 20  # a machine may have started a minute ago
    ring.controller = {"a": long_ago, "b": long_ago + 10, "c": long_ago}
    for node in "abc":
        ring.add(node, lost_s=1)
    for _ in range(10):
        ring.quiet()
        time.sleep(0.1)  # none of them gets any CPU
    ring.until(lambda: ring.heard["c"].controllers)
    assert 9.9 < max(ring.heard["c"].controllers) - long_ago < 10.3


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    "words",
    [
        b"[" * 900 + b"\n",
        b"x" * 100_000,
        b'{"node": "b", "nonce": "' + b"0" * 32 + b'"}\n' + b"0" * 64 + b' {"type":"stop"}\n',
        b'{"node": "b\\u0000", "nonce": "1"}\n',
        b"GET / HTTP/1.1\r\n\r\n",
        b"",
    ],
)
def test_strangers_do_no_harm(ring: Ring, words: bytes) -> None:
    """Whatever they send; the others do not even notice."""
    ring.add("a")
    ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    with socket.create_connection(("127.0.0.1", ring.port)) as stranger:
        stranger.sendall(words)
        ring.quiet()
    ring.quiet()
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


@pytest.mark.promise(12)
@pytest.mark.parametrize(
    "words",
    [
        {"type": "stop"},
        {"type": "stop", "reason": "x", "cause": "mars", "detached": False},
        {"type": "heartbeat", "controller_age_s": "x", "detached": False},
        {"type": "peer_departed", "peer": "b", "reason": "x", "age_s": 1e400, "nodes": 1},
        {"type": ["stop"]},
        {"no": 1},
    ],
    ids=["incomplete", "no cause", "no number", "no finite one", "no type", "none at all"],
)
@pytest.mark.parametrize("sender", ["a", "b"])
def test_odd_words_cost_their_sender_the_connection(
    ring: Ring, words: dict[str, Any], sender: str
) -> None:
    """Its supervisor may be another's by now; who hears them says so and goes on."""
    hub, member = ring.add("a"), ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert isinstance(hub, HubServer)
    assert isinstance(member, HubClient)
    peer = hub._members["b"] if sender == "a" else member._hub_peer
    assert peer is not None
    peer.send(**words)
    listener = "b" if sender == "a" else "a"
    ring.until(
        lambda: ring.heard[listener].said[-1:] and ring.heard[listener].said[-1][0] == "lost"
    )
    assert ring.heard[listener].said[-1][1] == sender
    assert "it sent what is no message" in ring.heard[listener].said[-1][2]


def greeted(ring: Ring, origin: str = "127.0.0.1") -> socket.socket:
    """A connection of somebody who says nothing to the hub, from an address of this machine."""
    end = socket.create_connection(("127.0.0.1", ring.port), source_address=(origin, 0))
    ring.until(lambda: select.select([end], [], [], 0)[0])
    return end


def test_strangers_who_say_nothing_keep_nobody_out(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor do they use up what the hub may open: the oldest of them makes room."""
    monkeypatch.setattr(Listener.__init__, "__kwdefaults__", PATIENT)
    ring.add("a")
    before = ring.watched
    with contextlib.ExitStack() as strangers:
        for _ in range(MAX_UNAUTHENTICATED + 9):
            strangers.enter_context(greeted(ring))
        ring.until(lambda: ring.watched == before + MAX_UNAUTHENTICATED)
        ring.add("b")
        ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert ring.heard["a"].said == []


def test_strangers_of_one_machine_leave_those_of_others_alone(ring: Ring) -> None:
    """A member has its time to prove what it knows, however many come from elsewhere meanwhile."""
    ring.add("a")
    with contextlib.ExitStack() as connections:
        slow = connections.enter_context(greeted(ring))
        for _ in range(MAX_UNAUTHENTICATED + 9):
            connections.enter_context(greeted(ring, "127.0.0.2"))
        assert slow.recv(4096).endswith(b"\n")
        slow.setblocking(False)
        with pytest.raises(BlockingIOError):
            slow.recv(1)


def test_a_hub_that_knows_no_token_is_nobody(ring: Ring) -> None:
    """And who holds its port is not believed."""
    ring.add("a", token=b"other")
    ring.add("b")
    ring.quiet(0.3)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == []


def test_alone_there_is_nobody_to_tell() -> None:
    """One node needs no circle."""
    order = Order("run", "a", 0, "/w", (), {}, "/", ())
    assert join_peers(order, None, b"token", EventLoop(), Heard()) is None


@pytest.mark.promise(11)
def test_who_was_asleep_listens_before_it_judges(ring: Ring) -> None:
    """All wait for one disk for longer than `lost_s`: nobody is lost, all of them are well."""
    for node in "abc":
        ring.add(node, lost_s=1)
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in "bc"))
    time.sleep(1.2)  # between the look at the sockets and the tick
    for node, circle in ring.circles.items():
        circle.tick(time.monotonic(), detached=False, stalled_s=0.0)
        assert all(said[0] == "joined" for said in ring.heard[node].said)
    ring.quiet(0.2)
    assert all(said[0] == "joined" for news in ring.heard.values() for said in news.said)


def test_a_member_that_hears_nothing_connects_anew(ring: Ring) -> None:
    """TCP may take its time after a cable was out, a new connection takes none: nobody is lost."""
    ring.add("a", lost_s=1.5)
    member = ring.add("b", lost_s=1.5)
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert isinstance(member, HubClient)
    first = member._hub_peer
    assert first is not None
    first.last_heard = member._last_heard = time.monotonic() - 1.0  # its words were lost on the way
    ring.until(lambda: member._hub_peer not in (None, first))
    ring.until(lambda: member._hub_peer is not None and member._hub_peer.name)
    ring.quiet(1.8)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]
    ring.circles.pop("b").shut_down()
    ring.until(lambda: not ring.circles["a"].is_awaited)


def test_a_member_that_said_it_moves_and_does_not_come_is_lost(ring: Ring) -> None:
    """After `lost_s`; until then the hub waits for it."""
    ring.add("a", lost_s=0.8)
    member = ring.add("b", lost_s=0.8)
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert isinstance(member, HubClient)
    member._retry("it fell silent")
    ring.circles.pop("b")
    assert ring.circles["a"].is_awaited
    ring.until(lambda: ring.heard["a"].said)
    assert ring.heard["a"].said[0][:2] == ("lost", "b")


def test_who_ends_at_once_still_meets_the_hub(ring: Ring) -> None:
    """Else the hub would wait for it, for as long as for one that cannot reach it."""
    member = ring.add("b")
    assert member.is_awaited
    ring.add("a")
    ring.until(lambda: not member.is_awaited)
    ring.circles.pop("b").shut_down()
    ring.until(lambda: not ring.circles["a"].is_awaited)


def test_a_hub_that_refuses_is_gone(ring: Ring) -> None:
    """Nothing listens there any more: its supervisor ended."""
    ring.add("a")
    member = ring.add("b")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    assert isinstance(member, HubClient)
    hub = ring.circles.pop("a")
    assert isinstance(hub, HubServer)
    ring.loop.remove_reader(ring.listener.fileno())
    ring.listener.close()
    member._retry("it fell silent")
    ring.until(lambda: ("lost", "a", "its supervisor is gone") in ring.heard["b"].said)
    for peer in hub._members.values():
        peer.close()
