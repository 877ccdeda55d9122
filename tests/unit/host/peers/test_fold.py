"""What hub and members conclude from states and the clock, whatever the network does to these."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from runner.core.wire.events import HubJoined, HubUnreachable, PeerDeparted, PeerLost
from runner.core.wire.order import Hub, Order, Program
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.states import Reason
from runner.core.wire.timing import HUB_TIMEOUT_S, JOIN_TIMEOUT_S
from runner.host.peers.fold import HubFold, MemberFold, News, PeerState, Phase, Upcoming
from tests.golden.builders import failed, lost, told

pytestmark = [pytest.mark.promise(2, 4)]

LOST_S = 15.0
STEP_S = 0.25
FAILED = failed("a", 0, 3)
SILENCE = TimeoutError(errno.ETIMEDOUT, "it does not answer")


class Node:
    """A supervisor without sockets. It notes what it concludes, and does as a real one would."""

    def __init__(self, name: str, now: float, spares: tuple[str, ...] = (), **more: Any) -> None:
        about = Hub("a", "127.0.0.1", 1, LOST_S, spares)
        self.order = Order("run", name, 0, "/w", "/w", hub=about, **{"nnodes": 2, **more})
        if "min_nodes" in more:
            restarts = Program("torchrun", max_restarts=9)
            self.order = replace(self.order, program=restarts, first_rank=None)
        kind = HubFold if name == "a" else MemberFold
        self.fold = kind(self.order, about, self.hear, now)
        self.said: list[tuple[Any, ...]] = []
        self.stop: Reason | None = None
        self.phase = Phase.ACTIVE
        self.detached = False
        self.controller_at = now  # as this host knows
        self.controller_anywhere = now

    def state(self, now: float) -> PeerState:
        is_hub = isinstance(self.fold, HubFold)
        age_s = now - (self.controller_anywhere if is_hub else self.controller_at)
        fold = self.fold
        return PeerState(
            *("run", 0, self.order.node, self.order.rejoin_count, round(now * 1e9), self.phase),
            *(age_s, age_s, fold.stalled_s(0.0, now), self.detached, self.stop),
            departed=fold.departed(now) if isinstance(fold, HubFold) else (),
        )

    def hear(self, news: News) -> None:
        if isinstance(news, PeerState):
            self.controller_anywhere = max(
                self.controller_anywhere, self.fold.heard[news.node].at - news.controller_age_s
            )
            self.detached = self.detached or (news.detached and self.stop is None)
        elif isinstance(news, Reason):
            self.said.append(("stop", news.text))
            self.stop = self.stop or news
        elif isinstance(news, PeerLost):
            self.said.append(("lost", news.peer, news.reason))
            self.stop = self.stop or lost(news.peer, news.reason)
        elif isinstance(news, PeerDeparted):
            self.said.append(("left", news.peer, news.nodes))
        elif isinstance(news, HubUnreachable):
            self.said.append(("apart", news.reason))
        else:
            assert isinstance(news, HubJoined)
            self.said.append(("joined",))


@dataclass
class Network:
    """Carries states between the hub `a` and its members; loses, delays, mixes and repeats them."""

    nodes: dict[str, Node]
    now: float = 1000.0
    loss: float = 0.0
    delay_s: float = 0.0
    replays: float = 0.0
    cut: set[str] = field(default_factory=set)
    random: random.Random = field(default_factory=lambda: random.Random(0))  # noqa: S311
    _under_way: list[tuple[float, str, PeerState]] = field(default_factory=list)
    _seen: list[tuple[str, PeerState]] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP_S
            for name, node in self.nodes.items():
                node.fold.is_stopping = node.stop is not None
                node.fold.check(self.now, SILENCE)
                self._post(name, node.state(self.now))
            if self._seen and self.random.random() < self.replays:
                to, state = self.random.choice(self._seen)
                self._under_way.append((self.now, to, state))
            due = [each for each in self._under_way if each[0] <= self.now]
            self._under_way = [each for each in self._under_way if each[0] > self.now]
            self.random.shuffle(due)
            for _, to, state in due:
                if to in self.nodes:
                    self.nodes[to].fold.take(state, self.now)

    def _post(self, name: str, state: PeerState) -> None:
        for to in [n for n in self.nodes if n != "a"] if name == "a" else ["a"]:
            self._seen.append((to, state))
            is_lost = self.cut & {name, to} or self.random.random() < self.loss
            if not is_lost:
                arrives_at = self.now + self.random.random() * self.delay_s
                self._under_way.append((arrives_at, to, state))

    def said(self, name: str) -> list[tuple[Any, ...]]:
        return self.nodes[name].said

    def lost(self, name: str) -> list[str]:
        return [said[1] for said in self.said(name) if said[0] == "lost"]


def network(names: str, **hub: Any) -> Network:
    """A hub `a` and its members, all of them joined."""
    made = Network({})
    hub = {"nnodes": len(names), **hub}
    made.nodes = {name: Node(name, made.now, **hub) for name in names}
    made.run(1.0)
    assert all(node.said == [("joined",)] for name, node in made.nodes.items() if name != "a")
    return made


@pytest.mark.parametrize("seed", range(40))
def test_a_bad_network_changes_no_conclusion(seed: int) -> None:
    """States are lost, late, mixed up and repeated: who fails stops all, nobody is lost for it.

    What was detached before the stop is so for all of them.
    """
    chance = random.Random(seed)  # noqa: S311
    net = network("abcd")
    net.random = chance
    net.loss = chance.uniform(0.0, 0.6)
    net.delay_s = chance.uniform(0.0, 5.0)
    net.replays = 0.8
    net.run(30.0)
    assert [net.said(name)[1:] for name in "bcd"] == [[], [], []]
    assert net.said("a") == []
    wisher = chance.choice("abcd")
    net.nodes[wisher].detached = True
    net.run(30.0)
    assert all(node.detached for node in net.nodes.values())
    net.nodes[chance.choice("abcd")].stop = FAILED
    net.run(30.0)
    assert [node.stop for node in net.nodes.values()] == [FAILED] * 4
    kinds = {said[0] for name in "abcd" for said in net.said(name)}
    assert kinds <= {"joined", "stop"}


def test_a_replayed_state_changes_nothing() -> None:
    """Of the same node, or another attempt; nor does the echo of one's own."""
    net = network("ab")
    hub = net.nodes["a"]
    old = replace(net.nodes["b"].state(net.now), stop=FAILED)
    net.run(1.0)
    assert not hub.fold.take(old, net.now)
    newer = replace(old, counter=old.counter + 10**12)
    assert not hub.fold.take(replace(newer, attempt=1), net.now)
    assert not hub.fold.take(replace(newer, node="a"), net.now)
    assert not net.nodes["b"].fold.take(replace(newer, node="c"), net.now)
    assert hub.stop is None
    assert hub.fold.take(newer, net.now)
    assert hub.stop == FAILED


