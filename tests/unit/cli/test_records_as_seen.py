"""Records of runs as `compare`, `export` and `report` show them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

from runner.cli.main import main
from runner.control.code.pool import STORE, CodePool
from runner.control.code.snapshot import Snapshot
from runner.control.history.run_reader import read_run
from runner.control.record.run_store import RunStore
from runner.core.outcome.verdict import Verdict
from runner.core.spec import Deploy
from tests.golden.builders import plan, request, spec

ID = "0101-1200-train-abc{}"
METRICS = (
    '{"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out",'
    ' "step": 1, "steps": null, "loss": 0.5, "rate": null, "unit": "", "more": {}}\n'
)

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.chdir(tmp_path)

    def made(number: int, metrics: str = "", *, has_ended: bool = False, release: str = "") -> str:
        run_id = ID.format(number)
        store = RunStore(tmp_path / "runs" / run_id)
        store.reserve()
        store.create(replace(request(store.folder, "{}\n"), launched_at=1.7e9))
        ran = replace(plan(1, 1), run_id=run_id, release=release)
        store.write_plan(ran)
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


def test_the_difference_between_two_codes_is_a_patch(
    make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever ends its lines; on a terminal nothing in it acts."""
    texts = ["a\r\n\x1b[2J\fb\u2028c", "a\nb\r\n\x1b[2J\fc\u2028\n"]
    words = []
    for number, text in enumerate(texts):
        project = tmp_path / str(number)
        project.mkdir()
        (project / "my train.py").write_bytes(text.encode())
        (project / f"only{number}.py").write_text("x")
        (project / "train.py").write_text("x")
        taken = Snapshot.take(spec(deploy=Deploy(enabled=True)), project)
        words.append(make(number, release=taken.code.release))
        CodePool(tmp_path / "runs" / STORE).add(taken)
    assert main(["compare", *words, "--code"]) == 0
    printed = capsys.readouterr().out
    subprocess.run(
        ["/usr/bin/patch", "-p1"], input=printed.encode(), cwd=tmp_path / "0", check=True
    )
    for name in ("my train.py", "only1.py"):
        assert (tmp_path / "0" / name).read_bytes() == (tmp_path / "1" / name).read_bytes()
    assert not (tmp_path / "0" / "only0.py").exists()
    assert main(["compare", words[0], words[0], words[1], "--code"]) == 0, "each is meant once"
    assert capsys.readouterr().out == printed
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["compare", *words, "--code"]) == 0
    assert capsys.readouterr().out.replace("\n", "").isprintable()


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


@pytest.mark.parametrize(
    "contact", [None, "{torn", '{"run_id": "x", "cluster": "two", "launched_at": 1.7e9}']
)
def test_an_end_on_record_needs_nothing_of_how_hosts_are_reached(
    make: Make, capsys: pytest.CaptureFixture[str], contact: str | None
) -> None:
    """Whether that is missing, damaged, or of another version."""
    word = make(0, METRICS, has_ended=True)
    Path(word, "contact.json").unlink()
    if contact is not None:
        Path(word, "contact.json").write_text(contact)
    assert main(["why", ID.format(0)]) == 0
    assert "succeeded after 1.0 s" in capsys.readouterr().out
    for argv in (["why", "--json"], ["compare"], ["report"], ["export", "--tensorboard", "tb"]):
        assert main([*argv, ID.format(0)]) == 0
    assert "damaged" not in capsys.readouterr().err


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_watched_page_is_written_again_until_the_end(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_interrupted: bool
) -> None:
    """Meanwhile a browser reads it again; the last one, after the run or Ctrl-C, stays."""
    word = make(0, METRICS)
    page = Path(word) / "report.html"
    refresh = '<meta http-equiv="refresh" content="60">'
    pauses = []

    def sleep(seconds: float) -> None:
        assert refresh in page.read_text()
        page.unlink()
        pauses.append(seconds)
        if len(pauses) == 2 and is_interrupted:
            raise KeyboardInterrupt
        if len(pauses) == 2:
            store = RunStore(Path(word))
            store.write_result(plan(1, 1), Verdict("succeeded", 0, 1.0), 1.7e9, None)

    monkeypatch.setattr("runner.verbs.report.time.sleep", sleep)
    assert main(["report", word, "--watch", "1m"]) == 0
    assert pauses == [60, 60]
    assert "refresh" not in page.read_text().partition("<style>")[0]


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
