"""The verb `stop`: the end of a run on every host, with proof."""

from __future__ import annotations

import contextlib
import functools
import signal
from typing import Any

import click

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record import run_index
from runner.control.record.launch_record import LATEST
from runner.control.run.discovery import RunFinder
from runner.control.run.found_run import FoundRun, record_end
from runner.control.run.job_run import job_run
from runner.core.errors import (
    SIGNAL_EXIT_BASE,
    ConfigError,
    Interrupted,
    NotReady,
    Problem,
    StopUnverified,
    fold_names,
)
from runner.core.launch_request import LaunchRequest
from runner.core.remote_run import user_at_host
from runner.core.shell import this_program
from runner.core.wire.states import STOPPED, Reason, ReasonKind
from runner.ui.output import note, show_prose, tell
from runner.ui.reports import run_table
from runner.verbs.shared.selection import Selection, confirm, open_run_finder
from runner.verbs.shared.verb import json_option, run_option, show_json, verb


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
    list_hint = f"`{this_program()} ps` lists the runs"
    here = [*run_index.unfinished()]
    names = run_index.records()
    commands = [f"{this_program()} stop --run {names[folder]}" for folder in here]
    if not run:
        hint = "\n".join(commands[:8]) or list_hint
        raise ConfigError([Problem("--run", "no run is given", hint)])
    if run == LATEST and not selection.names_cluster:
        if not here:
            message = "no run launched from this folder is running"
            raise ConfigError([Problem("", message, f"{list_hint} of a cluster: --cluster NAME")])
        request = selection.contact_by_record(here[0])
        for command in commands[1:4]:
            note(f"not the only run launched from here without an end on record: {command}")
    else:
        request = selection.contact_for_run(run)
    run_id = request.spec.run_id
    opened: RunFinder | None = None
    try:
        if in_job := job_run(request, tell):
            text = in_job.stop()
            data: dict[str, Any] = {"run_id": run_id, "state": STOPPED, "left": {}}
        else:
            with open_run_finder(request, "stop") as opened:
                data, text = _stop_run(request, opened, yes=yes)
    except NotReady as error:
        if opened and not opened.unreachable:
            raise
        raise StopUnverified(error.problems) from error  # it may go on there
    if json_:
        show_json(data)
    else:
        show_prose(text)
    return StopUnverified.exit_code if any(data["left"].values()) else 0


def _stop_run(
    request: LaunchRequest, finder: RunFinder, *, yes: bool
) -> tuple[dict[str, Any], str]:
    """Name a run, end it, and kill what is left of it; return that as data, and as text.

    The end is recorded if the run is on record here.
    """
    reported = finder.find(request.spec.run_id, prefer_active=True)
    confirm(finder.pool, "stop", [reported.info], yes=yes, is_latest=not request.spec.run_id)
    run_id = reported.run_id
    run = FoundRun(request, finder, to_end_it=True)
    try:
        monitor = run.follow(functools.partial(_stop_attempt, run))
    except Interrupted as error:
        message = f"interrupted; run {run_id} was asked to stop, its end was not seen"
        raise Interrupted(error.exit_code, message) from None
    if monitor.detached:  # the hosts carry on with the stop by themselves
        unconfirmed = fold_names(monitor.stop.unconfirmed)
        doubt = f", which is not confirmed by {unconfirmed}" if unconfirmed else ""
        code = SIGNAL_EXIT_BASE + signal.SIGHUP
        raise Interrupted(code, f"run {run_id} is being stopped{doubt}")
    verdict = run.verdict(monitor)
    leftovers = _kill_leftovers(run, monitor.unfollowed)
    is_proven = not any(leftovers.values())
    if is_proven and run.store.folder.exists():
        with contextlib.suppress(NotReady):
            run.reported = finder.find(run_id)
            record_end(run)
    text = run_table.render_stop(run_id, run.flags, verdict, leftovers)
    return {"run_id": run_id, "state": verdict.state, "left": leftovers}, text


def _stop_attempt(run: FoundRun) -> AttemptMonitor:
    monitor = run.finder.pool.monitor(run.plan)
    monitor.attach(ranks=(), read_only=run.already_ended)
    if run.already_ended:
        state = "is between two attempts" if run.reported.relaunch_pending else "had ended"
        run.console.message(f"run {run.plan.run_id} {state}; looking for what is left of it")
    else:
        reason = Reason(ReasonKind.USER, detail=f"stop requested by {user_at_host()}")
        monitor.stop_all(reason)
    monitor.run()
    return monitor


def _kill_leftovers(run: FoundRun, unfollowed: set[str]) -> dict[str, int | str]:
    """Kill what is left; return the number of processes left on each node, or why it is unknown.

    A host that gave no answer twice is not asked a third time.
    """
    unreachable = run.finder.unreachable
    leftovers: dict[str, int | str] = {
        name: unreachable[name].message if name in unreachable else "it did not answer"
        for name in (*run.all_nodes, *run.reported.by_host)
    }
    names = leftovers.keys() - (unfollowed & unreachable.keys())
    try:
        replies, problems = run.finder.pool.broadcast(names).collect(
            "kill_leftovers", {"run_id": run.plan.run_id}, "leftovers"
        )
    except Interrupted as error:
        message = f"interrupted; run {run.plan.run_id} was stopped, what is left is not known"
        raise Interrupted(error.exit_code, message) from None
    for name in problems.keys() - unreachable.keys():  # else the first reason stays
        leftovers[name] = problems[name].message
    leftovers.update({name: len(reply["survivors"]) for name, reply in replies.items()})
    return leftovers
