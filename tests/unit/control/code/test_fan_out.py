"""Decisions of a fan-out: who serves whom, and who gets the release from this machine."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, cast

import pytest

from runner.control.code.code_store import PushSource
from runner.control.code.fan_out import CHECK_S, MAX_FAILURES, MIN_BYTES, FanOut, fan_out_notes
from runner.control.code.push import CodePush
from runner.control.code.push_target import PushTarget
from runner.control.rpc.session import HostSession, Inbox
from runner.core.errors import NotReady
from runner.core.model.release import File, Manifest
from runner.core.model.replies import checked_reply
from runner.core.model.spec import Node, PortRange
from runner.core.protocol.frames import Frame
from tests.golden.builders import spec

LOST_S = 30.0
PORTS = PortRange(4700, 4720)


class Session:
    """What a fan-out uses of a session: it notes the requests, and looks at whether it lives."""

    def __init__(self, name: str) -> None:
        self.node = Node(name, f"{name}.lan")
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.is_closed, self.idle_s, self.looks = False, 0.0, 0

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""
        self.looks += 1
        return self.is_closed

    def request(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Note a request."""
        self.requests.append((kind, data or {}))


class Push:
    """The hosts of a push, all of which lack the release, and its fan-out."""

    def __init__(self, *names: str, unreachable: str = "") -> None:
        self.sessions = {name: Session(name) for name in names}
        self.targets = {
            name: PushTarget(cast("HostSession", session), state="lacking")
            for name, session in self.sessions.items()
        }
        addresses = {name: f"at {name}" for name in names if name != unreachable}
        self.fan_out = FanOut(self.targets, addresses, "f00d", PORTS, {"keep": 3}, LOST_S)

    def states(self) -> dict[str, str]:
        """The state of each host."""
        return {name: target.state for name, target in self.targets.items()}

    def looks(self) -> int:
        """How often sessions were looked at since the last call."""
        count = sum(session.looks for session in self.sessions.values())
        for session in self.sessions.values():
            session.looks = 0
        return count

    def store(self, name: str) -> None:
        """A host has got the release."""
        self.fan_out.on_received(name)
        self.targets[name].state = "stored"
        self.fan_out.advance()

    def listen(self, name: str, port: int = 4711) -> None:
        """A host serves it."""
        self.fan_out.on_listening(name, port)
        self.fan_out.advance()

    def fail(self, name: str, reason: str = "no route", *, unreachable: bool = True) -> None:
        """A host could not get it from its holder."""
        self.fan_out.on_failed(name, reason, unreachable=unreachable)
        self.fan_out.advance()


