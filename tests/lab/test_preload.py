"""`task.preload`: ranks that are forks of one process are what exec would have made of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.lab.launching import PROGRAMS, Launcher, Result

pytestmark = [pytest.mark.documents("docs/preload.md"), pytest.mark.torch]

STATE = PROGRAMS / "process_state.py"
TWO_RANKS = ("cluster=lab", "cluster.only=[node1]", "cluster.nproc_per_node=2")
PRELOAD = "task.preload=true"
OTHER = {"SSH_CLIENT", "SSH_CONNECTION", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE"}
"""Variables that differ from run to run."""

ADDED = {"TORCHINDUCTOR_CACHE_DIR"}
"""A variable that torch._dynamo sets while it is imported, as by the first optimizer."""


def found(done: Result, rank: int) -> dict[str, Any]:
    """Return what a rank told."""
    text = done.log("node1", rank).splitlines()[-1].replace(done.folder.name, "RUN")
    data: dict[str, Any] = json.loads(text)
    environ = data["state"]["environ"]
    data["state"]["environ"] = {k: v for k, v in environ.items() if k not in OTHER | ADDED}
    return data


def test_a_forked_rank_is_like_an_executed_one(on_lab: Launcher) -> None:
    """It finds the same in its process, draws its own random numbers, and computes the same."""
    words = (*TWO_RANKS, f"task.script={STATE}", "--", "method=fork", "exit=3")
    forked, executed = on_lab(*words[:-3], PRELOAD, *words[-3:]), on_lab(*words)
    assert (forked.code, executed.code) == (1, 1), forked
    assert "task.preload" not in forked.err + forked.out, forked
    for rank in (0, 1):
        ours, plain = found(forked, rank), found(executed, rank)
        assert ours["state"] == plain["state"]
        assert (ours["seeded"], ours["step"]) == (plain["seeded"], plain["step"])
        assert ours["loaded"] == [[0, 1, 4, 9], [16, 25, 36, 49]]
        assert forked.result["ranks"][str(rank)]["code"] == 3
    drawn = [found(done, rank)["drawn"] for done in (forked, executed) for rank in (0, 1)]
    for numbers in zip(*drawn, strict=True):
        assert len({str(number) for number in numbers}) == len(numbers), numbers
