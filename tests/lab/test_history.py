"""The history of runs on record: compared, annotated, drawn, and exported for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.lab.lab import Lab
from tests.lab.launching import PROGRAMS, RANK_SCRIPT, ROOT, Launcher, Result

NODES = ("node1", "node2")


@pytest.fixture
def historian(lab: Lab, on_lab: Launcher) -> Launcher:
    """A user whose cluster has two nodes."""
    lab.write_cluster(on_lab.conf, names=NODES)
    return on_lab


def words(tmp_path: Path, last: str) -> list[str]:
    """Overrides: a rank on each node that tells so many steps."""
    (tmp_path / "go").touch()
    args = f'["3","{tmp_path / "go"}","{last}"]'
    script = f"task.script={PROGRAMS / 'measured.py'}"
    return ["cluster=lab", script, "task.args_style=raw", f"task.args={args}", "grace_s=1"]


def ok(result: Result) -> str:
    """What it printed; it succeeded."""
    assert result.code == 0, result
    return result.out


def test_two_runs_are_compared_annotated_drawn_and_exported(
    historian: Launcher, tmp_path: Path
) -> None:
    """By what differed and what came of it: as a table, CSV, JSON, text, images and event files."""
    ids = []
    for last in ("5", "8"):
        done = historian(*words(tmp_path, last))
        assert done.code == 0, done
        ids.append(done.folder.name)
    ok(historian("note", ids[0], "too", "short"))
    assert ok(historian("note", ids[0])) == "too short\n"
    (
        header,
        *rows,
    ) = ok(historian("compare")).splitlines()
    assert [row.split()[0] for row in rows] == ids
    assert header.split()[:4] == ["run", "task.args", "loss", "end"]
    assert ["too short" in row for row in rows] == [True, False]
    assert all("NaN" in row and "succeeded" in row for row in rows)
    listed = historian("compare", "--csv", "--sort=-least_loss", *ids).out
    first, second = csv.DictReader(io.StringIO(listed))
    assert [first["run"], second["run"]] == ids, "1/4 is more than 1/7"
    assert (first["least_loss"], first["loss"], first["step"]) == ("0.25", "NaN", "5")
    assert "5" in first["task.args"]
    data = json.loads(ok(historian("compare", ids[1], "--json")))
    assert (data[0]["exit_code"], data[0]["nodes"], data[0]["config"]) == (0, 2, {})
    refused = historian("compare", "--sort", "los")
    assert (refused.code, "did you mean loss?" in refused.err) == (2, True)
    unknown = historian("compare", "0101-0101-none-zzzz")
    assert (unknown.code, "pull --cluster NAME --run 0101-0101-none-zzzz" in unknown.err) == (
        2,
        True,
    )

    drawn = ok(historian("plot", *ids, "--metric", "loss"))
    assert "\x1b" not in drawn
    assert all(len(line) <= 80 for line in drawn.splitlines() if "┤" in line)
    assert [line.split()[1] for line in drawn.splitlines()[-2:]] == ids
    png, svg = tmp_path / "loss.png", tmp_path / "loss.svg"
    ok(historian("plot", *ids, "--out", str(png)))
    ok(historian("plot", ids[0], "--x", "time", "--out", str(svg)))
    assert png.read_bytes().startswith(b"\x89PNG\r\n")
    assert ids[0] in svg.read_text()
    wrong = historian("plot", "--metric", "lss")
    assert (wrong.code, "they have loss, rate" in wrong.err) == (2, True)
    nowhere = historian("plot", "--out", str(tmp_path / "none" / "x.png"))
    assert (nowhere.code, nowhere.err.count("\n")) == (2, 1), nowhere

    for _ in range(2):  # the second replaces the first
        ok(historian("export", *ids, "--tensorboard", "tb"))
    steps, losses = zip(*scalars(historian.folder / "tb" / ids[1]), strict=True)
    assert steps == tuple(range(1, 8))
    assert losses == pytest.approx([1 / step for step in steps])
    (historian.folder / "tb" / ids[1] / "theirs").touch()
    foreign = historian("export", ids[1], "--tensorboard", "tb")
    assert (foreign.code, "theirs" in foreign.err) == (2, True)


def scalars(folder: Path) -> list[tuple[int, float]]:
    """The losses that TensorBoard finds in a folder."""
    found = EventAccumulator(str(folder))
    found.Reload()
    return [(each.step, each.value) for each in found.Scalars("loss")]


def test_a_sweep_ends_with_the_comparison_of_its_runs(historian: Launcher, tmp_path: Path) -> None:
    """Its id names them all, as the folder does; each of its runs is told of."""
    (tmp_path / "go").touch()
    tell = f'notify=["echo $RUNNER_RUN_ID $RUNNER_STATE >> {tmp_path}/told"]'
    args = [f'["3","{tmp_path / "go"}","{last}"]' for last in (4, 6)]
    these = (*words(tmp_path, "4")[:3], tell)
    swept = historian(*these, f"task.args={args[0]},{args[1]}", "--multirun")
    assert swept.code == 0, swept
    *_, header, first, second, end, printed = swept.err.splitlines()
    assert header.split()[:3] == ["run", "task.args", "loss"]
    assert end == "2 of 2 runs succeeded"
    (folder,) = (
        file.parent
        for file in (historian.folder / "runs").glob("*/sweep.json")
        if not (file.parent / "plan.json").exists()
    )
    told = (tmp_path / "told").read_text().splitlines()
    assert len(told) == 2
    for run_id, state in map(str.split, told):
        assert (state, (historian.folder / "runs" / run_id).is_dir()) == ("succeeded", True)
    command = shlex.split(printed)
    assert command[-2:] == ["report", folder.name]
    assert "2 runs: " in ok(historian(*command[-2:]))
    for word in (folder.name, folder.name[:-1], f"runs/{folder.name}"):
        assert ok(historian("compare", word)).splitlines()[1:] == [first, second]


def test_a_run_without_metrics_and_packages_that_are_missing(
    historian: Launcher, tmp_path: Path
) -> None:
    """One message each, with what to do."""
    done = historian(
        "cluster=lab", f"task.script={RANK_SCRIPT}", "task.args_style=raw", 'task.args=["print=x"]'
    )
    assert done.code == 0, done
    bare = historian("plot", "latest", "--metric", "loss")
    # Samples may be on record: then the figures of those are named.
    assert (bare.code, "progress.md" in bare.err or "no run has 'loss'" in bare.err) in (
        (2, True),
        (3, True),
    )
    assert done.folder.name in ok(historian("compare"))
    assert historian(*words(tmp_path, "4")).code == 0
    blocked = tmp_path / "blocked"
    for name in ("matplotlib", "tensorboard"):
        (blocked / name).mkdir(parents=True)
        (blocked / name / "__init__.py").write_text(f"raise ImportError('no {name}')\n")
    env = {**historian.env, "PYTHONPATH": f"{blocked}:{ROOT}"}
    for verb, flag, package in (
        ("plot", "--out=x.png", "matplotlib"),
        ("export", "--tensorboard=tb", "tensorboard"),
    ):
        argv = [sys.executable, "-m", "runner", verb, flag]
        missing = subprocess.run(
            argv,
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            env=env,
            cwd=historian.folder,
        )
        assert (missing.returncode, missing.stdout) == (3, ""), missing
        first, command = missing.stderr.splitlines()
        assert first == f"error: {flag.partition('=')[0]}: {package} is not installed here"
        assert sys.executable in command
    assert not (historian.folder / "tb").exists()
