"""Stop of an attempt: its deadline."""

from __future__ import annotations

import math
import signal
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.control.attempt.stop import StopSequence
from runner.core.model.spec import Node
from tests.golden import builders


@pytest.fixture
def stop() -> StopSequence:
    """Of an attempt without nodes."""
    observer: Any = SimpleNamespace(
        phase=print,
        node_status=print,
        mute=lambda: None,
        message=lambda _: None,
        fold_names=", ".join,
    )
    event_log = cast("Any", SimpleNamespace(record_own=lambda *_: None))
    return StopSequence(builders.spec(Node("a", "a")), {}, observer, event_log)


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
