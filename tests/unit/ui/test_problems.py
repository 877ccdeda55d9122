"""Problems as a person reads them: equal ones of many hosts are one."""

from __future__ import annotations

import pytest

from runner.core.errors import Problem
from runner.ui.layout import fold_names
from runner.ui.problems import render_problems


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["gpu1", "gpu1"], "gpu1"),
        (["gpu1", "gpu2", "gpu3", "gpu7"], "gpu[1-3,7]"),
        (["gpu01", "gpu02"], "gpu[01-02]"),
        (["cluster.nodes.a1.gpus", "cluster.nodes.a2.gpus"], "cluster.nodes.a[1-2].gpus"),
        (["task.args.*", "task.b"], "task.args.*, task.b"),
        (["gpu[1", "gpu&2", "", "@x"], "gpu[1, gpu&2, , @x"),
    ],
)
def test_names_fold_into_ranges(names: list[str], expected: str) -> None:
    """Names fold as in ClusterShell; what only looks like its notation is left as it is."""
    assert fold_names(names) == expected


def test_what_names_one_host_only_does_not_keep_problems_apart() -> None:
    """Its own keys and address, and the example to try; alone, they stay as they are."""
    jump = "jump host gate (10.0.0.9) port 22 did not answer"
    shared = [
        Problem("gpu1", jump, "off?"),
        Problem("b", "no torch"),
        Problem("gpu2", jump, "off?"),
    ]
    assert render_problems(shared) == (f"error: gpu[1-2]: {jump}\n    off?\nerror: b: no torch")

    away = [
        Problem(
            f"gpu{n}", f"10.0.0.{n} port 22 did not answer", f"off?\ntry by hand: ssh 10.0.0.{n}"
        )
        for n in (1, 2)
    ]
    assert render_problems(away) == (
        "error: gpu[1-2]: its port 22 did not answer\n    off?\n    try by hand: ssh 10.0.0.1"
    )
    assert render_problems(away[1:]) == (
        "error: gpu2: 10.0.0.2 port 22 did not answer\n    off?\n    try by hand: ssh 10.0.0.2"
    )
    few = [Problem(n, f"cluster.nodes.{n}.gpus: asked for 4, the host has 2") for n in ("a", "b")]
    assert (
        render_problems(few) == "error: a,b: cluster.nodes.NODE.gpus: asked for 4, the host has 2"
    )
    assert render_problems(few[:1]) == "error: a: cluster.nodes.a.gpus: asked for 4, the host has 2"
