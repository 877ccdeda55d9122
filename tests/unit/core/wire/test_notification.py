"""Notifications: what messages say, and commands that take long or read nothing."""

from __future__ import annotations

import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from runner.core.wire.notification import KILLED, MAX_NODES, Message, Subject, deliver
from runner.core.wire.order import Notify
from tests.golden.builders import own
from tests.lab.waiting import PATIENCE, wait_until

SUBJECT = Subject(
    run_id="0101-0000-x-abcd",
    attempt=0,
    notify=Notify(("true",), "lab3", "resnet18", ("gpu1", "gpu2"), ("KEY",)),
)


@pytest.mark.parametrize(
    ("state", "code", "event"),
    [
        ("succeeded", 0, "end"),
        ("stopped", 130, "end"),
        ("stopped", 1, "failure"),
        ("failed", 3, "failure"),
        ("stuck", 5, "failure"),
    ],
)
def test_an_end(state: str, code: int, event: str) -> None:
    """What a user wanted is no failure."""
    data = SUBJECT.ended(state, code, 62.0)
    assert (data["event"], data["state"], data["exit_code"]) == (event, state, code)
    assert data["text"] == f"run 0101-0000-x-abcd (resnet18 on lab3) {state} after 1 m 02 s"
    assert data["hint"] == "runner why --run 0101-0000-x-abcd"
    assert data["first_failure"] is None


def test_a_message_is_small_and_has_no_secret() -> None:
    """However many nodes there are, whatever a host has said."""
    nodes = tuple(f"gpu{number:060}" for number in range(2000))
    notify = Notify(("true",), "c", "t", nodes)
    big = Subject("r", 3, notify, secrets=("key-1", "two\nlines"), told_by="gpu1")
    words = "pass\x1b[31mword key-1 two\nlines" + "é" * 5000
    data = big.ended("failed", 1, 1.0, own("gpu1", words), "key-1 " * 1000)
    text = json.dumps(data)
    assert len(text.encode()) < 60_000
    assert "key-1" not in text
    assert "lines" not in text
    assert "\x1b" not in data["text"]
    assert (len(data["nodes"]), data["node_count"]) == (MAX_NODES, 2000)
    assert big.stalled(5.0, 6.0)["exit_code"] is None


MESSAGE: Message = SUBJECT.ended("succeeded", 0, 1.0)


def test_a_command_is_killed_once_nobody_waits_for_it(tmp_path: Path) -> None:
    """It would have no owner: the launch ends, and its deadline with it."""
    command = "echo $$ > new; mv new pid; sleep 600; true"
    cancelled = threading.Event()
    with ThreadPoolExecutor() as pool:
        folder = str(tmp_path)
        work = pool.submit(deliver, [command], MESSAGE, os.environ, folder, (), cancelled.is_set)
        wait_until((tmp_path / "pid").exists, "the command")
        cancelled.set()
        assert work.result(60 * PATIENCE) == [(command, KILLED)]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_message_may_be_larger_than_a_pipe(tmp_path: Path) -> None:
    """Such as one of many nodes; whether the command reads it, and prints meanwhile, or not."""
    message = {**MESSAGE, "text": "x" * (1 << 20)}
    commands = ["tee /dev/stderr | wc -c > size", "exec >&- 2>&-; cat > whole", "exec 0<&-; true"]

    assert deliver(commands, message, os.environ, str(tmp_path), ()) == []

    length = len(json.dumps(message)) + 1
    assert int((tmp_path / "size").read_text()) == length
    assert len((tmp_path / "whole").read_bytes()) == length


def test_a_command_that_failed_is_told_without_secrets_and_its_background_is_not_awaited(
    tmp_path: Path,
) -> None:
    """Though that holds, and floods, what the command prints to."""
    command = "while echo word; do sleep 0.01; done & echo the key-1; exit 3"
    ((target, reason),) = deliver([command], MESSAGE, os.environ, str(tmp_path), ("key-1",))
    assert target.startswith("while echo word;")
    assert reason.startswith("exited with 3: ")
    assert "the ***" in reason
