"""The verb `stop`: the end of a run on every host, with proof."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from runner.cli.selection import Selection
from runner.cli.verb import json_option, run_option, verb
from runner.core.errors import ConfigError, NotReady, Problem, StopUnverified
from runner.core.shell import this_program
from runner.ui.output import show, show_prose

if TYPE_CHECKING:
    from runner.core.launch_request import LaunchRequest
    from runner.core.model.results import RemoteRun
    from runner.core.spec import Spec
    from runner.workflows.runs.discovery import RunFinder

    Answer = tuple[list[RemoteRun], list[Problem]]  # the problem of each host without one


@verb(
    "stop",
    examples={"stop latest": "the last run of this folder", "stop 1128-0931-fit-a1b2": "another"},
)
@run_option
@click.option(
    "-y",
    "--yes",
    is_flag=True,
    help="end without asking, also a run that was not launched here or another folder's latest",
)
@json_option
def stop(selection: Selection, run: str, yes: bool, json_: bool) -> int:
    """End a run on every host, and prove that nothing of it is left.

    It works even if the launch, the agents or the supervisors of the run are dead.
    """
    from runner.control.record import run_index
    from runner.control.record.file_names import LATEST

    if not run or (run == "all" and run_index.record_folder(run) is None):
        run_ids = run_index.records()
        commands = [f"{this_program()} stop --run {run_ids[f]}" for f in run_index.unfinished()]
        message = "each run is stopped by its own id, or as the latest"
        hint = "\n".join(commands[:8]) or _list_hint()
        subject = "stop all"
        if not run:
            subject = "--run"
            message = "no run is given"
        raise ConfigError([Problem(subject, message, hint)])
    if run != LATEST or selection.names_cluster:
        request = selection.contact_for_run(run, ending_verb="stop")
        return _stop_run(request, yes=yes, json_=json_)
    request = _latest_unfinished(selection)
    return _stop_run(request, yes=yes, json_=json_)


def _latest_unfinished(selection: Selection) -> LaunchRequest:
    """Return the contact of the last run of this folder that is on or broken, as its hosts say.

    Raises:
        StopUnverified: None is on, as far as the hosts that answered say; it names all others.
    """
    from runner.control.record import run_index

    asked: list[tuple[Spec, Answer]] = []
    problems: list[Problem] = []
    for folder in run_index.unfinished():
        request = selection.contact_by_record(folder)
        run_id = request.spec.run_id
        cluster = replace(request.spec, run_id="")
        answer = next((known for other, known in asked if other == cluster), None)
        if answer is None:
            answer = _runs_on_hosts(request)
            asked.append((cluster, answer))
            problems += answer[1]
        runs, unreachable = answer
        same = [r for r in runs if r.run_id == run_id and run_index.is_record_of(folder, r.info)]
        if same and same[0].is_active:
            return request
        if unreachable and not (same and same[0].is_complete):
            flags = request.run_flags(run_id)
            message = f"{run_id} may be on: not all of its hosts answer"
            problems.append(Problem("--run", message, f"{this_program()} stop {flags}"))
    if problems:
        raise StopUnverified(problems)
    message = "no run launched from this folder is running"
    raise ConfigError([Problem("", message, f"{_list_hint()} of a cluster: --cluster NAME")])


def _runs_on_hosts(request: LaunchRequest) -> Answer:
    """Return the runs on the hosts of a run, and why some hosts could not be asked."""
    from runner.workflows.runs.discovery import open_run_finder

    try:
        with open_run_finder(request, "stop", plain=True) as finder:
            return finder.runs(), [*finder.unreachable.values()]
    except NotReady as error:
        return [], list(error.problems)


def _stop_run(request: LaunchRequest, *, yes: bool, json_: bool) -> int:
    from runner.ui.reports import run_table
    from runner.workflows import stop as workflow
    from runner.workflows.confirmation import confirm
    from runner.workflows.runs.discovery import open_run_finder
    from runner.workflows.runs.found_run import FoundRun

    opened_finder: RunFinder | None = None
    try:
        with open_run_finder(request, "stop") as finder:
            opened_finder = finder
            reported = finder.find(request.spec.run_id, prefer_active=True)
            if reported.has_not_begun:
                return _cancel(request, finder, reported, yes=yes, json_=json_)
            found = FoundRun(request, finder, to_end_it=True)
            is_latest = not request.spec.run_id
            confirm(finder.pool, "stop", [found.record.info], yes=yes, is_latest=is_latest)
            verdict, leftovers = workflow.stop(found)
    except NotReady as error:
        if opened_finder is None or opened_finder.unreachable:  # it may go on there
            raise StopUnverified(error.problems) from error
        raise
    run_id = found.plan.run_id
    if json_:
        show(json.dumps({"run_id": run_id, "state": verdict.state, "left": leftovers}))
    else:
        show_prose(run_table.render_stop(run_id, found.flags, verdict, leftovers))
    return StopUnverified.exit_code if any(leftovers.values()) else 0


def _cancel(
    request: LaunchRequest, finder: RunFinder, reported: RemoteRun, *, yes: bool, json_: bool
) -> int:
    """End the job of a run that has not begun."""
    from runner.workflows.confirmation import confirm
    from runner.workflows.slurm.queue import QueuedJob

    confirm(finder.pool, "stop", [reported.info], yes=yes, is_latest=not request.spec.run_id)
    run_id, node = reported.run_id, next(iter(finder.pool.sessions))
    message = QueuedJob(finder.pool, node, run_id, request.run_flags(run_id)).cancel()
    if json_:
        show(json.dumps({"run_id": run_id, "state": "stopped", "left": {}}))
    else:
        show_prose(message)
    return 0


def _list_hint() -> str:
    return f"`{this_program()} ps` lists the runs"
