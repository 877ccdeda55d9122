"""Records of runs as `compare`, `export` and `report` show them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from runner.cli.main import main
from runner.control.history.run_reader import read_run
from runner.control.record.run_store import RunStore
from runner.core.outcome.verdict import Verdict
from tests.golden.builders import plan, request

ID = "0101-1200-train-abc{}"
METRICS = (
    '{"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out",'
    ' "step": 1, "steps": null, "loss": 0.5, "rate": null, "unit": "", "more": {}}\n'
)

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)

    def made(number: int, metrics: str = "", *, has_ended: bool = False) -> str:
        run_id = ID.format(number)
        store = RunStore(tmp_path / "runs" / run_id)
        ran = replace(plan(1, 1), run_id=run_id)
        store.create(replace(request(store.folder, "{}\n"), launched_at=1.7e9), ran)
        (store.folder / "metrics.jsonl").write_text(metrics)
        if has_ended:
            store.write_result(ran, Verdict("succeeded", 0, 1.0), 1.7e9, None)
        return f"runs/{run_id}"

    return made


def test_runs_without_an_end_are_named_with_what_brings_the_rest(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of them, and how many more."""
    words = [make(number, METRICS) for number in range(5)]
    for argv, what in (
        (["compare"], "the table"),
        (["export", "--tensorboard", "tb"], "the export"),
        (["report", "--out", "x.html"], "the page"),
    ):
        assert main([*argv, *words]) == 0
        told = capsys.readouterr().err.splitlines()
        names = ", ".join(ID.format(n) for n in range(3))
        assert told[0] == (
            f"note: no end of {names} and 2 more is on record here: "
            f"{what} has what is here; this brings the rest"
        )
        assert [line.split()[-1] for line in told[1:]] == [ID.format(n) for n in range(3)]
        assert all(" pull --run " in line for line in told[1:])
    assert main(["compare", make(5, METRICS, has_ended=True)]) == 0
    assert capsys.readouterr().err == ""


def test_an_open_tensorboard_follows_an_export(make: Make, tmp_path: Path) -> None:
    """Each has a new name, takes the place of the one before, and has the keys that were set."""
    word = make(0)
    folder = tmp_path / "tb" / ID.format(0)
    reader = EventAccumulator(str(folder))
    names = set()
    for last in (2, 3, 4):
        lines = [METRICS.replace('"step": 1', f'"step": {step}') for step in range(1, last + 1)]
        Path(word, "metrics.jsonl").write_text("".join(lines))
        Path(word, "config.yaml").write_text("task: {args: {lr: '0.1', opt: adam}}\ndetach: true\n")
        assert main(["export", word, "--tensorboard", "tb"]) == 0
        names |= {path.name for path in folder.glob("*.runner") if path.stat().st_size}
        assert [each.step for each in reader.Reload().Scalars("loss")] == [*range(1, last + 1)]
    assert len(names) == 3
    assert len([*folder.glob("*.runner")]) == 2, "that before is empty, for who reads it"
    content = reader.SummaryMetadata(SESSION_START_INFO_TAG).plugin_data.content
    told = HParamsPluginData.FromString(content).session_start_info.hparams
    assert {name: value.number_value or value.string_value for name, value in told.items()} == {
        "task.args.lr": 0.1,
        "task.args.opt": "adam",
    }


def test_a_record_without_its_plan_is_said_to_be_damaged(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the page and by the table; a run that has none yet has no damage."""
    ended, begun = make(0, METRICS, has_ended=True), make(1)
    for word in (ended, begun):
        (tmp_path / word / "plan.json").unlink()
    told = "plan.json: it is missing, so nodes and GPUs of the run are unknown"
    assert read_run(tmp_path / ended).problems == (told,)
    assert read_run(tmp_path / begun).problems == ()
    assert main(["report", ended]) == 0
    page = tmp_path / ended / "report.html"
    assert told in page.read_text()
    assert re.fullmatch(rf"run \S+, [0-9.]+ kB\n  {page.as_uri()}\n", capsys.readouterr().out)
    assert main(["compare", ended]) == 0
    assert capsys.readouterr().err == f"note: the record of {ID.format(0)} is damaged: {told}\n"


@pytest.mark.parametrize("launch", [None, {}, {"spec": {"run_id": 7}, "launched_at": 1.7e9}])
def test_an_end_on_record_needs_nothing_of_how_hosts_are_reached(
    make: Make, capsys: pytest.CaptureFixture[str], launch: object
) -> None:
    """Whether that is missing, damaged, or of another version."""
    word = make(0, METRICS, has_ended=True)
    recorded = json.loads(Path(word, "plan.json").read_text())
    Path(word, "plan.json").write_text(json.dumps({**recorded, "launch": launch}))
    assert main(["why", ID.format(0)]) == 0
    assert "succeeded after 1.0 s" in capsys.readouterr().out
    for argv in (["why", "--json"], ["compare"], ["report"], ["export", "--tensorboard", "tb"]):
        assert main([*argv, ID.format(0)]) == 0
    assert "damaged" not in capsys.readouterr().err


def test_a_file_that_cannot_be_written(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """One that was named is an error of the command line; that of the record has a way out."""
    word = make(0, METRICS, has_ended=True)
    assert main(["report", word, "--out", "none/x.html"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --out: cannot write ")
    Path(word, "report.html").mkdir()
    assert main(["report", word]) == 3
    _, hint = capsys.readouterr().err.splitlines()
    assert hint.strip() == "--out FILE names another place"
