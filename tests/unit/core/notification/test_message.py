"""Messages of notifications."""

from __future__ import annotations

import json

import pytest

from runner.core.model.plan import Notify
from runner.core.model.results import Failure
from runner.core.notification.message import MAX_NODES, Subject

NOTIFY = Notify(("true",), "lab3", "resnet18", ("gpu1", "gpu2"), ("KEY",))
SUBJECT = Subject("0101-0000-x-abcd", 0, NOTIFY, run_flags="--run 0101-0000-x-abcd")


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
    data = SUBJECT.ended(state, code, 62.0, None, "").as_data(())
    assert (data["event"], data["state"], data["exit_code"]) == (event, state, code)
    assert data["text"] == f"run 0101-0000-x-abcd (resnet18 on lab3) {state} after 1 m 02 s"
    assert data["hint"] == "runner why --run 0101-0000-x-abcd"
    assert data["first_failure"] is None


def test_a_message_is_small_and_has_no_secret() -> None:
    """However many nodes there are, whatever a host has said: it fits into a pipe."""
    nodes = tuple(f"gpu{number:060}" for number in range(2000))
    big = Subject("r", 3, Notify(("true",), "c", "t", nodes), told_by="gpu1")
    failure = Failure("gpu1", None, "pass\x1b[31mword key-1 " + "é" * 5000)
    data = big.ended("failed", 1, 1.0, failure, "key-1 " * 1000).as_data(["key-1"])
    text = json.dumps(data)
    assert len(text.encode()) < 60_000
    assert "key-1" not in text
    assert "\x1b" not in data["text"]
    assert (len(data["nodes"]), data["node_count"]) == (MAX_NODES, 2000)
    assert big.stalled(5.0, 6.0).as_data(())["exit_code"] is None
