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


class Story(Inbox):
    """An inbox that never waits, and ends a test that would."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.at: dict[int, Callable[[], None]] = {}

    def get(self, *_: Any, **__: Any) -> Any:
        self.looks += 1
        assert self.looks < 1000, "this never ends"
        self.at.get(self.looks, lambda: None)()
        return self._frames.get_nowait()


class Run:
    """A command on hosts a and b."""

    def __init__(self) -> None:
        self.inbox = Story()
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
    full = False
    run.output("a", "out", b"x" * 9)
    run.output("b", "err", b"y")

    def fill() -> None:
        nonlocal full
        full = True
        run.output("a", "out", b"x" * 9)
        run.exited("a")
        run.exited("b")

    run.inbox.at[3] = fill
    run.told(lambda node, stream, data: shown.append((node, stream, len(data))), lambda: full)

    assert shown == [("a", "out", 9), ("b", "err", 1), ("a", "out", 9)]
    assert run.hosts["a"].held[:3] == [False] * 3
    assert run.hosts["a"].held[-1]
    assert not run.execution.results["a"].stdout
