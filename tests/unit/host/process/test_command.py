"""Commands of `exec`, as the agent runs them."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from runner.host.process.command import CommandRun
from tests.lab.waiting import PATIENCE, wait_until


def descriptors() -> list[str]:
    """Those of this process."""
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def start(*argv: str) -> CommandRun:
    """A command that takes input."""
    command = CommandRun(1, [*argv], dict(os.environ), 30, lambda *_: None, takes_input=True)
    command.window = 1 << 20
    return command


def finish(command: CommandRun) -> None:
    """Wait for its end."""

    def has_ended() -> bool:
        command.advance()
        return command.ended

    wait_until(has_ended, "the end of the command")


@pytest.mark.parametrize("data", [b"", b"x" * (1 << 20)])
def test_command_that_ends_before_its_input_leaves_no_descriptor(data: bytes) -> None:
    """Also if more than its pipe holds was being written to it."""
    before = descriptors()
    command = start("sleep", "0.2" if data else "0")
    writer = threading.Thread(target=command.write, args=(data,))
    if data:
        writer.start()

    finish(command)
    if data:
        writer.join(10 * PATIENCE)

    assert descriptors() == before
    command.write(b"late")
    command.write(b"")
    assert descriptors() == before
