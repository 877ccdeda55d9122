"""Tables of results: the folders of runs, and the exit code of a command on many hosts."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from runner.core.results import CommandResult
from runner.ui.reports.run_table import render
from runner.verbs.exec import exit_code
from tests.golden.test_reports import ROW


def test_folders_are_shown_where_a_run_is_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One below the home is named from there; that of a run without a record is not known."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    own = replace(ROW, folder=str(tmp_path / "here"))
    unknown = replace(ROW, folder="")
    assert "FOLDER" not in render([own, unknown], {}, {}, all_=False)
    shown = [own, replace(ROW, folder=str(tmp_path / "there")), unknown]
    lines = render(shown, {}, {}, all_=False).splitlines()
    assert [line.split()[-1] for line in lines] == ["FOLDER", ".", "~/there", "-"]


def answer(code: int | None = 0, problem: str = "") -> CommandResult:
    return CommandResult("a", code, bytearray(), bytearray(), problem)


LOST = replace(answer(None, "lost: x"), lost=True)
LEFT = replace(answer(-9, "cannot be killed: PID 7"), unverified=True)


@pytest.mark.parametrize(
    ("given", "signum", "code"),
    [
        ([answer(), answer()], 0, 0),
        ([answer(-9), answer(7)], 0, 137),
        ([answer(None, "cannot be started: x")], 0, 127),
        ([answer(7), LOST], 0, 4),
        ([answer(7), answer(None, "lost, says the host itself")], 0, 127),
        ([LEFT, LOST], 0, 5),
        ([answer(-9)], signal.SIGINT, 130),
        ([answer(-9), replace(LOST, unverified=True)], signal.SIGINT, 5),
    ],
)
def test_worst_host_decides_the_exit_code(
    given: list[CommandResult], signum: int, code: int
) -> None:
    """A script sees whether it may go on; what may be left somewhere is 5, and beats all."""
    assert exit_code(given, signum) == code
