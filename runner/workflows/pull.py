"""Pull: download what a run left on its hosts."""

from __future__ import annotations

from collections.abc import Collection

from runner.control.record import run_index
from runner.core.errors import Interrupted
from runner.core.model.results import PullResult
from runner.core.outcome.verdict import Verdict, completed
from runner.core.protocol.remote_files import FILE_KINDS
from runner.core.shell import this_program
from runner.workflows.host_pool import leave_on_signal
from runner.workflows.reporting import download
from runner.workflows.runs.found_run import FoundRun


def pull_run(run: FoundRun, kinds: Collection[str] = FILE_KINDS) -> dict[str, PullResult]:
    """Download what the hosts have of a run; record how it ended, if that is not on record here.

    The `kinds` are those of `download.pull`.

    Raises:
        NotReady: The folder cannot be written to, or another process does so.
    """
    store, run_id = run.store, run.plan.run_id
    verdict: Verdict | None = None
    complete_result(run)
    has_ended = run.has_ended_where_known and not run.relaunch_pending
    if store.reopen(run.request, run.plan) and has_ended and not store.has_result:
        verdict = _read_verdict(run)
    store.unlock()
    try:
        pulled = download(run.finder.pool, run_id, store.folder, kinds, nodes=run.reported.by_host)
    except Interrupted as error:
        pull_command = f"{this_program()} pull {run.flags}"
        message = f"interrupted; what came is kept, and this continues from there: {pull_command}"
        raise Interrupted(error.exit_code, message) from None
    if has_ended:
        store.record_metrics(run.plan)
    if verdict and store.reopen(run.request, run.plan):
        diagnosis = store.diagnose(run.plan, verdict)
        store.write_result(run.plan, verdict, run.record.info.launched_at, diagnosis)
        store.unlock()
    return pulled


def complete_result(run: FoundRun) -> None:
    """Add to the result on record here what hosts could not prove when the run ended.

    Raises:
        NotReady: The result cannot be read.
    """
    store = run.store
    is_unproven = run.already_ended and run_index.has_unproven_end(store.folder)
    if not (is_unproven and store.reopen(run.request, run.plan)):
        return
    try:
        if not store.has_result:  # what was on record is the end of an attempt before
            return
        plan, verdict = store.read_result()
        verdict = completed(verdict, _read_verdict(run))
        diagnosis = store.diagnose(plan, verdict)
        store.write_result(plan, verdict, run.record.info.launched_at, diagnosis)
    finally:
        store.unlock()


def _read_verdict(run: FoundRun) -> Verdict:
    pool, record = run.finder.pool, run.store.append
    monitor = pool.monitor(run.plan, record, message=lambda _: None)  # all of it is over
    signals: list[int] = []
    leave_on_signal(monitor, signals)
    monitor.attach(ranks=(), read_only=True)
    monitor.run()
    if signals:
        raise Interrupted(128 + signals[0], "interrupted; nothing was fetched")
    return run.verdict(monitor)
