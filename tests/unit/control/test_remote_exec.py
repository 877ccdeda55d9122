"""One command on every host: output, ends, and silent hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from runner.control import remote_exec
from runner.control.remote_exec import OutputSink, RemoteCommand
from runner.control.rpc.session import HostSession, Inbox
from runner.core.replies import checked_reply
from runner.core.wire.codec import Frame
from tests.unit.control.rpc.test_wait import FakeSession

LOST_S = 15.0


class Run:
    """A command on hosts a and b."""

    def __init__(self) -> None:
        self.inbox = Inbox()
        self.hosts = {name: FakeSession(name, self.inbox) for name in "ab"}
        self.sessions = cast("dict[str, HostSession]", self.hosts)
        self.execution = RemoteCommand(self.sessions, self.inbox, LOST_S)

    def come(self, name: str, kind: str, payload: bytes = b"", **data: Any) -> None:
        self.inbox.put((self.sessions[name], checked_reply(Frame(kind, data, payload))))

    def output(self, name: str, stream: str, data: bytes) -> None:
        self.come(name, "data", data, file=stream, offset=0)

    def exited(self, name: str, code: int = 0, **data: Any) -> None:
        self.come(name, "exited", **{"code": code, "timed_out": False, "survivors": [], **data})

    def told(
        self, sink: OutputSink | None = None, is_full: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        """Run it; return the problem of each host."""
        self.execution.run(["echo", "a b"], 60.0, sink, is_full)
        return {name: each.problem for name, each in self.execution.results.items()}


@pytest.fixture
def run() -> Run:
    return Run()


def test_flood_of_one_host_hides_no_other(run: Run) -> None:
    """While one prints without end, the others are looked after, and hear from us."""
    run.hosts["a"].idle_s = LOST_S + 1
    for _ in range(20):
        run.output("b", "out", b"y\n")
    run.exited("b")

    assert run.told()["a"].startswith("lost")
    assert "ping" in run.hosts["b"].requests


def test_endless_output_is_cut_and_that_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's memory is no host's to fill."""
    monkeypatch.setattr(remote_exec, "MAX_OUTPUT_BYTES", 10)
    for _ in range(5):
        run.output("a", "out", b"12345678")
    run.exited("a")
    run.exited("b")
    run.told()

    assert bytes(run.execution.results["a"].stdout) == b"1234567812"
    assert run.execution.results["a"].truncated


@pytest.mark.promise(2)
def test_whatever_the_words_an_end_that_nobody_saw_is_not_verified(run: Run) -> None:
    """A command that was refused has left nothing."""
    run.come("a", "exited", error="cannot start what ends it; parts of it may be left")
    run.come("b", "refused", reason="/none: No such file or directory")
    assert run.told()["b"] == "cannot be started: /none: No such file or directory"
    assert [run.execution.results[name].unverified for name in "ab"] == [True, False]


def test_output_is_passed_on_and_hosts_wait_while_it_is_not_shown(run: Run) -> None:
    """Nothing is kept of it; a host whose output waits to be shown may send no more."""
    shown: list[tuple[str, str, int]] = []
    run.output("a", "out", b"x" * 9)
    run.output("b", "err", b"y")
    run.exited("a")
    run.exited("b")

    run.told(
        lambda node, stream, data: shown.append((node, stream, len(data))), lambda: len(shown) == 2
    )

    assert shown == [("a", "out", 9), ("b", "err", 1)]
    assert run.hosts["a"].held == [False, False, True, True, True]
    assert not run.execution.results["a"].stdout
