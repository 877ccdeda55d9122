"""Fault, one row of the list in `faults.py`, and the forms that most rows take."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.lab.causing import FaultSetup, MidRunFault, no_setup
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, rank_overrides


@dataclass(frozen=True)
class Fault:
    """One fault, on node2 of two unless it says otherwise.

    Attributes:
        name: What happens, in words.
        args: What is typed after `python -m runner`; `{node2}` and the like become addresses.
        expected_output: What the last 25 lines of it have to hold, its line breaks left out.
        code: The exit code.
        cause: Its name in `result.json`.
        setup: Brings it about, and undoes it.
        during: Does so once every rank runs.
    """

    name: str
    args: tuple[str, ...]
    expected_output: tuple[str, ...]
    code: int = 1
    cause: str = ""
    setup: FaultSetup = no_setup
    during: MidRunFault | None = None


def program_args(name: str, *args: str) -> tuple[str, ...]:
    """A launch of one of the tests' programs on the whole lab."""
    return (
        "cluster=lab",
        "grace_s=1",
        f"task.script={PROGRAMS / name}",
        "task.args_style=raw",
        f"task.args={json.dumps(args)}",
    )


def rank_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    cause: str = "",
    setup: FaultSetup = no_setup,
) -> Fault:
    """A fault of rank 1 while the other sleeps; the supervisors start the ranks, without torch."""
    first = "first failure: rank 1 on node2"
    words = (*program_args("faulty.py", "1", *args), PLAIN_ENTRY)
    return Fault(name, words, (first, *expected_output), cause=cause, setup=setup)


def hang_fault(name: str, mode: str, expected_output: tuple[str, ...]) -> Fault:
    """A run that stands still because of rank 1; the supervisors start the ranks."""
    stop_on_stall = ("watch.stall_s=5", "watch.action=stop")
    run_args = (*program_args("hanging.py", mode, "1"), PLAIN_ENTRY, *stop_on_stall)
    first = "first failure: no rank made progress for"
    return Fault(name, run_args, (first, *expected_output), cause="standstill")


def refused_launch(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup = no_setup,
) -> Fault:
    """What keeps a launch from starting anything."""
    words = ("cluster=lab", *rank_overrides("print=up"), *args)
    return Fault(name, words, expected_output, code=3, setup=setup)


def check_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup,
    code: int = 3,
) -> Fault:
    """What `check` sees."""
    return Fault(name, ("check", "--cluster", "lab", *args), expected_output, code, setup=setup)
