"""Links between supervisors: holders of the token are heard, strangers do no harm.

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

from runner.core.wire.codec import encode
from runner.core.wire.events import HubJoined, PeerLost
from runner.core.wire.order import Hub, Order
from runner.core.wire.states import Reason
from runner.host.peers import group
from runner.host.peers.fold import LastHeard, News, PeerState
from runner.host.peers.group import PeerGroup, tell_death
from runner.host.peers.links import MAX_MEMBER_LINE, MAX_UNKNOWN, seal
from runner.host.process.event_loop import EventLoop
from tests.golden.builders import asked, failed, told

pytestmark = [pytest.mark.promise(2, 4)]

LOST_S = 15.0
FAILED = failed("a", 0, 3)
MAX_TURNS = 10_000


class Heard:
    """A supervisor that only remembers what it hears."""

    def __init__(self) -> None:
        self.said: list[tuple[Any, ...]] = []

    def hear(self, news: News) -> None:
        if isinstance(news, Reason):
            self.said.append(("stop", news))
        elif isinstance(news, PeerLost):
            self.said.append(("lost", news.peer, news.reason))
        elif isinstance(news, HubJoined):
            self.said.append(("joined",))
        elif isinstance(news, PeerState) and news.detached:
            self.said.append(("detached",))


class Ring:
    """Supervisors of one attempt, the first of them the hub; time passes with their turns alone."""

    def __init__(self) -> None:
        self.now = time.monotonic()
        self.loop = EventLoop()
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.groups: dict[str, PeerGroup] = {}
        self.heard: dict[str, Heard] = {}
        self.detached: set[str] = set()

    def order(self, node: str) -> Order:
        hub = Hub("a", "127.0.0.1", self.port, LOST_S)
        return Order("run", node, 0, "/w", "/w", nnodes=2, hub=hub)

    def add(self, node: str, token: bytes = b"token") -> PeerGroup:
        self.heard[node] = Heard()
        listener = self.listener if node == "a" else None
        made = PeerGroup(self.order(node), token, self.heard[node].hear)
        made.join(self.loop, listener)
        self.groups[node] = made
        return made

    def join(self, nodes: str) -> None:
        for node in nodes:
            self.add(node)
        self.until(lambda: all(("joined",) in self.heard[node].said for node in nodes[1:]))

    def turn(self, step_s: float) -> None:
        """Let each of them read what came, and look at the clock `step_s` later."""
        self.now += step_s
        self.loop.wait(0.002)
        heard = LastHeard(self.now, self.now)
        for node, each in list(self.groups.items()):
            each.tick(heard, detached=node in self.detached, stalled_s=0.0)

    def until(self, condition: Callable[[], object], *, step_s: float = 0.01) -> None:
        """Let them talk until a condition holds; with `step_s=0` no heartbeat becomes due."""
        for _ in range(MAX_TURNS):
            if condition():
                return
            self.turn(step_s)
        raise AssertionError({name: news.said for name, news in self.heard.items()})

    def later(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.turn(0.25)

    def stranger(self, line: bytes = b"") -> socket.socket:
        """Return a connection to the hub that has sent a line."""
        connection = socket.create_connection(("127.0.0.1", self.port))
        connection.sendall(line)
        return connection

    def close(self) -> None:
        for each in reversed(self.groups.values()):
            each.leave()
        self.listener.close()
        self.loop._selector.close()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    monkeypatch.setattr(group, "LINGER_S", 0.0)  # they all share one thread here
    made = Ring()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    yield made
    made.close()


def readable(connection: socket.socket) -> bool:
    return bool(select.select([connection], [], [], 0)[0])


def sealed(state: PeerState, later_s: int, **changes: Any) -> bytes:
    """Return a line with a later state."""
    later = replace(state, counter=state.counter + later_s * 10**9, **changes)
    return seal(b"token", encode(later))


def test_news_is_told_at_once(ring: Ring) -> None:
    """And not with the next heartbeat; whatever the name of a node."""
    ring.join("aüc")
    ring.detached = {"ü"}
    ring.until(lambda: ("detached",) in ring.heard["a"].said, step_s=0)
    assert ("detached",) not in ring.heard["c"].said
    ring.detached = {"a"}
    ring.until(lambda: ("detached",) in ring.heard["c"].said, step_s=0)
    said = ("stop", FAILED)
    ring.groups["ü"].stop(FAILED)
    ring.until(lambda: said in ring.heard["a"].said, step_s=0)
    ring.groups["a"].stop(FAILED)
    ring.until(lambda: said in ring.heard["c"].said, step_s=0)


def test_the_wish_of_a_user_is_told_after_another_reason(ring: Ring) -> None:
    """It rules out a relaunch; no other reason takes the place of the first."""
    ring.join("ab")
    ring.groups["b"].stop(FAILED)
    ring.groups["b"].stop(told("something else"))
    ring.until(lambda: ring.heard["a"].said)
    ring.groups["b"].stop(asked("told to"))
    ring.until(lambda: len(ring.heard["a"].said) > 1)
    assert ring.heard["a"].said == [("stop", FAILED), ("stop", asked("told to"))]


def test_an_end_is_no_loss(ring: Ring) -> None:
    """The last state says so, and is read by the other side."""
    ring.join("abc")
    for ended, left in (("b", "a"), ("a", "c")):
        ring.groups.pop(ended).leave()
        ring.later(2 * LOST_S)
        assert ring.heard[left].said == [("joined",)] * (left != "a")


def test_a_hub_may_have_much_to_say(ring: Ring) -> None:
    """The names of many nodes, say, at once to who joins."""
    ring.join("ab")
    ring.groups["a"].decide("x" * 100_000)
    ring.add("c")
    ring.until(lambda: ("joined",) in ring.heard["c"].said)


def test_a_guardian_tells_that_its_supervisor_was_killed(
    ring: Ring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In its place, and the hub believes it."""
    ring.join("ab")
    monkeypatch.setattr(group, "DEATH_TIMEOUT_S", 0.1)  # this one thread is also the hub
    tell_death(ring.order("b"), b"token", "its supervisor ended by signal 9")
    lost = ("lost", "b", "its supervisor ended by signal 9")
    ring.until(lambda: lost in ring.heard["a"].said, step_s=0)


