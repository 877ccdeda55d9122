"""Incomplete records: runs whose end is not on record here, and the command that brings it."""

from __future__ import annotations

from collections.abc import Sequence

from runner.core.errors import NotReady, Problem
from runner.core.shell import line, this_program
from runner.core.text import join_some
from runner.ui.output import note

MAX_NAMED = 3


def note_incomplete(run_ids: Sequence[str], what: str) -> None:
    """Say which runs may be on: `what` has what is here."""
    if not run_ids:
        return
    names = join_some(run_ids, MAX_NAMED)
    note(f"no end of {names} is on record here: {what} has what is here; this brings the rest")
    for command in _pull_commands(run_ids):
        note(f"  {command}")


def nothing_here(verb: str, run_ids: Sequence[str]) -> NotReady:
    """Return the error where runs whose end is not on record have nothing on record besides."""
    message = f"nothing of what {join_some(run_ids, MAX_NAMED)} printed is here yet"
    return NotReady([Problem(verb, message, "\n".join(_pull_commands(run_ids)))])


def _pull_commands(run_ids: Sequence[str]) -> list[str]:
    all_flags = [line(["--run", run_id]) for run_id in run_ids[:MAX_NAMED]]
    return [f"{this_program()} pull {run_flags}" for run_flags in all_flags]
