"""The verb `attach`: a running run followed as its launch follows it."""

from __future__ import annotations

import click

from runner.cli.selection import Selection
from runner.cli.verb import run_option, verb


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
    from runner.workflows import attach as workflow
    from runner.workflows.host_pool import FLUSH_TIMEOUT_S, deadline
    from runner.workflows.runs.discovery import open_run_finder
    from runner.workflows.runs.found_run import FoundRun

    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "attach") as finder:
        workflow.await_start(composed, finder)
        code = workflow.follow(FoundRun(composed, finder), tail, is_guest=True)
        finder.console.close(deadline(FLUSH_TIMEOUT_S))
    return code
