"""Notifier of a supervisor: what it makes of a reason, and when a stall is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.model.plan import Notify, Order
from runner.core.protocol.events import NotificationFailed
from runner.core.protocol.paths import RunPaths
from runner.host.storage.run_folder import read_events
from runner.host.supervisor.notifier import LAG_S, Notifier, _failure, is_first_alive
from tests.lab.waiting import wait_until

NOTIFY = Notify(("true",), "lab", "t", ("a", "b", "c"))
ORDER = Order("r", "a", 0, "/w", ("true",), {}, "/", (0,), stall_s=10.0, notify=NOTIFY)


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        ("rank 3 on gpu2 exited with 7", ("gpu2", 3, "exited with 7")),
        ("lost gpu4: nothing was heard", ("gpu4", None, "nothing was heard")),
        ("the program on gpu5 exited with 1", ("gpu5", None, "the program on gpu5 exited with 1")),
        ("the master's port was taken", ("here", None, "the master's port was taken")),
    ],
)
def test_a_reason_names_whose_failure_it_was(
    reason: str, found: tuple[str, int | None, str]
) -> None:
    """Of another node, too: hosts tell each other a text."""
    failure = _failure("here", reason)
    assert (failure.node, failure.rank, failure.reason) == found


def test_the_second_node_stands_in_for_a_first_that_is_lost() -> None:
    """And no other; nobody, where nobody is to be told."""
    second, third = replace(ORDER, node="b"), replace(ORDER, node="c")
    assert is_first_alive(ORDER, {"b"})
    assert [is_first_alive(order, set()) for order in (second, third)] == [False, False]
    assert [is_first_alive(order, {"a"}) for order in (second, third)] == [True, False]
    assert not is_first_alive(replace(ORDER, notify=None), set())


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was told."""
    told: list[Any] = []
    monkeypatch.setattr(Notifier, "tell", lambda _self, *args: told.append(args))
    return told


def test_a_stall_is_told_once_and_of_the_whole_run_only(stalls: list[Any], tmp_path: Path) -> None:
    """Not where a part is unknown, no rank is left, or word of progress may be under way."""
    notifier = Notifier(RunPaths(str(tmp_path), "r", "a"), ORDER, {})
    late = 10.0 + LAG_S
    for stalled_s in (None, float("inf"), 1e9, 1.0, 10.0, late - 0.1):
        notifier.watch(stalled_s, may_tell=True)
    notifier.watch(late, may_tell=False)
    assert stalls == []
    notifier.watch(late, may_tell=True)  # such as when the launch has just gone
    notifier.watch(late + 1, may_tell=True)
    notifier.watch(None, may_tell=True)
    notifier.watch(late + 2, may_tell=True)
    assert len(stalls) == 1
    notifier.watch(0.5, may_tell=True)
    notifier.watch(late, may_tell=True)
    assert len(stalls) == 2
    silent = Notifier(RunPaths(str(tmp_path), "r", "a"), replace(ORDER, stall_s=0.0), {})
    silent.watch(1000.0, may_tell=True)
    assert len(stalls) == 2


def test_what_goes_wrong_with_telling_is_in_the_log_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though a supervisor watches many times a second; the run goes on."""
    notifier = Notifier(RunPaths(str(tmp_path), "r", "a"), ORDER, {})
    odd: Any = "a text"
    for _ in range(3):
        notifier.guard(lambda: notifier.watch(odd, may_tell=True))
    assert capsys.readouterr().err.count("TypeError: ") == 1


def test_a_server_that_hangs_up_is_a_failed_notification(tmp_path: Path) -> None:
    """The others are told, and it is on record: the process that tells outlives the write."""
    server = socket.create_server(("127.0.0.1", 0))

    def hang_up() -> None:
        with contextlib.suppress(OSError):
            while True:
                server.accept()[0].close()

    threading.Thread(target=hang_up, daemon=True).start()
    url = f"http://127.0.0.1:{server.getsockname()[1]}/"
    command = f"grep SigIgn /proc/$PPID/status > {tmp_path}/ignored; cat > {tmp_path}/told"
    notify = replace(NOTIFY, targets=(url, command))
    folder = RunPaths(str(tmp_path), "r", "a")
    Path(folder.events).parent.mkdir(parents=True)
    notifier = Notifier(folder, ORDER, dict(os.environ))
    notifier.tell(notify, lambda subject: subject.stalled(1.0, 2.0))

    def has_ended() -> bool:
        notifier.watch(None, may_tell=False)
        return not notifier.pids

    wait_until(has_ended, "the end of the one who tells")
    server.close()
    assert json.loads((tmp_path / "told").read_text())["event"] == "stall"
    (event,) = read_events(folder)
    assert isinstance(event.body, NotificationFailed)
    ignored = int((tmp_path / "ignored").read_text().split()[1], 16)
    assert ignored >> (signal.SIGPIPE - 1) & 1  # whether a write meets it is a matter of luck
