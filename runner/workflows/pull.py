"""Pull: download what a run left on its hosts, as a verb and at the end of a launch."""

from __future__ import annotations

import os
from collections.abc import Collection, Container
from pathlib import Path

from runner.control.record.download import pull
from runner.core.errors import Interrupted, NotReady
from runner.core.model.results import PullResult
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.remote_files import FILE_KINDS
from runner.ui.problems import render_problems
from runner.ui.reports import tables
from runner.workflows.found_run import FoundRun
from runner.workflows.host_pool import HostPool
from runner.workflows.observer import console_observer
from runner.workflows.signals import leave_on_signal


def pull_run(run: FoundRun) -> dict[str, PullResult]:
    """Download what the hosts have of a run; record how it ended, if that is not on record here.

    Raises:
        NotReady: The folder cannot be written to, or another process does so.
        Interrupted: By a signal; the next pull continues from there.
    """
    store, config_yaml, run_id = run.store, run.record.config_yaml, run.plan.run_id
    verdict: Verdict | None = None
    has_ended = run.already_ended and not run.relaunch_pending
    if store.reopen(config_yaml, run.plan) and has_ended and not store.has_result:
        verdict = _read_verdict(run)
    store.unlock()
    try:
        pulled = _download(run.finder.pool, run_id, store.folder, FILE_KINDS, run.reported.by_host)
    except Interrupted as error:
        pull_command = f"python -m runner pull --run {run_id} {run.cluster_selector}"
        message = f"interrupted; what came is kept, and this continues from there: {pull_command}"
        raise Interrupted(error.exit_code, message) from None
    if verdict and store.reopen(config_yaml, run.plan):
        diagnosis = diagnose(run.plan, verdict, store.tail)
        store.write_result(run.plan, verdict, run.record.info.launched_at, diagnosis)
        store.unlock()
    return pulled


def _read_verdict(run: FoundRun) -> Verdict:
    monitor = run.monitor(console_observer(run.console, record=run.store.append))
    signals = leave_on_signal(monitor)
    monitor.attach(logs=False, read_only=True)
    monitor.run()
    if signals:
        raise Interrupted(128 + signals[0], "interrupted; nothing was fetched")
    return run.verdict(monitor)


def _download(
    pool: HostPool,
    run_id: str,
    folder: Path,
    kinds: Collection[str],
    nodes: Container[str] | None = None,
) -> dict[str, PullResult]:
    """Download from the nodes that are connected, or those of `nodes` among them."""
    pool.progress.phase("fetching")
    sessions = {
        name: session
        for name, session in pool.sessions.items()
        if not session.closed and (nodes is None or name in nodes)
    }
    show = pool.progress.node_status
    return pull(
        sessions, pool.inbox, run_id, folder, lost_s=pool.spec.lost_s, show=show, kinds=kinds
    )


def download_at_end(
    pool: HostPool, run_id: str, folder: Path, kinds: Collection[str], cluster_selector: str
) -> str:
    """Download at the end of a run; return a summary, in which problems are named, not raised."""
    pull_command = f"python -m runner pull --run {run_id} {cluster_selector}"
    try:
        pulled = _download(pool, run_id, folder, kinds)
    except Interrupted:
        return f"the rest of the outputs stays on the hosts: {pull_command}"
    except NotReady as error:
        return f"{render_problems(error.problems)}\n  {pull_command}"
    has_files = any(
        e.new_count or e.existing_count or e.notes or e.omitted_count or e.failed_count
        for e in pulled.values()
    )
    lines = [tables.render_pull(pulled, os.path.relpath(folder))] if has_files else []
    missing = [node.name for node in pool.spec.nodes if node.name not in pulled]
    if missing:
        lines.append(f"nothing fetched from {', '.join(missing)}, out of reach: {pull_command}")
    problems = tables.pull_problems(pulled)
    return "\n".join([*lines, *([render_problems(problems)] if problems else [])])
