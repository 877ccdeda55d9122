"""Runs whose end is not on record here: what the verbs of the history say of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from runner.cli.main import main
from runner.control.record.run_store import RunStore
from runner.core.outcome.verdict import Verdict
from tests.golden.builders import plan, request

ID = "0101-1200-train-abc{}"
METRICS = (
    '{"v": 1, "node": "a", "attempt": 0, "rank": 0, "stream": "out", "offset": 100, "time": null,'
    ' "step": 1, "steps": null, "loss": 0.5, "rate": null, "unit": "", "more": {}}\n'
)

Make = Callable[..., str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Make a record, and return its word on a command line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def made(number: int, metrics: str = "", *, has_ended: bool = False) -> str:
        run_id = ID.format(number)
        store = RunStore(tmp_path / "runs" / run_id)
        store.reserve()
        store.create(replace(request(store.folder, "{}\n"), launched_at=1.7e9))
        store.write_plan(replace(plan(1, 1), run_id=run_id))
        (store.folder / "metrics.jsonl").write_text(metrics)
        if has_ended:
            store.write_result(plan(1, 1), Verdict("succeeded", 0, 1.0), 1.7e9, None)
        return f"runs/{run_id}"

    return made


def test_runs_without_an_end_are_named_with_what_brings_the_rest(
    make: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three of them, and how many more."""
    words = [make(number, METRICS) for number in range(5)]
    for argv, what in (
        (["compare"], "the table"),
        (["plot"], "the plot"),
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


@pytest.mark.parametrize("argv", [["plot"], ["export", "--tensorboard", "tb"]])
def test_nothing_is_claimed_of_what_is_on_hosts_alone(
    argv: list[str], make: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only of a run whose end is here is it known that it printed no metrics."""
    assert main([*argv, make(0)]) == 3
    first, hint = capsys.readouterr().err.splitlines()
    assert first == f"error: {argv[0]}: nothing of what {ID.format(0)} printed is here yet"
    assert hint.endswith(f" pull --run {ID.format(0)}")
    assert not (tmp_path / "tb").exists()
    code = main([*argv, make(1, has_ended=True)])
    told = capsys.readouterr()
    if argv[0] == "plot":
        assert (code, "printed no metrics" in told.err) == (3, True)
    else:
        assert (code, "0 scalars" in told.out, told.err) == (0, True, "")


def test_a_note_says_which_run_has_it(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """Its characters act upon nothing; one that begins with a dash comes after `--`."""
    word, run_id = make(0), ID.format(0)

    def said(*words: str) -> tuple[int, str]:
        return main(["note", word, *words]), "".join(capsys.readouterr())

    assert said("a\x1b[2J\x1b[31mb") == (0, f"run {run_id}: the note is kept\n")
    assert said() == (0, "a\\x1b[2J\\x1b[31mb\n")
    assert said("--", "-x", "bad") == (0, f"run {run_id}: the note is kept\n")
    assert said() == (0, "-x bad\n")
    code, text = said("-x", "bad")
    assert (code, "a text that begins with a dash comes after `--`" in text) == (2, True)
    assert said("") == (0, f"run {run_id}: it has no note now\n")
    assert said() == (0, "")


def test_flags_of_compare(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    """The most first, and one format."""
    words = [make(number, METRICS.replace("0.5", f"0.{number + 1}")) for number in range(2)]
    assert main(["compare", "--sort", "-loss", "--csv", *words]) == 0
    first, second = capsys.readouterr().out.splitlines()[1:]
    assert (first.split(",")[0], second.split(",")[0]) == (ID.format(1), ID.format(0))
    assert main(["compare", "--csv", "--json", *words]) == 2
    told = capsys.readouterr().err
    assert "--csv" in told
    assert "--json" in told
    assert main(["compare", "--sort", "--csv", *words]) == 2
    assert "expected one argument" in capsys.readouterr().err
