"""Commands of `exec`, as the agent runs them."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.codec import INITIAL_CREDIT
from runner.host.agent.exec import CommandRun
from runner.host.agent.stream import Credit
from tests.lab.waiting import wait_until


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


def test_command_reads_nothing_and_leaves_no_descriptor() -> None:
    """Its standard input is at its end."""
    before = descriptors()
    printed: list[bytes] = []
    command = CommandRun(["/bin/sh", "-c", "cat; echo end"], dict(os.environ), 30)
    report = command.pass_on(Credit(), lambda _, data, **__: printed.append(data))
    assert (printed, report["code"]) == ([b"end\n"], 0)
    assert descriptors() <= before  # another test's thread may end meanwhile


def test_a_program_that_cannot_be_started_is_refused() -> None:
    """It has left nothing; that is not said of a command whose supervising process was killed."""
    command = CommandRun(["/none"], dict(os.environ), 30)
    report = command.pass_on(Credit(), lambda *_, **__: None)
    assert report == {"refused": "/none: No such file or directory"}


@pytest.mark.promise(4)
def test_output_waits_for_credit_and_a_kill_does_not() -> None:
    """A command whose output nobody shows waits; it can be ended all the same."""
    credit = Credit()
    sizes: list[int] = []
    offsets: list[int] = []

    def send(kind: str, data: bytes, *, file: str, offset: int) -> None:
        assert (kind, file) == ("data", "out")
        sizes.append(len(data))
        offsets.append(offset)

    command = CommandRun(["yes"], dict(os.environ), 60)
    reports: list[dict[str, Any]] = []
    passing = threading.Thread(target=lambda: reports.append(command.pass_on(credit, send)))
    passing.start()
    wait_until(lambda: sum(sizes) == INITIAL_CREDIT, "the credit to be used")
    credit.grant(1000)
    wait_until(lambda: sum(sizes) == INITIAL_CREDIT + 1000, "the rest of the credit")
    command.kill()
    passing.join(60)
    assert reports[0]["code"] == -9
    assert offsets == [sum(sizes[:number]) for number in range(len(sizes))]
