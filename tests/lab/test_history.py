"""The history of runs on record: compared, and exported for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.lab.launching import PLAIN_ENTRY, Launcher, Result, program


def words(tmp_path: Path, last: str) -> list[str]:
    """Overrides: a rank on each node that tells so many steps."""
    (tmp_path / "go").touch()
    return ["cluster=lab", PLAIN_ENTRY, *program("measured.py", "3", str(tmp_path / "go"), last)]


def ok(result: Result) -> str:
    assert result.code == 0, result
    return result.out


def test_two_runs_are_compared_and_exported(on_lab: Launcher, tmp_path: Path) -> None:
    """By what differed and what came of it: as a table, CSV, JSON and event files."""
    ids = []
    for last in ("5", "8"):
        done = on_lab(*words(tmp_path, last))
        assert done.code == 0, done
        ids.append(done.folder.name)
    header, *rows = ok(on_lab("compare")).splitlines()
    assert [row.split()[0] for row in rows] == ids
    assert header.split()[:4] == ["run", "task.args", "loss", "end"]
    assert all("NaN" in row and "succeeded" in row for row in rows)
    listed = on_lab("compare", "--csv", "--sort=-least_loss", *ids).out
    first, second = csv.DictReader(io.StringIO(listed))
    assert [first["run"], second["run"]] == ids, "1/4 is more than 1/7"
    assert (first["least_loss"], first["loss"], first["step"]) == ("0.25", "NaN", "5")
    data = json.loads(ok(on_lab("compare", ids[1], "--json")))
    assert (data[0]["exit_code"], data[0]["nodes"], data[0]["config"]) == (0, 2, {})
    refused = on_lab("compare", "--sort", "los")
    assert (refused.code, "did you mean loss?" in refused.err) == (2, True)
    unknown = on_lab("compare", "0101-0101-none-zzzz")
    assert unknown.code == 2
    assert "pull --cluster NAME --run 0101-0101-none-zzzz" in unknown.err

    for _ in range(2):  # the second replaces the first
        ok(on_lab("export", *ids, "--tensorboard", "tb"))
    steps, losses = zip(*scalars(on_lab.folder / "tb" / ids[1]), strict=True)
    assert steps == tuple(range(1, 8))
    assert losses == pytest.approx([1 / step for step in steps])
    (on_lab.folder / "tb" / ids[1] / "theirs").touch()
    foreign = on_lab("export", ids[1], "--tensorboard", "tb")
    assert (foreign.code, "theirs" in foreign.err) == (2, True)


def scalars(folder: Path) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(each.step, each.value) for each in found.Scalars("loss")]
