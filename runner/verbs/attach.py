"""The verb `attach`: a running run followed as its launch follows it."""

from __future__ import annotations

import click

from runner.core.launch_request import LaunchRequest
from runner.verbs.shared.discovery import RunFinder, open_run_finder
from runner.verbs.shared.following import follow
from runner.verbs.shared.found_run import FoundRun
from runner.verbs.shared.host_pool import FLUSH_TIMEOUT_S, deadline
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.slurm_queue import QueuedJob
from runner.verbs.shared.verb import Count, run_option, verb


@verb("attach", examples={"attach": "the latest run", "attach 1128-0931-fit-a1b2": "another"})
@run_option
@click.option(
    "-n",
    "--tail",
    type=Count(),
    metavar="100",
    help="begin with this many lines of each rank; by default with the first byte",
)
def attach(selection: Selection, run: str, tail: int | None) -> int:
    """Follow a run as its launch would show it, from any machine.

    Ctrl-C detaches: the run goes on. `stop` ends it.
    """
    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "attach") as finder:
        _await_start(composed, finder)
        code = follow(FoundRun(composed, finder), tail, is_guest=True)
        finder.console.close(deadline(FLUSH_TIMEOUT_S))
    return code


def _await_start(request: LaunchRequest, finder: RunFinder) -> None:
    """Return once a run has begun: at once, unless its job waits for nodes.

    Raises:
        NotReady: It never will, or there is no such run.
    """
    run = finder.find(request.spec.run_id)
    if run.has_not_begun and run.is_active:
        node = next(iter(finder.pool.sessions))
        flags = request.run_flags(run.run_id)
        QueuedJob(finder.pool, node, run.run_id, flags).await_start(cancels=False)
