"""The interpreter in a container: what it found there, and what the engine said instead."""

from __future__ import annotations

import sys
from pathlib import Path

from runner.core.model.container import InsideFacts
from runner.host.facts import interpreter
from runner.host.process.bounded_child import BoundedChild, wait_all
from tests.lab.waiting import PATIENCE


def ended(*run: str) -> BoundedChild:
    """A probe with the command that makes a container of the words after it."""
    child = interpreter.start_in_container(
        run, sys.executable, {"PATH": "/usr/bin:/bin"}, 20 * PATIENCE
    )
    wait_all([child])
    return child


def test_one_probe_finds_interpreter_and_place(tmp_path: Path) -> None:
    """Here it is this machine that it runs on."""
    (tmp_path / "nvidia_nccl_cu99-2.27.3.dist-info").mkdir()
    child = ended("/usr/bin/env", f"PYTHONPATH={tmp_path}")
    found, inside = interpreter.result(child, "python"), interpreter.inside_facts(child)
    assert found.executable == sys.executable
    assert found.nccl["nvidia-nccl-cu99"] == "2.27.3"
    assert inside.gpus >= 0
    assert inside.shm_bytes > 0


def test_advice_is_not_the_reason() -> None:
    """Engines print it last."""
    lines = "docker: no room.\\nSee 'docker run --help'.\\n"
    child = ended("/bin/sh", "-c", f'printf "{lines}"; exit 125')
    error = interpreter.result(child, "python3").error
    assert error.endswith("ended with exit code 125 without an answer: docker: no room.")
    assert interpreter.inside_facts(child) == InsideFacts()