@pytest.mark.promise(12)
def test_odd_words_cost_their_sender_the_link_alone(ring: Ring) -> None:
    """Those of strangers, and those of who has the token: the others do not even notice."""
    ring.join("ab")
    state = encode(ring.groups["b"]._state())
    for line in (
        b"[" * 900 + b"\n",
        b"x" * (MAX_MEMBER_LINE + 1),
        b"GET / HTTP/1.1\r\n\r\n",
        seal(b"another token", state),
        seal(b"token", {**state, "phase": "lost"}),
        seal(b"token", {**state, "controller_age_s": 1e400}),
        seal(b"token", {**state, "stop": {"reason": "x"}}),
        seal(b"token", {"no": 1}),
    ):
        with ring.stranger(line) as stranger:
            ring.until(lambda: readable(stranger), step_s=0)
            assert stranger.recv(1) == b"", line
    ring.later(2 * LOST_S)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


@pytest.mark.promise(12)
def test_strangers_who_say_nothing_keep_nobody_out(ring: Ring) -> None:
    """The oldest makes room, also one that repeats what was said."""
    ring.join("ab")
    said = ring.groups["b"].first_line()
    ring.later(1)
    with contextlib.ExitStack() as connections:
        strangers = []
        for _ in range(MAX_UNKNOWN + 9):
            strangers.append(connections.enter_context(ring.stranger(said)))
            ring.turn(0)
        ring.add("c")
        ring.until(lambda: ("joined",) in ring.heard["c"].said, step_s=0)
        assert strangers[1].recv(1) == b""  # the first has taken the place of b for a moment
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


@pytest.mark.promise(12)
def test_a_hub_that_knows_no_token_is_nobody(ring: Ring) -> None:
    """And who holds its port is not believed."""
    ring.add("a", token=b"other")
    ring.add("b")
    ring.later(5)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == []


def test_a_member_that_hears_nothing_connects_anew(ring: Ring) -> None:
    """TCP may take its time after a cable was out, a new link takes none: nobody is lost."""
    ring.join("ab")
    silent = ring.groups.pop("a")  # it has no turn, and begins new links alone
    ring.later(2 * LOST_S)
    ring.groups["a"] = silent
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


def test_the_last_words_of_who_dies_are_read(ring: Ring) -> None:
    """Its kernel resets the connection, and what the hub says meanwhile cannot be sent."""
    ring.add("a")
    state = ring.add("b")._state()
    ring.groups.pop("b").leave()
    with ring.stranger(sealed(state, 1)) as link:
        ring.until(lambda: readable(link))  # it is known, and is answered
        link.sendall(sealed(state, 2, stop=FAILED))
    for _ in range(2):
        ring.groups["a"].stop(asked("told to"))
    ring.groups["a"].tick(LastHeard(ring.now, ring.now), detached=False, stalled_s=0.0)
    ring.later(1)
    assert ring.heard["a"].said == [("stop", FAILED)]


def test_two_links_of_one_member_may_speak_at_once(ring: Ring) -> None:
    """The later one takes the place of the other, which had something to say, too."""
    ring.add("a")
    state = ring.add("b")._state()
    ring.groups.pop("b").leave()
    with ring.stranger() as first, ring.stranger() as second:
        first.sendall(sealed(state, 1))
        ring.later(1)
        second.sendall(sealed(state, 3))
        first.sendall(sealed(state, 2))
        ring.later(1)
        second.sendall(sealed(state, 4))
        ring.later(1)
    assert ring.heard["a"].said == []


def test_a_hub_that_does_not_listen_yet_is_not_gone(ring: Ring) -> None:
    """A member may be there first."""
    ring.add("b")
    ring.later(1)
    ring.add("a")
    ring.until(lambda: ("joined",) in ring.heard["b"].said)
    ring.later(1)
    assert ring.heard["b"].said == [("joined",)]


def test_a_hub_that_refuses_is_gone(ring: Ring) -> None:
    """Nothing listens there any more: its supervisor ended, and nobody waits for `lost_s`."""
    ring.join("ab")
    links = ring.groups.pop("a")._links
    assert links is not None
    links.close()
    ring.listener.close()
    ring.until(lambda: ("lost", "a", "its supervisor is gone") in ring.heard["b"].said)
