"""Stop of an attempt: its deadline."""

from __future__ import annotations

import math
import signal
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.stop import CONFIRM_TIMEOUT_S, StopSequence
from runner.core.model.spec import Node
from runner.core.protocol.events import StopCause
from tests.golden import builders


def sequence(**nodes: Any) -> StopSequence:
    """That of an attempt with these nodes."""
    observer: Any = SimpleNamespace(
        phase=lambda *_: None,
        node_status=lambda *_: None,
        mute=lambda: None,
        message=lambda _: None,
        fold_names=", ".join,
    )
    event_log = cast("Any", SimpleNamespace(record_own=lambda *_: None))
    return StopSequence(builders.spec(Node("a", "a")), nodes, observer, event_log)


@pytest.fixture
def stop() -> StopSequence:
    """That of an attempt without nodes."""
    return sequence()


@pytest.mark.promise(4, 12)
def test_hosts_get_time_to_decide_once(stop: StopSequence) -> None:
    """One that lies says again and again that a relaunch is pending."""
    stop.extend_deadline()
    extended = stop.deadline
    assert extended < math.inf
    stop.extend_deadline()
    assert stop.deadline == extended


def test_nobody_waits_for_that_decision_after_a_kill(stop: StopSequence) -> None:
    """The second signal shortens the wait, whatever hosts say afterwards."""
    stop.on_signal(signal.SIGINT)
    stop.on_signal(signal.SIGINT)
    short = stop.deadline
    stop.extend_deadline()
    assert stop.deadline == short


@pytest.mark.promise(2)
def test_a_terminal_that_closes_leaves_once_every_host_knows_of_the_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A host that is lost or ended need not say so; a silent one is waited for, not for ever."""
    states = {"a": (False, False), "b": (False, False), "c": (True, False), "d": (False, True)}
    stop = sequence(
        **{
            name: SimpleNamespace(is_lost=is_lost, has_ended=has_ended, live_session=None)
            for name, (is_lost, has_ended) in states.items()
        }
    )
    assert stop.may_leave
    stop.begin("stop requested", cause=StopCause.USER)
    assert (stop.may_leave, stop.unconfirmed) == (False, ["a", "b"])
    stop.confirm("a")
    assert (stop.may_leave, stop.unconfirmed) == (False, ["b"])
    now = time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", lambda: now + CONFIRM_TIMEOUT_S)
        assert (stop.may_leave, stop.unconfirmed) == (True, ["b"])
    stop.confirm("b")
    assert stop.may_leave