def begun(*names: str, least: str = "", **options: str) -> Push:
    """A push of a big release that has just begun."""
    push = Push(*names, **options)
    push.fan_out.hold_back({name: MIN_BYTES // (1 + (name == least)) for name in names})
    push.fan_out.advance()
    return push


@pytest.mark.parametrize(("least", "first"), [("", "a"), ("c", "c")])
def test_one_copy_goes_where_it_costs_least(least: str, first: str) -> None:
    """To the host that lacks least."""
    push = begun("a", "b", "c", least=least)

    assert push.states() == {n: "lacking" if n == first else "queued" for n in "abc"}


def test_a_small_release_goes_to_all_at_once() -> None:
    """What the others would wait for is no gain."""
    push = Push("a", "b", "c")
    push.fan_out.hold_back(dict.fromkeys("abc", MIN_BYTES // 3))
    push.fan_out.advance()

    assert set(push.states().values()) == {"lacking"}
    assert not any(session.requests for session in push.sessions.values())


def test_who_has_it_serves_two_and_they_serve_on() -> None:
    """A tree: the port range and the token are in the requests."""
    push = begun("a", "b", "c", "d", "e")
    push.store("a")
    ((kind, service),) = push.sessions["a"].requests
    assert kind == "serve_release"
    assert (service["node"], service["first"], service["last"]) == ("a", 4700, 4720)
    push.listen("a")
    assert push.states() == {
        "a": "stored",
        **dict.fromkeys("bc", "fetching"),
        "d": "queued",
        "e": "queued",
    }
    ((kind, receipt),) = push.sessions["b"].requests
    assert kind == "receive_release"
    assert receipt["holder"] == {
        "node": "a",
        "address": "at a",
        "port": 4711,
        "token": service["token"],
    }
    push.store("b")
    assert push.states()["d"] == "fetching"
    assert push.states()["b"] == "opening"
    push.listen("b")
    assert (push.targets["e"].holder, push.states()["e"]) == ("b", "fetching")
    for name in "cde":
        push.store(name)
    push.fan_out.close()
    assert [n for n in "abcde" if push.sessions[n].requests[-1][0] == "stop_serving"] == ["a", "b"]
    assert fan_out_notes(push.targets) == []


def test_a_host_without_a_known_address_is_sent_its_copy() -> None:
    """Others could not find it, but it is not to wait either."""
    push = begun("a", "b", "c", unreachable="c")

    assert push.states() == {"a": "lacking", "b": "queued", "c": "lacking"}


def test_a_holder_that_cannot_listen_is_replaced() -> None:
    """The next copy goes to one of those that wait, and it is said why."""
    push = begun("a", "b", "c")
    push.store("a")
    push.fan_out.on_listening("a", 0, "no port is free")
    push.fan_out.advance()

    assert push.states() == {"a": "stored", "b": "lacking", "c": "queued"}
    (note,) = fan_out_notes(push.targets)
    assert "here to b, which another host was to serve: a cannot listen: no port is free" in note


@pytest.mark.parametrize(
    "end", [{"is_closed": True}, {"idle_s": LOST_S + 1}], ids=["closed", "silent"]
)
def test_a_holder_that_is_gone_serves_nobody(end: dict[str, Any]) -> None:
    """Whoever had it as a holder, or waits for one, gets it from another one."""
    push = begun("a", "b", "c", "d")
    push.store("a")
    push.listen("a")
    assert push.states()["d"] == "queued"
    for name, value in end.items():
        setattr(push.sessions["a"], name, value)
    push.store("b")
    push.listen("b")
    push.fail("c")

    assert {name: push.targets[name].holder for name in "cd"} == {"c": "b", "d": "b"}


def test_who_failed_at_one_holder_waits_for_no_free_place_there() -> None:
    """Another host that has it begins to serve, though the first one could serve more."""
    push = begun("a", "b", "x")
    push.store("a")
    push.listen("a")
    push.store("b")
    push.fail("x")
    assert push.states() == {"a": "stored", "b": "opening", "x": "queued"}
    push.listen("b")

    assert push.targets["x"].holder == "b"
    push.fail("x")
    assert push.states()["x"] == "lacking", "after two holders"


def test_the_only_port_of_a_cluster_is_left_to_its_launches() -> None:
    """A deploy must not make another launch fail."""
    push = Push("a", "b")
    fixed = PortRange(29500, 29500)
    fan_out = FanOut(push.targets, {"a": "1", "b": "2"}, "f00d", fixed, {"keep": 3}, LOST_S)
    push.targets["a"].state, push.targets["b"].state = "stored", "queued"
    fan_out.advance()

    ((_, service),) = push.sessions["a"].requests
    assert (service["first"], service["last"]) == (0, 0)


def test_hosts_that_do_not_reach_each_other_are_all_sent_their_copies() -> None:
    """After a few failures nobody tries any more, and it is said why."""
    names = [f"n{number}" for number in range(2 * MAX_FAILURES)]
    push = begun(*names)
    push.store("n0")
    push.listen("n0")
    failed = names[1 : 1 + MAX_FAILURES]
    for name in failed:
        assert push.states()[name] == "fetching"
        push.fail(name, 1000 * "no route")
    for name in names:
        if push.states()[name] == "fetching":
            push.fail(name)

    assert {push.states()[name] for name in names[1:]} == {"lacking"}
    note = fan_out_notes(push.targets)[0]
    assert note.startswith("the code went from here to n1, n2, n3")
    assert note.endswith("or set deploy.fan_out=off")
    assert len(note) < 700


def test_many_waiting_hosts_cost_little() -> None:
    """After a frame few sessions are looked at, and none if it changed nothing."""
    push = begun(*(f"n{number:03}" for number in range(200)))
    push.store("n000")
    push.listen("n000")
    push.store("n001")
    count = Counter(push.states().values())
    assert count == {"stored": 1, "opening": 1, "fetching": 2, "queued": 196}

    push.looks()
    push.listen("n001")
    assert 0 < push.looks() < 10
    push.fan_out.advance()  # what the last one did may have made more possible
    push.looks()
    push.fan_out.advance()
    assert push.looks() == 0


def test_a_holder_that_falls_silent_is_noticed_without_a_frame() -> None:
    """Nobody waits for it, though no host says anything."""
    push = begun("a", "b", "c")
    push.store("a")
    push.fan_out.advance()
    push.sessions["a"].idle_s = LOST_S + 1
    time.sleep(CHECK_S)
    push.fan_out.advance()

    assert push.states() == {"a": "opening", "b": "lacking", "c": "queued"}


CURE = "; let the hosts reach each other at the ports of cluster.master_port, or set"
RANGE_CURE = (
    "; set cluster.master_port to a range of ports at which the hosts reach each other, or set"
)


@pytest.mark.parametrize(
    ("ports", "unreachable", "advice"),
    [
        (PORTS, True, f"{CURE} deploy.fan_out=off"),
        (PortRange(4711, 4711), True, f"{RANGE_CURE} deploy.fan_out=off"),
        (PortRange(), True, f"{RANGE_CURE} deploy.fan_out=off"),
        (PORTS, False, ""),
    ],
    ids=["range", "one port", "any port", "other failure"],
)
def test_advice_is_about_ports_only_where_they_may_be_the_cause(
    ports: PortRange, unreachable: bool, advice: str
) -> None:
    """And about the ports at which holders really listen."""
    push = Push("a", "x")
    addresses = {"a": "1", "x": "2"}
    push.fan_out = FanOut(push.targets, addresses, "f00d", ports, {"keep": 3}, LOST_S)
    push.targets["a"].state, push.targets["x"].state = "stored", "queued"
    push.fan_out.advance()
    push.listen("a")
    push.fail("x", "why", unreachable=unreachable)

    (note,) = fan_out_notes(push.targets)
    assert note == f"the code went from here to x, which another host was to serve: why{advice}"


class Snapshot:
    """A release of one big file."""

    manifest = Manifest(files=(File("big", 0o644, 2 * MIN_BYTES, "0" * 64),))
    encoded = manifest.encode()

    def read(self, _: File) -> Iterator[bytes]:
        """Yield the content; what agents these hosts have does not look at it."""
        yield b"x"


class Answering(Session):
    """A session of a host that answers at once; `answers` are to requests to receive."""

    def __init__(self, name: str, inbox: Inbox, answers: list[Frame]) -> None:
        super().__init__(name)
        self.answers, self.inbox = answers, inbox
        self.closed_locally, self.unsent, self.last_sent = False, 0, time.monotonic()
        self.rejections: list[Exception] = []
        self.lies = False  # that it still misses the release

    def say(self, kind: str, **data: Any) -> None:
        """Have a frame arrive."""
        frame = checked_reply(Frame(kind, {"id": 1, **data}))
        self.inbox.put((cast("HostSession", self), frame))

    def send(self, *_: bytes) -> None:
        """Take the manifest, and chunks."""
        if "manifest" not in [kind for kind, _ in self.requests]:
            self.requests.append(("manifest", {}))
            self.say("missing", missing=[0])

    def request(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Answer a request."""
        super().request(kind, data)
        if kind == "offer":
            self.say("store", store_id=self.node.name)
        elif kind == "finish":
            frame = failed("") if self.lies else Frame("stored", {"new": True})
            self.say(frame.kind, **frame.data)
        elif kind == "serve_release":
            self.say("listening", port=4711, error="")
        elif kind == "receive_release":
            frame = self.answers.pop(0) if self.answers else Frame("stored", {"new": True})
            self.say(frame.kind, **frame.data)

    def reject(self, error: Exception) -> None:
        """Note that it sent what it must not."""
        self.rejections.append(error)
        self.is_closed = True
        self.inbox.put((cast("HostSession", self), Frame("closed", {"reason": str(error)})))

    def close(self) -> None:
        """End."""
        self.is_closed = True


def failed(reason: str) -> Frame:
    """What a host answers that could not get the release."""
    return Frame("missing", {"missing": [0], "reason": reason})


@pytest.mark.parametrize("reason", ["no route", ""])
@pytest.mark.parametrize("failures", [1, 2])
def test_a_push_ends_however_a_host_fails(reason: str, failures: int) -> None:
    """At one holder, or at two; with a reason or without."""
    inbox: Inbox = queue.SimpleQueue()
    names = ["a", "b", "c", "x"]
    answers = {"x": [failed(reason)] * failures}
    hosts = {name: Answering(name, inbox, answers.get(name, [])) for name in names}
    sessions = {name: cast("HostSession", host) for name, host in hosts.items()}
    addresses = {name: f"at {name}" for name in names}
    snapshot = cast("PushSource", Snapshot())
    push = CodePush(spec(), snapshot, sessions, inbox, lambda *_: None, {}, addresses)
    push.run()

    assert {target.state for target in push.targets.values()} == {"stored"}
    assert not any(host.rejections for host in hosts.values())
    assert (push.targets["x"].holder == "") == (failures == 2)
    assert push.targets["x"].fan_out_failure == (reason or "it did not say why")


def test_a_host_that_misses_it_for_ever_is_refused() -> None:
    """It may lie: after two holders it gets the release from here, and no more questions."""
    inbox: Inbox = queue.SimpleQueue()
    hosts = {name: Answering(name, inbox, []) for name in "abc"}
    hosts["c"].answers = [failed("no route")] * 2
    hosts["c"].lies = True
    sessions = {name: cast("HostSession", host) for name, host in hosts.items()}
    addresses = {name: f"at {name}" for name in "abc"}
    snapshot = cast("PushSource", Snapshot())
    push = CodePush(spec(), snapshot, sessions, inbox, lambda *_: None, {}, addresses)

    with pytest.raises(NotReady):
        push.run()
    assert [str(each) for each in hosts["c"].rejections] == ["'missing' that nobody asked for"]
