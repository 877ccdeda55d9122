"""Decisions of a fan-out: who serves whom, and who gets the release from this machine."""

from __future__ import annotations

from typing import Any, cast

import pytest

from runner.control.code.fan_out import MAX_FAILURES, MIN_BYTES, FanOut, fan_out_notes
from runner.control.code.push_target import PushTarget
from runner.control.rpc.session import HostSession
from runner.core.model.spec import Node, PortRange


class Session:
    """What a fan-out uses of a session: it notes the requests."""

    def __init__(self, name: str, transport: str) -> None:
        self.node = Node(name, f"{name}.lan", transport)
        self.requests: list[tuple[str, dict[str, Any]]] = []

    def request(self, kind: str, data: dict[str, Any] | None = None) -> None:
        """Note a request."""
        self.requests.append((kind, data or {}))


class Push:
    """The hosts of a push, all of which lack the release, and its fan-out."""

    def __init__(self, *names: str, local: str = "", unreachable: str = "") -> None:
        self.sessions = {n: Session(n, "local" if n == local else "ssh") for n in names}
        self.targets = {
            name: PushTarget(cast("HostSession", session), state="lacking")
            for name, session in self.sessions.items()
        }
        addresses = {name: f"at {name}" for name in names if name != unreachable}
        ports = PortRange(29500, 29510)
        self.fan_out = FanOut(self.targets, addresses, "f00d", ports, {"keep": 3})

    def states(self) -> dict[str, str]:
        """The state of each host."""
        return {name: target.state for name, target in self.targets.items()}

    def store(self, name: str) -> None:
        """A host has got the release."""
        self.fan_out.on_end(name)
        self.targets[name].state = "stored"
        self.fan_out.advance()

    def listen(self, name: str, port: int = 4711) -> None:
        """A host serves it."""
        self.fan_out.on_listening(name, port)
        self.fan_out.advance()

    def fail(self, name: str, reason: str = "no route") -> None:
        """A host could not get it from its holder."""
        self.fan_out.on_end(name, reason)
        self.fan_out.advance()


def begun(*names: str, least: str = "", **options: str) -> Push:
    """A push of a big release that has just begun."""
    push = Push(*names, **options)
    push.fan_out.hold_back({name: MIN_BYTES // (1 + (name == least)) for name in names})
    push.fan_out.advance()
    return push


@pytest.mark.parametrize(
    ("options", "first"), [({}, "a"), ({"least": "c"}, "c"), ({"least": "c", "local": "b"}, "b")]
)
def test_one_copy_goes_where_it_costs_least(options: dict[str, str], first: str) -> None:
    """To this machine, if it is one of the hosts; else to the one that lacks least."""
    push = begun("a", "b", "c", **options)

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
    assert (service["node"], service["first"], service["last"]) == ("a", 29500, 29510)
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
    """The next copy goes to one of those that wait."""
    push = begun("a", "b", "c")
    push.store("a")
    push.listen("a", 0)

    assert push.states() == {"a": "stored", "b": "lacking", "c": "queued"}


def test_a_holder_that_is_lost_is_replaced() -> None:
    """Its receivers queue again, and one of them gets the next copy from here."""
    push = begun("a", "b", "c")
    push.store("a")
    push.listen("a")
    push.targets["a"].state = "failed"
    push.fan_out.on_lost("a")
    for name in "bc":
        push.fail(name)

    assert push.states() == {"a": "failed", "b": "lacking", "c": "lacking"}


def test_hosts_that_do_not_reach_each_other_are_all_sent_their_copies() -> None:
    """After a few failures nobody tries any more, and it is said why."""
    names = [f"n{number}" for number in range(2 * MAX_FAILURES)]
    push = begun(*names)
    push.store("n0")
    push.listen("n0")
    for name in names[1 : 1 + MAX_FAILURES]:
        assert push.states()[name] == "fetching"
        push.fail(name)

    push.fan_out.advance()
    assert {push.states()[name] for name in names[1:]} <= {"lacking", "fetching"}
    (note,) = fan_out_notes(push.targets)
    assert note.startswith("the code went from here to n1, n2, n3")
    assert note.endswith("which another host was to serve: no route")
