"""Samples of the nodes of jobs, which their login nodes read."""

from __future__ import annotations

import queue
from typing import Any, cast

import pytest

from runner.control.rpc.session import HostSession, Inbox
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import HostRunStatus, RunInfo
from runner.core.model.samples import Sample
from runner.core.protocol.frames import Frame
from runner.core.protocol.states import State
from runner.core.spec import Node
from runner.workflows import top

NODES = ("c1", "c2", "c3")
SAMPLE = Sample("c3", 0, 1.7e9)


class Login:
    """A session to a login node that answers for the last node alone, once it was asked for it."""

    closed = closed_locally = False
    idle_s = last_sent = 0.0

    def __init__(self, inbox: Inbox) -> None:
        self.node = Node("login", "login")
        self._inbox = inbox
        self._count = 0

    def request(self, kind: str, data: dict[str, Any] | None = None) -> int:
        self._count += 1
        if kind == "fetch" and data and data["node"] == "c3":
            told = {"id": self._count, "compressed": False}
            answer = Frame("fetched", told, SAMPLE.to_line().encode())
            self._inbox.put((cast("HostSession", self), answer))
        return self._count


def test_nodes_of_jobs_are_asked_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose samples do not come delay the view by one deadline, and no other node."""
    monkeypatch.setattr(top, "ANSWER_S", 0.1)
    info = RunInfo("0101-1200-train-abcd")
    status = HostRunStatus(info, "me", State.RUNNING, alive=True, changed_at=0.0)
    run = RemoteRun(info, dict.fromkeys(NODES, status), dict.fromkeys(NODES, "login"))
    inbox: Inbox = queue.SimpleQueue()
    asked = top.JobNodes({"login": cast("HostSession", Login(inbox))}, inbox)
    assert asked.samples([(run, node, "login") for node in NODES]) == {"c3": (SAMPLE,)}
