"""Fault, one row of the list in `faults.py`, and the forms that most rows take."""

from __future__ import annotations

import json
from dataclasses import dataclass

from tests.lab.causing import FaultSetup, MidRunFault, no_setup
from tests.lab.launching import PLAIN_ENTRY, PROGRAMS, rank_overrides

THREE = "cluster.only=[node1,node2,node3]"
STOP_ON_STALL = ("watch.stall_s=2", "watch.action=stop")


@dataclass(frozen=True)
class Fault:
    """One fault, on node3 of three or four unless it says otherwise.

    Attributes:
        name: What happens, in words.
        args: What is typed after `python -m runner`; `{node3}` and the like become addresses.
        expected_output: What the last 25 lines of it have to hold, its line breaks left out.
        code: The exit code.
        timeout_s: Seconds.
        cause: Its name in `result.json`.
        setup: Brings it about, and undoes it.
        during: Does so once every rank runs.
        all_only: Only `make test-all` tries it: another fault takes the same path.
    """

    name: str
    args: tuple[str, ...]
    expected_output: tuple[str, ...]
    code: int = 1
    timeout_s: float = 30.0
    cause: str = ""
    setup: FaultSetup = no_setup
    during: MidRunFault | None = None
    all_only: bool = False


def program_args(name: str, *args: str) -> tuple[str, ...]:
    """A launch of one of the tests' programs on the whole lab."""
    return (
        *("cluster=lab", "grace_s=1", f"task.script={PROGRAMS / name}"),
        *("task.args_style=raw", f"task.args={json.dumps(args)}"),
    )


def rank_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    cause: str = "",
    *,
    all_only: bool = False,
) -> Fault:
    """A fault of rank 2 while the others sleep; the supervisors start the ranks, without torch."""
    first = "first failure: rank 2 on node3"
    words = (*program_args("faulty.py", "2", *args), THREE, PLAIN_ENTRY)
    return Fault(name, words, (first, *expected_output), cause=cause, all_only=all_only)


def hang_fault(
    name: str, mode: str, expected_output: tuple[str, ...], *, all_only: bool = False
) -> Fault:
    """A run that stands still because of rank 2; the supervisors start the ranks."""
    run_args = (*program_args("hanging.py", mode, "2"), THREE, PLAIN_ENTRY, *STOP_ON_STALL)
    first = "first failure: no rank made progress for"
    return Fault(
        name,
        run_args,
        (first, *expected_output),
        timeout_s=40.0,
        cause="standstill",
        all_only=all_only,
    )


def refused_launch(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup = no_setup,
    *,
    all_only: bool = False,
) -> Fault:
    """What keeps a launch from starting anything."""
    words = ("cluster=lab", *rank_overrides("print=up"), *args)
    return Fault(name, words, expected_output, code=3, setup=setup, all_only=all_only)


def check_fault(
    name: str,
    args: tuple[str, ...],
    expected_output: tuple[str, ...],
    setup: FaultSetup,
    code: int = 3,
    timeout_s: float = 30.0,
    *,
    all_only: bool = False,
) -> Fault:
    """What `check` sees."""
    skip = [word for check in ("limits", "storage", "system") for word in ("--skip", check)]
    skip = [] if name in ("a tiny shared memory", "a full folder for temporary files") else skip
    return Fault(
        name,
        ("check", "--cluster", "lab", *skip, *args),
        expected_output,
        code,
        timeout_s,
        setup=setup,
        all_only=all_only,
    )
