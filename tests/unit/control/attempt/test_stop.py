"""Stop of an attempt: its deadline."""

from __future__ import annotations

import math
import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from runner.control.attempt.stop import CONFIRM_TIMEOUT_S, FIRST_FAILURE_S, StopSequence
from runner.core.spec import Node
from runner.core.wire.states import Reason, ReasonKind
from tests.golden import builders
from tests.golden.builders import asked, failed
from tests.unit.control.rpc.test_wait import FakeSession


def sequence(said: list[str], **nodes: Any) -> StopSequence:
    attempt = MagicMock(nodes=nodes, say=said.append)
    attempt.spec = builders.spec(Node("a", "a"))
    return StopSequence(attempt)


@pytest.mark.promise(4, 12)
def test_hosts_get_time_to_decide_once() -> None:
    """One that lies says again and again that a relaunch is pending."""
    stop = sequence([])
    stop.extend_deadline()
    extended = stop.deadline
    assert extended < math.inf
    stop.extend_deadline()
    assert stop.deadline == extended


@pytest.mark.promise(2)
def test_a_terminal_that_closes_leaves_once_every_host_has_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that is lost or ended need not have it; a silent one is waited for, not for ever."""
    states = {"a": (False, False), "b": (False, False), "c": (True, False), "d": (False, True)}
    nodes = {
        name: SimpleNamespace(is_lost=is_lost, has_ended=has_ended, live_session=FakeSession(name))
        for name, (is_lost, has_ended) in states.items()
    }
    stop = sequence([], **nodes)
    assert stop.may_leave
    stop.begin(asked("stop requested"))
    assert (stop.may_leave, stop.unconfirmed) == (False, ["a", "b"])
    stop.on_command_sent("a", 1)
    assert (stop.may_leave, stop.unconfirmed) == (False, ["b"])
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now + CONFIRM_TIMEOUT_S)
        assert (stop.may_leave, stop.unconfirmed) == (True, ["b"])
    stop.on_command_sent("b", 1)
    assert stop.may_leave


@pytest.mark.promise(2)
@pytest.mark.parametrize("final", [asked(), Reason(ReasonKind.DECIDED, "b")])
def test_an_earlier_stop_confirms_no_later_one(final: Reason) -> None:
    """A final stop rules out a relaunch, which that of another node does not."""
    node = SimpleNamespace(is_lost=False, has_ended=False, live_session=FakeSession("a"))
    stop = sequence([], a=node)
    stop.begin(failed("b", 3, 1))
    stop.begin(final)
    stop.begin(failed("b", 4, 1))
    sent = [data["reason"]["kind"] for data in node.live_session.sent]
    assert sent == ["rank", final.kind.value]
    stop.on_command_sent("a", 1)
    assert stop.unconfirmed == ["a"]
    stop.on_command_sent("a", 2)
    assert stop.may_leave


def test_the_reason_is_the_first_failure_though_its_report_comes_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is shown once, when the reports of all hosts had time to arrive."""
    said: list[str] = []
    stop = sequence(said)
    stop.begin(failed("b", 1, 4))
    stop.name_reason(lambda: None)
    assert said == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + FIRST_FAILURE_S)
    for _ in range(2):
        stop.name_reason(lambda: failed("a", 0, 3))
    assert said == ["rank 0 on a exited with 3; stopping the rest"]
