"""The task of a job on its first node: what it tells the others where it cannot plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from runner.core.codec import encode
from runner.core.errors import NotReady
from runner.core.protocol.paths import JobPaths
from runner.host.slurm import node_task, shared_files
from runner.host.slurm.node_task import NodeTask
from tests.golden.builders import RUN_ID
from tests.unit.core.relaunch.test_plan_in_job import FACTS, context


@pytest.fixture
def first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NodeTask:
    """The task on the first of two nodes, which has reported its facts."""
    paths = JobPaths(str(tmp_path), RUN_ID)
    Path(paths.start(0).root).mkdir(parents=True)
    Path(paths.nonce).write_text("nonce")
    Path(paths.start(0).nodes).write_text("a\nb\n")
    shared_files.write(paths.context, encode(context()))
    shared_files.write(paths.start(0).facts("a"), encode(FACTS["a"]))
    monkeypatch.setenv("SLURMD_NODENAME", "a")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    monkeypatch.setattr(node_task, "START_SPREAD_S", 0.0)
    return NodeTask(paths.root, "nonce", {})


def test_facts_of_all_nodes_make_a_plan(first: NodeTask) -> None:
    """Each node finds its order."""
    shared_files.write(first._start.facts("b"), encode(FACTS["b"]))
    assert sorted(first._orders(first._request())["orders"]) == ["a", "b"]


@pytest.mark.parametrize("facts", [[], {}, {**encode(FACTS["b"]), "gpus": 7}])
def test_facts_that_cannot_be_read_end_the_wait_of_all(first: NodeTask, facts: Any) -> None:
    """They are told at once, and where to look."""
    shared_files.write(first._start.facts("b"), facts)
    request = first._request()
    orders = first._orders(request)
    (problem,) = orders["problems"]
    assert problem["message"].startswith("cannot plan the run: Facts")
    assert problem["hint"] == f"see the files in {first._start.root}"
    shared_files.write(first._start.orders, orders)
    with pytest.raises(NotReady, match="a: cannot plan the run: Facts"):
        first._await_orders(request)
