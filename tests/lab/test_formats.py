"""The files for other programs: every line of real runs fits its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.test_schemas import committed, problems
from tests.lab.lab import Lab
from tests.lab.launching import Launcher

pytestmark = pytest.mark.documents("docs/formats.md", "docs/run-folder.md")

KINDS = {
    *("program_started", "rank_started", "rank_exited", "program_exited", "hub_joined"),
    *("stopping", "ended", "stalled", "progress_resumed", "stop_requested"),
}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The objects of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_line_of_a_run_with_trouble_fits_its_schema(lab: Lab, plainly: Launcher) -> None:
    """A failure and a relaunch, a hang and its end; metrics with what JSON has no number for."""
    lab.write_cluster(plainly.conf, names=["node1", "node2"])
    done = plainly.run_ranks(
        'print={"step":1,"steps":2,"loss":0.5,"rate":3,"unit":"x","note":"a"} '
        'sleep=1.2 once=1:it_broke sleep=4 print={"step":2,"loss":NaN,"val":Infinity} sleep=1',
        *("cluster=lab", "relaunch.max=1", "relaunch.backoff_s=0.1", "grace_s=1"),
        *("watch.stall_s=2", "sample_s=1"),
    )
    assert done.code == 0, done
    assert plainly("pull", "--run", done.folder.name).code == 0
    seen = {}
    for name in ("metrics", "samples", "events"):
        paths = [done.folder / f"{name}.jsonl", *done.folder.rglob(f"hosts/**/{name}.jsonl")]
        lines = [line for path in paths for line in lines_of(path)]
        seen[name] = lines
        fields = {*committed(name)["properties"]}
        for line in lines:
            assert problems(name, line) == [], line
            kind = committed(name).get("$defs", {}).get(line.get("kind"), {})
            assert {*line} <= fields | {*kind.get("properties", {})}, line
    kinds = {event["kind"] for event in seen["events"]}
    assert kinds >= KINDS, KINDS - kinds
    assert {(m["attempt"], m["rank"], m["step"]) for m in seen["metrics"]} >= {(1, 0, 2), (0, 1, 1)}
    assert {m["loss"] for m in seen["metrics"]} == {0.5, "NaN"}
    assert {(s["node"], s["attempt"]) for s in seen["samples"]} >= {("node1", 0), ("node2", 1)}
