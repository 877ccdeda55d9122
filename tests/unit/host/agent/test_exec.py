"""Commands of `exec`, as the agent runs them."""

from __future__ import annotations

import os
from pathlib import Path

from runner.host.agent.exec import CommandRun
from tests.lab.waiting import wait_until


def descriptors() -> list[str]:
    return sorted(path.name for path in Path("/proc/self/fd").iterdir())


def test_command_reads_nothing_and_leaves_no_descriptor() -> None:
    """Its standard input is at its end."""
    before = descriptors()
    printed: list[bytes] = []
    reply = lambda kind, _, data: printed.append(data or kind.encode())  # noqa: E731
    command = CommandRun(1, ["/bin/sh", "-c", "cat; echo end"], dict(os.environ), 30, reply)
    command.window = 1 << 20

    def has_ended() -> bool:
        command.advance()
        return command.ended

    wait_until(has_ended, "the end of the command")

    assert printed == [b"end\n", b"exited"]
    assert descriptors() == before
