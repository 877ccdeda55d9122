"""Notifications: what messages say, and commands that take long or read nothing."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.wire.notification import KILLED, MAX_NODES, Message, Teller
from runner.core.wire.order import Notify, Order
from tests.golden.builders import own
from tests.lab.waiting import PATIENCE, wait_until

MESSAGE: Message = {"run_id": "r", "event": "end", "state": "succeeded"}
NOTIFY = Notify(("true",), "lab3", "resnet18", ("gpu1", "gpu2"), ("KEY",))


class Told(Teller):
    """One who keeps what it would send."""

    def __init__(self, notify: Notify = NOTIFY, cwd: Path = Path(), key: str = "") -> None:
        order = Order("0101-0000-x-abcd", "gpu1", 0, "/w", "/", notify=notify)
        super().__init__(order, {**os.environ, "KEY": key}, str(cwd), name="gpu1")

    def _send(self, message: Message) -> None:
        self.message = message


@pytest.mark.parametrize(
    ("state", "code", "event"),
    [("succeeded", 0, "end"), ("stopped", 130, "end"), ("stopped", 1, "failure")],
)
def test_an_end(state: str, code: int, event: str) -> None:
    """What a user wanted is no failure."""
    teller = Told()
    teller.tell(state, code, seconds=62.0)
    assert teller.message["event"] == event
    text = f"run 0101-0000-x-abcd (resnet18 on lab3) {state} after 1 m 02 s"
    assert teller.message["text"] == text


def test_a_message_is_small_and_has_no_secret() -> None:
    """However many nodes there are, whatever a host has said."""
    nodes = tuple(f"gpu{number:060}" for number in range(2000))
    big = Told(replace(NOTIFY, nodes=nodes), key="key-1\ntwo\nlines")
    words = "pass\x1b[31mword key-1 two\nlines" + "é" * 5000
    big.tell("failed", 1, own("gpu1", words), "key-1 " * 1000)
    data = big.message
    text = json.dumps(data)
    assert len(text.encode()) < 60_000
    assert "key-1" not in text
    assert "lines" not in text
    assert "\x1b" not in data["text"]
    assert (len(data["nodes"]), data["node_count"]) == (MAX_NODES, 2000)
    big.tell("running", stalled_s=5.0)
    assert big.message["exit_code"] is None


def test_a_command_is_killed_once_nobody_waits_for_it(tmp_path: Path) -> None:
    """It would have no owner: the launch ends, and its deadline with it."""
    command = "echo $$ > new; mv new pid; sleep 600; true"
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        teller = Told(replace(NOTIFY, targets=(command,)), tmp_path)
        work = pool.submit(teller.deliver, MESSAGE, cancelled.is_set)
        wait_until((tmp_path / "pid").exists, "the command")
        cancelled.set()
        (failure,) = work.result(60 * PATIENCE)
        assert (failure.target, failure.reason) == (command, KILLED)
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_message_may_be_larger_than_a_pipe(tmp_path: Path) -> None:
    """Such as one of many nodes; whether the command reads it, and prints meanwhile, or not."""
    commands = ("tee /dev/stderr | wc -c > size", "exec >&- 2>&-; cat > whole", "exec 0<&-; true")
    teller = Told(replace(NOTIFY, targets=commands), tmp_path)
    message = {**MESSAGE, "text": "x" * (1 << 20)}

    assert teller.deliver(message) == []

    length = len(json.dumps(message)) + 1
    assert int((tmp_path / "size").read_text()) == length
    assert len((tmp_path / "whole").read_bytes()) == length


def test_a_command_that_failed_is_told_without_secrets_and_its_background_is_not_awaited(
    tmp_path: Path,
) -> None:
    """Though that holds, and floods, what the command prints to."""
    command = "while echo word; do sleep 0.01; done & echo the key-1; exit 3"
    teller = Told(replace(NOTIFY, targets=(command,)), tmp_path, key="key-1")
    (failure,) = teller.deliver(MESSAGE)
    assert failure.target.startswith("while echo word;")
    assert failure.reason.startswith("exited with 3: ")
    assert "the ***" in failure.reason
