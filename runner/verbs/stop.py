"""The verb `stop`: the end of a run on every host, with proof."""

from __future__ import annotations

import functools
import json
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from runner.core.errors import ConfigError, Interrupted, NotReady, Problem, StopUnverified
from runner.core.shell import this_program
from runner.ui.output import show, show_prose
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import json_option, run_option, verb

if TYPE_CHECKING:
    from runner.control.attempt.monitor import AttemptMonitor
    from runner.core.launch_request import LaunchRequest
    from runner.core.model.results import RemoteRun
    from runner.core.outcome.verdict import Verdict
    from runner.core.spec import Spec
    from runner.verbs.shared.discovery import RunFinder
    from runner.verbs.shared.found_run import FoundRun

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
    from runner.verbs.shared.job_run import job_run

    asked: list[tuple[Spec, Answer]] = []
    problems: list[Problem] = []
    for folder in run_index.unfinished():
        request = selection.contact_by_record(folder)
        run_id = request.spec.run_id
        if in_job := job_run(request):
            if in_job.is_over:
                continue
            return request
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
    from runner.verbs.shared.discovery import open_run_finder

    try:
        with open_run_finder(request, "stop", plain=True) as finder:
            return finder.runs(), [*finder.unreachable.values()]
    except NotReady as error:
        return [], list(error.problems)


def _stop_run(request: LaunchRequest, *, yes: bool, json_: bool) -> int:
    from runner.ui.reports import run_table
    from runner.verbs.shared.confirmation import confirm
    from runner.verbs.shared.discovery import open_run_finder
    from runner.verbs.shared.found_run import FoundRun
    from runner.verbs.shared.job_run import job_run

    if in_job := job_run(request):
        proof = in_job.stop()
        if json_:
            show(json.dumps({"run_id": in_job.run_id, "state": "stopped", "left": {}}))
        else:
            show_prose(proof)
        return 0
    opened_finder: RunFinder | None = None
    try:
        with open_run_finder(request, "stop") as finder:
            opened_finder = finder
            found = FoundRun(request, finder, to_end_it=True)
            is_latest = not request.spec.run_id
            confirm(finder.pool, "stop", [found.record.info], yes=yes, is_latest=is_latest)
            verdict, leftovers = _end_run(found)
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


def _end_run(run: FoundRun) -> tuple[Verdict, dict[str, int | str]]:
    """Stop a run and kill what is left of it.

    The end is recorded if the run is on record here. Return the verdict, and for each node how many
    processes are left, or why that is unknown.
    """
    from runner.control.record import run_index
    from runner.core.outcome.verdict import STOPPED
    from runner.ui.layout import fold_names
    from runner.verbs.shared.found_run import complete_result

    run_id = run.plan.run_id
    store = run.store
    try:
        monitor = run.follow(functools.partial(_stop_attempt, run))
    except Interrupted as error:
        message = f"interrupted; run {run_id} was asked to stop, its end was not seen"
        raise Interrupted(error.exit_code, message) from None
    if monitor.detached:  # the hosts carry on with the stop by themselves
        unconfirmed = fold_names(monitor.stop_unconfirmed)
        doubt = f", which is not confirmed by {unconfirmed}" if unconfirmed else ""
        raise Interrupted(128 + signal.SIGHUP, f"run {run_id} is being stopped{doubt}")
    verdict = run.verdict(monitor)
    leftovers = _kill_leftovers(run, monitor.unfollowed)
    is_over = verdict.state == STOPPED and not any(leftovers.values())
    if run.owns_record and is_over and not store.has_result:
        diagnosis = store.diagnose(run.plan, verdict)
        store.write_result(run.plan, verdict, run.record.info.launched_at, diagnosis)
    store.unlock()
    if run_index.has_unproven_end(store.folder) and not any(leftovers.values()):
        run.reported = run.finder.find(run_id)
        complete_result(run)
    return verdict, leftovers


def _stop_attempt(run: FoundRun) -> AttemptMonitor:
    """Stop one attempt, and follow it to its end."""
    from runner.control.attempt.stop import user_at_host

    # Where the launch is on, that writes the record.
    run.owns_record = run.store.folder.exists() and run.store.reopen(run.request, run.plan)
    record = run.store.append if run.owns_record else lambda _: None
    monitor = run.finder.pool.monitor(run.plan, record)
    monitor.attach(ranks=(), read_only=run.already_ended)
    if run.already_ended:
        state = "is between two attempts" if run.relaunch_pending else "had ended"
        run.console.message(f"run {run.plan.run_id} {state}; looking for what is left of it")
    else:
        monitor.stop_by_user(f"stop requested by {user_at_host()}")
    monitor.run()
    return monitor


def _kill_leftovers(run: FoundRun, unfollowed: set[str]) -> dict[str, int | str]:
    """Kill what is left; a host that gave no answer twice is not asked a third time."""
    unreachable = run.finder.unreachable
    leftovers: dict[str, int | str] = {
        name: unreachable[name].message if name in unreachable else "it did not answer"
        for name in (*run.all_nodes, *run.reported.by_host)
    }
    names = leftovers.keys() - (unfollowed & unreachable.keys())
    try:
        replies, problems = run.finder.broadcast(names).collect(
            "kill_leftovers", {"run_id": run.plan.run_id}, "leftovers"
        )
    except Interrupted as error:
        message = f"interrupted; run {run.plan.run_id} was stopped, what is left is not known"
        raise Interrupted(error.exit_code, message) from None
    leftovers.update({name: problem.message for name, problem in problems.items()})
    leftovers.update({name: len(reply["survivors"]) for name, reply in replies.items()})
    return leftovers


def _list_hint() -> str:
    return f"`{this_program()} ps` lists the runs"
