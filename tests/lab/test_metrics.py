"""Metrics lines of any program: on record, and in a pipe."""

from __future__ import annotations

import json

from tests.lab.launching import PLAIN_ENTRY, Launcher, program

FIELDS = ("attempt", "node", "rank", "step", "steps", "loss", "rate", "unit")


def test_a_run_keeps_its_metrics_and_a_pipe_shows_the_lines(on_lab: Launcher) -> None:
    """Each line is on record once, with its rank; a pipe has the lines as they are."""
    done = on_lab.succeed("cluster=lab", PLAIN_ENTRY, *program("measured.py"))
    kept = map(json.loads, (done.folder / "metrics.jsonl").read_text().splitlines())
    losses = [*(1 / step for step in range(1, 10)), "NaN"]
    assert sorted(tuple(each[name] for name in FIELDS) for each in kept) == [
        (0, node, rank, step, 10, loss, 64.0, "samples")
        for rank, node in enumerate(("node1", "node2"))
        for step, loss in enumerate(losses, start=1)
    ]
    assert '[node1:0] {"step": 2.5}\n' in done.out, "it is no metrics line"
    assert done.out.count('[node1:0] {"step": ') == 11
    assert done.out.count("node2") == 1, "what a rank appends to a file is no output"
    assert done.log("node1", 0).count("\n") == 11
