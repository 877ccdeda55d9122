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
ITS_OWN = {"RUNNER_RUN_ID", "RUNNER_METRICS", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PYTHONPATH"}
"""Variables that differ from run to run."""


def found(done: Result, rank: int) -> dict[str, Any]:
    """Return what a rank told."""
    data: dict[str, Any] = json.loads(done.log("node1", rank).splitlines()[-1])
    return data


def is_forked(done: Result, user: Launcher) -> bool:
    """Whether its ranks have another parent than their shims."""
    raise NotImplementedError


def test_a_forked_rank_is_like_an_executed_one(on_lab: Launcher) -> None:
    """It finds the same in its process, draws its own random numbers, and computes the same."""
    words = (*TWO_RANKS, f"task.script={STATE}", "--", "method=fork", "exit=3")
    forked, executed = on_lab(*words[:-3], PRELOAD, *words[-3:]), on_lab(*words)
    assert (forked.code, executed.code) == (1, 1), forked
    assert "task.preload" not in forked.err + forked.out, forked
    for rank in (0, 1):
        ours, plain = found(forked, rank), found(executed, rank)
        added = {"TORCHINDUCTOR_CACHE_DIR"}  # torch._dynamo sets it, which optimizers import
        for state in (ours["state"], plain["state"]):
            environ = state["environ"]
            state["environ"] = {k: v for k, v in environ.items() if k not in ITS_OWN | added}
        assert ours["state"] == plain["state"]
        assert (ours["seeded"], ours["step"]) == (plain["seeded"], plain["step"])
        assert ours["loaded"] == [[0, 1, 4, 9], [16, 25, 36, 49]]
        assert forked.result["ranks"][str(rank)]["code"] == 3
    drawn = [found(done, rank)["drawn"] for done in (forked, executed) for rank in (0, 1)]
    for numbers in zip(*drawn, strict=True):
        assert len({str(number) for number in numbers}) == len(numbers), numbers