@pytest.mark.parametrize(("names", "first"), [("cb", "c"), ("abc", "")])
def test_the_hub_knows_which_member_stopped_first(names: str, first: str) -> None:
    """Where that was not the hub itself."""
    net = network("abc")
    hub = net.nodes["a"].fold
    assert isinstance(hub, HubFold)
    for name in names:
        net.nodes[name].stop = FAILED
        hub.is_stopping = net.nodes["a"].stop is not None
        if name != "a":
            hub.take(net.nodes[name].state(net.now + 1), net.now)
    assert hub.first_to_stop == first


@pytest.mark.parametrize("seconds", [10.0, LOST_S + 2, 60.0])
def test_a_member_that_is_cut_off(seconds: float) -> None:
    """The table of docs/how-it-works.md: by `lost_s` both sides have begun to end the attempt."""
    net = network("abc")
    net.cut = {"b"}
    net.run(LOST_S - 1)
    stops = [node.stop for node in net.nodes.values()]
    assert stops == [None, None, None]
    net.run(max(0.0, seconds - LOST_S + 1))
    is_lost = seconds > LOST_S
    assert (net.lost("a"), net.lost("b")) == ((["b"], ["a"]) if is_lost else ([], []))
    net.cut = set()
    net.run(5.0)
    stopped = [node.stop is not None for node in net.nodes.values()]
    assert stopped == [is_lost] * 3


