"""The verb `stop`: the end of a run on every host, with proof."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.cli.command import Selection, verb
from runner.core.errors import ConfigError, NotReady, Problem, StopUnverified
from runner.ui.output import show

if TYPE_CHECKING:
    from runner.core.model.spec import LaunchRequest
    from runner.workflows.discovery import RunFinder

LIST_HINT = "`python -m runner ps` lists the runs"


@verb(
    "stop",
    run="the run's id, or latest: the last run that has not ended",
    yes="end a run that is not on record on this machine without asking",
)
def stop(selection: Selection, run: str = "", yes: bool = False, json_: bool = False) -> int:
    """End a run on every host, and prove that nothing of it is left.

    It works even if the launch, the agents or the supervisors of the run are dead.
    """
    from runner.control.record import run_index

    if not run:
        hint = f"{LIST_HINT}; --run latest is the last one that has not ended"
        raise ConfigError([Problem("--run", "no run is given", hint)])
    if run != run_index.LATEST or selection.names_cluster:
        return _stop_run(selection.contact_for_run(run), yes=yes, json_=json_)
    request = _latest_unfinished(selection)
    return _stop_run(request, yes=yes, json_=json_)


def _latest_unfinished(selection: Selection) -> LaunchRequest:
    """Return the contact of the last run of this folder that has not ended, as its hosts say."""
    from runner.control.record import run_index
    from runner.control.record.contact_file import read_contact
    from runner.workflows.discovery import open_run_finder

    requests = []
    for folder in run_index.unfinished():
        with contextlib.suppress(ConfigError):  # a damaged record
            run_id = read_contact(folder).spec.run_id
            requests.append(selection.contact_for_run(run_id))
    while requests:
        contact = replace(requests[0].spec, run_id="")
        try:
            with open_run_finder(requests[0], "stop", plain=True) as finder:
                runs = {run.run_id: run for run in finder.runs()}
        except NotReady as error:
            raise StopUnverified(error.problems) from error
        others = []
        for request in requests:
            run = runs.get(request.spec.run_id)
            if replace(request.spec, run_id="") != contact:
                others.append(request)
            elif run is not None and (run.is_active or run.is_complete):
                if run.is_active:
                    return request
            elif finder.unreachable:  # it may be on there
                return request
        requests = others
    message = "no run that was launched from this folder is on"
    raise ConfigError([Problem("--run", message, f"{LIST_HINT} of a cluster: --cluster NAME")])


def _stop_run(request: LaunchRequest, *, yes: bool, json_: bool) -> int:
    from runner.ui.reports import run_table
    from runner.workflows import stop as workflow
    from runner.workflows.confirmation import confirm
    from runner.workflows.discovery import FoundRun, open_run_finder

    opened_finder: RunFinder | None = None
    try:
        with open_run_finder(request, "stop") as finder:
            opened_finder = finder
            found = FoundRun(request, finder, prefer_active=True, per_host=True)
            confirm(finder.pool, "stop", [found.record.info], yes=yes)
            verdict, leftovers = workflow.stop(found)
    except NotReady as error:
        if opened_finder is None or opened_finder.unreachable:  # it may go on there
            raise StopUnverified(error.problems) from error
        raise
    run_id = found.plan.run_id
    if json_:
        show(json.dumps({"run_id": run_id, "state": verdict.state, "left": leftovers}))
    else:
        show(run_table.render_stop(run_id, found.flags, verdict, leftovers))
    return StopUnverified.exit_code if any(leftovers.values()) else 0
