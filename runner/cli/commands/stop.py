"""The verb `stop`: the end of a run on every host, with proof."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runner.cli.command import Selection, verb
from runner.core.errors import ConfigError, NotReady, Problem, StopUnverified

if TYPE_CHECKING:
    from runner.workflows.discovery import RunFinder


@verb("stop", run="the run's id, or latest")
def stop(selection: Selection, run: str = "", json_: bool = False) -> int:
    """End a run on every host, and prove that nothing of it is left.

    It works even if the launch, the agents or the supervisors of the run are dead.
    """
    from runner.ui.reports import run_table
    from runner.workflows import stop as workflow
    from runner.workflows.discovery import FoundRun, open_run_finder

    if not run:
        hint = "python -m runner ps lists the runs; --run latest is the latest one"
        raise ConfigError([Problem("--run", "no run is given", hint)])
    composed = selection.compose_for_run(run)
    opened_finder: RunFinder | None = None
    try:
        with open_run_finder(composed, "stop") as finder:
            opened_finder = finder
            found = FoundRun(composed, finder, run)
            verdict, leftovers = workflow.stop(found)
    except NotReady as error:
        if opened_finder is None or opened_finder.unreachable:  # it may go on there
            raise StopUnverified(error.problems) from error
        raise
    run_id, selector = found.plan.run_id, composed.cluster_selector
    if json_:
        print(json.dumps({"run_id": run_id, "state": verdict.state, "left": leftovers}))
    else:
        print(run_table.render_stop(run_id, selector, verdict, leftovers))
    return StopUnverified.exit_code if any(leftovers.values()) else 0
