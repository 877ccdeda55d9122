"""Runs as hosts report them, also elastic ones."""

from __future__ import annotations

import pytest

from runner.core.results import current_hosts, elastic_summary
from runner.core.wire.run_info import HostRunStatus, RunInfo
from runner.core.wire.states import State


@pytest.mark.parametrize(
    ("least", "alive", "text"),
    [(0, 2, ""), (2, 3, ", 3 of 2-4 nodes"), (2, 1, ", 1 of 2-4 nodes"), (4, 4, "")],
)
def test_how_many_nodes_an_elastic_run_has(least: int, alive: int, text: str) -> None:
    """Those whose supervisor lives, of as few and as many as there may be."""
    info = RunInfo("r", nnodes=4, min_nodes=least)
    seen = {
        f"n{at}": HostRunStatus(info, "ada", State.RUNNING, at < alive, 1.0)
        for at in range(alive + 1)
    }
    assert elastic_summary(info, seen) == text


def test_who_only_stands_by_is_no_node_of_a_run() -> None:
    """Unless nobody else is left who tells of it."""
    info = RunInfo("r", "train", attempt=1, standby_nodes=("n2",))
    seen = {
        node: HostRunStatus(info, "ada", State.RUNNING, alive, 1.0, node=node)
        for node, alive in {"n0": True, "n1": False, "n2": True}.items()
    }

    assert list(current_hosts(seen)) == ["n0", "n1"]
    assert list(current_hosts({"n2": seen["n2"]})) == ["n2"]
