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
from runner.host.peers.links import MAX_UNKNOWN, seal
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
        self.relay: Relay | None = None

    def order(self, node: str) -> Order:
        port = self.relay.port if self.relay else self.port
        hub = Hub("a", "127.0.0.1", port, LOST_S)
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
        if self.relay:
            self.relay.pass_on()
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

    def later(self, seconds: float = 5.0) -> None:
        end = self.now + seconds
        while self.now < end:
            self.turn(0.25)

    def close(self) -> None:
        for each in reversed(self.groups.values()):
            each.leave()
        self.listener.close()
        if self.relay:
            self.relay.close()
        self.loop._selector.close()


@pytest.fixture
def ring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ring]:
    monkeypatch.setattr(group, "LINGER_S", 0.0)  # they all share one thread here
    made = Ring()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    yield made
    made.close()


@pytest.mark.parametrize("name", ["b", "büro", "計算機"])
def test_news_is_told_at_once(ring: Ring, name: str) -> None:
    """And not with the next heartbeat; whatever the name of a node."""
    ring.join("a")
    ring.add(name)
    ring.add("c")
    ring.until(lambda: all(("joined",) in ring.heard[node].said for node in (name, "c")))
    ring.detached = {name}
    ring.until(lambda: ("detached",) in ring.heard["a"].said, step_s=0)
    assert ("detached",) not in ring.heard["c"].said
    ring.detached = {"a"}
    ring.until(lambda: ("detached",) in ring.heard["c"].said, step_s=0)
    said = ("stop", FAILED)
    ring.groups[name].stop(FAILED)
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
    assert ring.heard["a"].said == [
        ("stop", FAILED),
        ("stop", asked("told to")),
    ]


@pytest.mark.parametrize("ended", ["a", "b"])
def test_an_end_is_no_loss(ring: Ring, ended: str) -> None:
    """The last state says so, and is read by the other side."""
    ring.join("ab")
    ring.groups.pop(ended).leave()
    left = "b" if ended == "a" else "a"
    fold = ring.groups[left].fold
    assert fold is not None
    ring.until(lambda: fold.hub_finished or not fold.is_awaited(ring.now))
    ring.later(2 * LOST_S)
    assert [said for said in ring.heard[left].said if said[0] == "lost"] == []


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
def test_strangers_do_no_harm(ring: Ring) -> None:
    """Whatever they send; the others do not even notice."""
    ring.join("ab")
    spoken = seal(b"another token", encode(ring.groups["b"]._state()))
    for words in (
        b"[" * 900 + b"\n",
        b"x" * 100_000,
        spoken,
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
    [{"phase": "lost"}, {"controller_age_s": 1e400}, {"stop": {"reason": "x"}}, {"no": 1}],
    ids=["no phase", "no finite number", "incomplete", "no state at all"],
)
def test_odd_words_cost_their_sender_the_link_alone(ring: Ring, words: dict[str, Any]) -> None:
    """Its supervisor opens another, and goes on."""
    ring.join("ab")
    state = encode(ring.groups["b"]._state())
    odd = seal(b"token", words if "no" in words else {**state, **words})
    with socket.create_connection(("127.0.0.1", ring.port)) as stranger:
        stranger.sendall(odd)
        ring.until(lambda: select.select([stranger], [], [], 0)[0], step_s=0)
        assert stranger.recv(1) == b""
    ring.later(2 * LOST_S)
    assert ring.heard["a"].said == []


@pytest.mark.promise(12)
def test_strangers_who_say_nothing_keep_nobody_out(ring: Ring) -> None:
    """The oldest makes room, also one that repeats what was said."""
    ring.join("ab")
    said = ring.groups["b"].first_line()
    ring.later(1)
    with contextlib.ExitStack() as connections:
        strangers = []
        for _ in range(MAX_UNKNOWN + 9):
            stranger = socket.create_connection(("127.0.0.1", ring.port))
            strangers.append(connections.enter_context(stranger))
            stranger.sendall(said)
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
    ring.relay = Relay(ring.port)
    ring.join("ab")
    ring.relay.lose()
    ring.until(lambda: ring.relay and ring.relay.carried == 1)
    ring.later(2 * LOST_S)
    assert ring.heard["a"].said == []
    assert ring.heard["b"].said == [("joined",)]


def test_the_last_words_of_who_dies_are_read(ring: Ring) -> None:
    """Its kernel resets the connection, and what the hub says meanwhile cannot be sent."""
    ring.add("a")
    dying = ring.add("b")
    state = dying._state()
    ring.groups.pop("b").leave()
    with socket.create_connection(("127.0.0.1", ring.port)) as link:
        later = replace(state, counter=state.counter + 10**9)
        link.sendall(seal(b"token", encode(later)))
        ring.until(lambda: select.select([link], [], [], 0)[0])  # it is known, and is answered
        last = replace(later, counter=later.counter + 1, stop=FAILED)
        link.sendall(seal(b"token", encode(last)))
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
    with contextlib.ExitStack() as connections:
        first, second = (
            connections.enter_context(socket.create_connection(("127.0.0.1", ring.port)))
            for _ in range(2)
        )

        def say(link: socket.socket, later: int) -> None:
            link.sendall(seal(b"token", encode(replace(state, counter=state.counter + later))))

        say(first, 10**9)
        ring.later(1)
        say(second, 3 * 10**9)
        say(first, 2 * 10**9)
        ring.later(1)
        say(second, 4 * 10**9)
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
    ring.relay = Relay(ring.port)
    ring.join("ab")
    ring.relay.lose()
    ring.relay.refuse()
    ring.until(lambda: ("lost", "a", "its supervisor is gone") in ring.heard["b"].said)