def test_who_has_ended_is_not_missed() -> None:
    """The hub waits for those who have not, and for those who are about to come."""
    net = network("ab", nnodes=3)
    hub = net.nodes["a"].fold
    net.nodes["b"].phase = Phase.ENDED
    net.run(1.0)
    assert hub.is_awaited(net.now)
    net.run(HUB_TIMEOUT_S)
    assert not hub.is_awaited(net.now)
    net.nodes.pop("b")
    net.run(2 * LOST_S)
    assert net.said("a") == []


@pytest.mark.parametrize("expected", [(), ("b",)])
def test_a_hub_that_nobody_reaches(expected: tuple[str, ...]) -> None:
    """It is said; where no controller watches over the start, it is the end on both sides."""
    net = Network({})
    net.nodes = {name: Node(name, net.now) for name in "ab"}
    if expected:
        expecting, member = net.nodes["a"].fold, net.nodes["b"]
        assert isinstance(expecting, HubFold)
        expecting.expect(expected)
        member.fold._order = replace(member.order, detached=True)
    net.cut = {"b"}
    net.run(HUB_TIMEOUT_S + 1)
    ((word, reason),) = net.said("b")
    assert (word, reason) == ("apart", "a at 127.0.0.1 port 1: it does not answer")
    assert not net.nodes["b"].fold.is_awaited(net.now)
    net.run(JOIN_TIMEOUT_S)
    why = f"within {JOIN_TIMEOUT_S:g} s"
    assert net.said("b")[1:] == ([("lost", "a", f"it could not be reached {why}")] * len(expected))
    assert net.said("a") == [("lost", "b", f"it did not start {why}")] * len(expected)
    hub = net.nodes["a"].fold
    assert isinstance(hub, HubFold)
    assert hub.knows("b") is bool(expected)
    assert hub.is_one_unproven(net.now, 60.0) is bool(expected)
    assert not hub.is_one_unproven(net.now + 60.0, 60.0)


def test_who_was_asleep_listens_before_it_judges() -> None:
    """All wait for one disk for longer than `lost_s`: nobody is lost, all of them are well."""
    net = network("abc")
    net.now += 2 * LOST_S
    net.run(2 * LOST_S)
    assert [net.said(name) for name in "abc"] == [[], [("joined",)], [("joined",)]]


def test_those_who_are_left_go_on_while_they_are_enough() -> None:
    """Each hears once who left, and how many there are; the next loss is one too many.

    Who was lost and comes back ends its part; who is started again takes part again.
    """
    net = network("abcd", min_nodes=3, master_port=29500)
    net.cut = {"d"}
    net.run(LOST_S + 2)
    for name in "abc":
        assert net.said(name)[-1] == ("left", "d", 3)
    net.nodes["e"] = Node("e", net.now, min_nodes=3, nnodes=4)
    net.run(1.0)
    assert net.said("e") == [("joined",)]  # whose ranks have not met those of d
    net.nodes["e"].phase = Phase.ENDED
    net.run(1.0)
    net.nodes.pop("e")
    net.nodes["d"] = Node("d", net.now, min_nodes=3, nnodes=4)  # as if it had not noticed
    net.cut = set()
    net.run(1.0)
    assert net.said("d")[1][1].startswith("lost d: nothing was heard")
    assert net.nodes["a"].stop is None
    net.nodes["d"] = Node("d", net.now, rejoin_count=1, min_nodes=3, nnodes=4)
    net.run(2 * LOST_S)
    assert net.said("d") == [("joined",)]
    assert net.nodes["a"].stop is None
    net.cut = {"c", "d"}
    net.run(LOST_S + 2)
    assert net.lost("a")


@pytest.mark.parametrize("required", [True, False])
def test_without_the_hub(*, required: bool) -> None:
    """Where the ranks' store is with it, that is the end; else each goes on by itself."""
    net = network("abc", min_nodes=2, master_port=29500 if required else 0)
    net.nodes.pop("a")
    net.run(LOST_S + 2)
    for name in "bc":
        kinds = [said[0] for said in net.said(name)[1:]]
        assert kinds[:2] == (["lost"] if required else ["apart", "left"])


