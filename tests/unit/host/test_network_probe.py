"""Connections that hosts try to each other, over the loopback interface."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from runner.core.wire.facts import Outcome, ProbeResult, Target
from runner.host import network_probe
from runner.host.process.bounded_child import BoundedChild, report_facts
from tests.lab.waiting import PATIENCE

TOKEN = b"of this check"
LIMITS = ("CONNECT_TIMEOUT_S", "ANSWER_TIMEOUT_S")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits for a busy machine."""
    for name in LIMITS:
        monkeypatch.setattr(network_probe, name, getattr(network_probe, name) * PATIENCE)


@contextmanager
def greeting(name: str, token: bytes = TOKEN) -> Iterator[Target]:
    """A host that listens, in a child, as there."""
    parent_pid = os.getpid()

    def serve() -> None:
        at = network_probe.listen("127.0.0.1", ())
        report_facts(port=at.getsockname()[1])
        network_probe.serve(at, name, token, parent_pid)

    child = BoundedChild(serve, 600.0)
    while "port" not in child.report():
        child.advance()
    yield Target(name, "127.0.0.1", child.report()["port"])
    child.kill()


def tried(*targets: Target) -> list[ProbeResult]:
    found = network_probe.dial_all("a", targets, TOKEN)
    return sorted(found, key=lambda each: each.target.node)


def test_another_token_or_another_node_is_a_stranger() -> None:
    """Whoever answers has to prove who it is."""
    with greeting("b", b"of another check") as other, greeting("c") as moved:
        found = tried(other, Target("d", moved.address, moved.port))
    assert [each.outcome for each in found] == [Outcome.WRONG_PEER, Outcome.WRONG_PEER]
    assert found[1].detail == "c"


def test_another_program_is_a_stranger() -> None:
    kept: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as at:

        def speak() -> None:
            kept.append(at.accept()[0])
            kept[0].sendall(b"220 mail.example.org ESMTP\r\n")

        speaks = threading.Thread(target=speak)
        speaks.start()
        (found,) = tried(Target("b", "127.0.0.1", at.getsockname()[1]))
        speaks.join()
    kept[0].close()
    assert found.outcome is Outcome.WRONG_PEER


def test_strangers_are_dropped() -> None:
    """Who says nothing does not stay, and keeps nobody else away."""
    with greeting("b") as target:
        at = (target.address, target.port)
        with socket.create_connection(at) as silent, socket.create_connection(at) as rude:
            rude.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert tried(target)[0].outcome is Outcome.REACHED
            for each in (silent, rude):
                each.settimeout(10 * PATIENCE)
                with contextlib.suppress(ConnectionResetError):
                    while each.recv(4096):
                        pass
