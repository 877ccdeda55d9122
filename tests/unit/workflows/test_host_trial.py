"""A host trial ends in time, and when the user has enough."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from runner.core.errors import Interrupted
from runner.core.model.spec import Node, Ssh
from runner.workflows import host_trial


@pytest.fixture
def silent_host() -> Iterator[Node]:
    """A machine whose port takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield Node("gpu1", "127.0.0.1", port=server.getsockname()[1])


SSH = Ssh(user="ada", config="/dev/null", known_hosts="/dev/null")


def test_a_silent_host_is_given_up(silent_host: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time limit of the trial, which is not that of one step of the login."""
    monkeypatch.setattr(host_trial, "TRIAL_TIMEOUT_S", 0.3)
    trial = host_trial.try_host(silent_host, SSH, "python3")
    assert (trial.facts, trial.with_torch) == (None, None)
    assert str(trial.problem) == "gpu1: no answer within 0.3 s"


def test_ctrl_c_ends_it(silent_host: Node) -> None:
    """At once, and as an interrupt."""
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(Interrupted) as caught:
        host_trial.try_host(silent_host, SSH, "python3")
    assert caught.value.exit_code == 130
