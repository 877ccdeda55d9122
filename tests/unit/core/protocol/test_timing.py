"""Timing that both ends of a connection agree on, and the variable by which tests shorten it."""

from __future__ import annotations

import os
import subprocess
import sys

from runner.core.protocol import timing

PRINT = (
    "from runner.core.protocol import timing; from runner.control.rpc.bootstrap import "
    "boot_command; from runner.core.model.spec import Spec, Task; "
    "spec = Spec('r', 'lab', (), Task('t', 'command', 'true')); "
    "print(timing.PING_S, boot_command(spec, 'n'))"
)


def printed_with(**env: str) -> str:
    """Return the ping interval and the boot command of a controller with that environment."""
    return subprocess.run(
        [sys.executable, "-c", PRINT],
        env={**os.environ, **env},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def test_controller_waits_longer_than_the_hosts_take() -> None:
    """A host's own limit passes first, and its report arrives in time."""
    assert timing.HUB_REPORT_TIMEOUT_S > timing.HUB_TIMEOUT_S
    assert timing.STOP_TIMEOUT_S > timing.UNRESPONSIVE_S > timing.KILL_TIMEOUT_S
    assert timing.DECISION_TIMEOUT_S > timing.JOIN_TIMEOUT_S


def test_variable_for_tests_reaches_controller_and_agent() -> None:
    """Both sides divide their internal times by the same number."""
    shortened = printed_with(RUNNER_TEST_SPEEDUP="4")
    usual = printed_with(RUNNER_TEST_SPEEDUP="")

    assert shortened.startswith("0.5 ")
    assert "exec env RUNNER_TEST_SPEEDUP=4 python3" in shortened
    assert usual.startswith("2.0 ")
    assert "env RUNNER_TEST_SPEEDUP" not in usual
