"""Incomplete records: runs whose end is not on record here, and the command that brings it."""

from __future__ import annotations

from collections.abc import Sequence

from runner.core.errors import NotReady, Problem
from runner.core.history.run_data import RunData
from runner.core.shell import line, this_program
from runner.core.text import counted, join_some
from runner.ui.output import note

MAX_NAMED = 3
NO_FIGURES = "printed no metrics, and no samples are on record"
PAGE = "docs/records.md"


def note_incomplete(run_ids: Sequence[str], what: str) -> None:
    """Say which runs may be on: `what` has what is here."""
    if not run_ids:
        return
    names = join_some(run_ids, MAX_NAMED)
    note(f"no end of {names} is on record here: {what} has what is here; this brings the rest")
    for command in _pull_commands(run_ids):
        note(f"  {command}")


def note_damaged(runs: Sequence[RunData]) -> None:
    """Say what of the records of runs could not be read."""
    for run in [run for run in runs if run.problems][:MAX_NAMED]:
        note(f"the record of {run.run_id} is damaged: {join_some(run.problems, 1)}")


def no_figures(runs: Sequence[RunData]) -> NotReady:
    """Return the error where runs have neither metrics nor samples on record."""
    if unended := [run.run_id for run in runs if run.verdict is None]:
        message = f"nothing of what {join_some(unended, MAX_NAMED)} printed is here yet"
        return NotReady([Problem("export", message, "\n".join(_pull_commands(unended)))])
    which = runs[0].run_id if len(runs) == 1 else counted(len(runs), "run")
    hint = f'a program makes them with lines such as {{"step": 1, "loss": 0.5}}: {PAGE}'
    return NotReady([Problem("export", f"{which} {NO_FIGURES}", hint)])


def _pull_commands(run_ids: Sequence[str]) -> list[str]:
    all_flags = [line(["--run", run_id]) for run_id in run_ids[:MAX_NAMED]]
    return [f"{this_program()} pull {run_flags}" for run_flags in all_flags]