def test_a_spare_ends_nothing() -> None:
    """Nor is it waited for."""
    net = network("abs", spares=("s",), nnodes=2)
    net.nodes.pop("s")
    net.run(LOST_S + 2)
    assert net.nodes["a"].stop is None
    net.nodes["b"].phase = Phase.ENDED
    net.run(1.0)
    assert not net.nodes["a"].fold.is_awaited(net.now)


def test_a_stall_is_one_of_all_hosts() -> None:
    """It is not known while a member is away, or one has not come that is still expected."""
    net = network("ab", nnodes=3, min_nodes=1)
    hub = net.nodes["a"].fold
    assert isinstance(hub, HubFold)
    assert hub.stalled_s(7.0, net.now) is None
    hub.depart(PeerDeparted("c", "its order was refused", 1), net.now)
    stalled = replace(net.nodes["b"].state(net.now + 1), stalled_s=5.0)
    hub.take(stalled, net.now)
    assert hub.stalled_s(7.0, net.now) == 5.0
    assert hub.stalled_s(3.0, net.now) == 3.0
    assert hub.stalled_s(7.0, net.now + 6.0) is None


def test_who_heard_a_controller_tells_all_and_nobody_is_told_it_back() -> None:
    """What they tell each other is late, and may not become later with each round."""
    net = network("abc")
    began = net.now
    for name, ago_s in (("a", 20.0), ("b", 10.0), ("c", 20.0)):
        net.nodes[name].controller_at = began - ago_s
        net.nodes[name].controller_anywhere = began - ago_s
    net.run(30.0)
    for node in net.nodes.values():
        assert node.controller_anywhere == pytest.approx(began - 10.0, abs=1.0)


PAST = PastAttempt(0, ("a", "b", "c"), told("rank 1 on b exited with 1"))
NEXT = Upcoming(1, ("a", "c"), ("b",), PAST)


@pytest.mark.parametrize("attempt", [0, 1])
def test_a_member_follows_its_hub_into_the_next_attempt(attempt: int) -> None:
    """The hub says it before it begins that, and after; what is older or later is not ours."""
    net = network("ab")
    member = net.nodes["b"].fold
    assert isinstance(member, MemberFold)
    said = replace(net.nodes["a"].state(net.now + 1), attempt=attempt)
    for other in (replace(said, attempt=2), replace(said, upcoming=replace(NEXT, attempt=0))):
        member.take(other, net.now)
        assert member.upcoming is None
    member.take(replace(said, counter=said.counter + 1, upcoming=NEXT), net.now)
    assert member.upcoming == NEXT


def test_a_hub_answers_who_has_not_heard_of_the_next_attempt() -> None:
    """By that it is known, and is told; who has begun it is not back in the one before."""
    net = network("abc")
    hub = Node("a", net.now)
    hub.fold._order = replace(hub.order, attempt=1)
    late = net.nodes["b"].state(net.now)
    assert hub.fold.take(late, net.now)
    assert hub.fold.heard == {}
    assert hub.fold.take(replace(late, attempt=1, counter=late.counter + 1), net.now)
    assert not hub.fold.take(replace(late, counter=late.counter + 2), net.now)


def test_nothing_is_left_once_all_have_proved_it_or_were_silent_for_long() -> None:
    """Of those who answer, each says so; for the others there is a time until they have ended."""
    net = network("abcd")
    hub = net.nodes["a"].fold
    assert isinstance(hub, HubFold)
    patience_s = LOST_S + 12.0
    for name in "bc":
        hub.take(net.nodes[name].state(net.now + 1), net.now)
        assert hub.is_one_unproven(net.now, patience_s)
        net.nodes[name].phase = Phase.PENDING
        hub.take(net.nodes[name].state(net.now + 2), net.now)
    net.cut = {"d"}
    heard_at = hub.heard["d"].at
    net.run(LOST_S + 3)
    assert net.lost("a") == ["d"]
    assert hub.proven == ["b", "c"]
    assert hub.is_one_unproven(net.now, patience_s)
    assert not hub.is_one_unproven(heard_at + patience_s, patience_s)
    ended = replace(net.nodes["d"].state(net.now + 1), phase=Phase.ENDED)
    hub.take(ended, net.now)  # as its guardian says that has killed what was left
    assert not hub.is_one_unproven(net.now, patience_s)
