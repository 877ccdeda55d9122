"""Stop: end a run on every host, also of earlier attempts, and prove that nothing is left."""

from __future__ import annotations

import functools
import signal

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.stop import user_at_host
from runner.control.record import run_index
from runner.core.errors import Interrupted
from runner.core.outcome.verdict import STOPPED, Verdict
from runner.ui.layout import fold_names
from runner.workflows.pull import complete_result
from runner.workflows.runs.found_run import FoundRun


def stop(run: FoundRun) -> tuple[Verdict, dict[str, int | str]]:
    """Stop a run and kill what is left of it.

    The end is recorded if the run is on record here. Return the verdict, and for each node how many
    processes are left, or why that is unknown.
    """
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
