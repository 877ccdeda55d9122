"""What a run left on its hosts comes home."""

from __future__ import annotations

import os
from collections.abc import Collection, Container
from pathlib import Path

from runner.control.record.download import pull
from runner.core.errors import Interrupted, NotReady
from runner.core.model.results import PullResult
from runner.core.protocol.remote_files import FILE_KINDS
from runner.ui.problems import render
from runner.ui.reports import download
from runner.workflows.host_pool import HostPool


def download_run(
    pool: HostPool,
    run_id: str,
    folder: Path,
    kinds: Collection[str] = FILE_KINDS,
    nodes: Container[str] | None = None,
) -> dict[str, PullResult]:
    """Bring home what those hosts have that answer, or `nodes`; see `control.pull.pull`."""
    pool.console.phase("fetching")
    open_sessions = {n: session for n, session in pool.sessions.items() if not session.closed}
    sessions = {n: session for n, session in open_sessions.items() if nodes is None or n in nodes}
    spec = pool.spec
    return pull(
        sessions,
        pool.inbox,
        run_id,
        folder,
        lost_s=spec.lost_s,
        show=pool.console.node_status,
        kinds=kinds,
    )


def download_outputs(
    pool: HostPool, run_id: str, folder: Path, kinds: Collection[str], where: str
) -> str:
    """Do so at the end of a run, whose own end matters more; return what came of it.

    `where` are the words by which a verb finds the hosts again.
    """
    pull_command = f"python -m runner pull --run {run_id} {where}"
    try:
        pulled = download_run(pool, run_id, folder, kinds)
    except Interrupted:
        return f"the rest of the outputs stays on the hosts: {pull_command}"
    except NotReady as error:
        return f"{render(error.problems)}\n  {pull_command}"
    has_files = any(
        e.new_count or e.existing_count or e.notes or e.omitted_count or e.failed_count
        for e in pulled.values()
    )
    lines = [download.summary(pulled, os.path.relpath(folder))] if has_files else []
    missing = [node.name for node in pool.spec.nodes if node.name not in pulled]
    if missing:
        lines.append(f"nothing fetched from {', '.join(missing)}, out of reach: {pull_command}")
    problems = download.problems(pulled)
    return "\n".join([*lines, *([render(problems)] if problems else [])])
