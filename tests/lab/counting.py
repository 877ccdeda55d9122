"""Runs of two ranks that count their steps, over all attempts (see `programs/steps.py`)."""

from __future__ import annotations

from pathlib import Path

from tests.lab.launching import Controller, Launcher, program

STEPS = 30
LOST = ("hang=0:20", "hang=1:20")
"""No rank comes to its end before its attempt is known to be lost."""


def start_counting(
    on_lab: Launcher, steps: Path, pace: str, when: tuple[str, ...], overrides: tuple[str, ...]
) -> Controller:
    return on_lab.start(
        "cluster=lab4",
        "cluster.only=[node1,node2,node3]",
        "task.nnodes=2",
        "relaunch.max=2",
        "relaunch.backoff_s=0.5",
        "grace_s=1",
        *program("steps.py", str(steps), str(STEPS), pace, *when),
        "task.entry=plain",
        *overrides,
    )


def counted(steps: Path, rank: int) -> list[tuple[int, int, str]]:
    """What a rank did: each step, in which attempt, on which node.

    A rank that was stopped before its first step did nothing.
    """
    path = steps / f"rank_{rank}"
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text().splitlines()]
    return [(int(step), int(attempt), node) for step, attempt, node in rows]


def whole(steps: Path) -> None:
    """No step of any rank was left out or done twice."""
    for rank in range(2):
        assert [step for step, _, _ in counted(steps, rank)] == list(range(STEPS)), rank
