"""The verb `attach`: a running run followed as its launch follows it."""

from __future__ import annotations

import click

from runner.control.run.found_run import FoundRun
from runner.control.run.job_run import job_run
from runner.ui.output import tell
from runner.verbs.shared.following import follow
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import run_option, verb


@verb("attach", examples={"attach": "the latest run", "attach 1128-0931-fit-a1b2": "another"})
@run_option
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(1),
    metavar="100",
    help="begin with this many lines of each rank; by default with the first byte",
)
def attach(selection: Selection, run: str, tail: int | None) -> int:
    """Follow a run as its launch would show it, from any machine.

    Ctrl-C detaches: the run goes on. `stop` ends it.
    """
    composed = selection.contact_for_run(run)
    if in_job := job_run(composed, tell):
        return in_job.follow(is_guest=True, tail=tail)
    with open_run_finder(composed, "attach") as finder:
        return follow(FoundRun(composed, finder), tail, is_guest=True)
