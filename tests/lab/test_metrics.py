"""Metrics lines of any program: on the terminal, on record, in `ps`; and runs compared by them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from tests.lab.lab import Lab
from tests.lab.launching import PLAIN_ENTRY, Launcher, program
from tests.lab.waiting import wait_until_ended

NODES = ("node1", "node2")
FIELDS = ("attempt", "node", "rank", "step", "steps", "loss", "rate", "unit")


def measured(tmp_path: Path, last: str = "10") -> list[str]:
    """Overrides: two ranks that take 3 steps, wait for `tmp_path/go`, and go on to the last."""
    return ["cluster=lab", PLAIN_ENTRY, *program("measured.py", "3", str(tmp_path / "go"), last)]


def records(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted(map(json.loads, lines), key=lambda each: (each["rank"], each["step"]))


def expected() -> list[tuple[Any, ...]]:
    """What both ranks tell in ten steps, by `FIELDS`."""
    losses = [*(1 / step for step in range(1, 10)), "NaN"]
    return [
        (0, node, rank, step, 10, loss, 64.0, "samples")
        for rank, node in enumerate(NODES)
        for step, loss in enumerate(losses, start=1)
    ]


def test_a_run_keeps_its_metrics_and_a_pipe_shows_the_lines(
    on_lab: Launcher, tmp_path: Path
) -> None:
    """Each line is on record once, with its rank; a pipe has the lines as they are."""
    (tmp_path / "go").touch()
    done = on_lab.succeed(*measured(tmp_path))
    kept = records(done.folder)
    assert [tuple(each[name] for name in FIELDS) for each in kept] == expected()
    assert '[node1:0] {"step": 2.5}\n' in done.out, "it is no metrics line"
    assert done.out.count('[node1:0] {"step": ') == 11
    assert done.out.count("node2") == 1, "what a rank appends to a file is no output"
    assert done.log("node1", 0).count("\n") == 11


@pytest.mark.all
def test_why_makes_the_record_of_a_detached_run_whole(
    lab: Lab, on_lab: Launcher, tmp_path: Path
) -> None:
    """The same metrics, nothing twice after an attach."""
    done = on_lab.succeed(*measured(tmp_path), "detach=true")
    run_id = done.folder.name
    follower = on_lab.start("attach", "--run", run_id)
    follower.until_printed('[node1:0] {"step": 3,')
    follower.send()
    follower.wait()
    (tmp_path / "go").touch()
    assert len([*wait_until_ended(lab, run_id, NODES)]) == len(NODES)
    assert on_lab("why", "--run", run_id).code == 0
    kept = records(done.folder)
    assert [tuple(each[name] for name in FIELDS) for each in kept] == expected()
    assert on_lab("pull", "--run", run_id).code == 0
    assert records(done.folder) == kept


def test_two_runs_are_compared(on_lab: Launcher, tmp_path: Path) -> None:
    """By what came of them, from their records; a run that is not here is fetched by the hint."""
    (tmp_path / "go").touch()
    runs = [on_lab.succeed(*measured(tmp_path, last)) for last in ("5", "8")]
    ids = [done.folder.name for done in runs]
    listed = on_lab("compare", "--csv", "--sort=-least_loss", *ids).out
    first, second = csv.DictReader(io.StringIO(listed))
    assert [first["run"], second["run"]] == ids, "1/4 is more than 1/7"
    assert (first["least_loss"], first["loss"], first["end"]) == ("0.25", "NaN", "succeeded")
    unknown = on_lab("compare", "0101-0101-none-zzzz")
    assert unknown.code == 2
    assert "pull --cluster NAME --run 0101-0101-none-zzzz" in unknown.err
