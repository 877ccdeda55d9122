"""What a run left on its hosts comes home."""

from __future__ import annotations

import os
from collections.abc import Collection, Container
from pathlib import Path

from runner.control.record.download import Pulled, pull
from runner.core.errors import Interrupted, NotReady
from runner.core.protocol.remote_files import KINDS
from runner.ui.problems import render
from runner.ui.reports import download
from runner.workflows.host_pool import Contact


def bring(
    contact: Contact,
    run_id: str,
    folder: Path,
    kinds: Collection[str] = KINDS,
    nodes: Container[str] | None = None,
) -> dict[str, Pulled]:
    """Bring home what those hosts have that answer, or `nodes`; see `control.pull.pull`."""
    contact.console.phase("fetching")
    there = {n: session for n, session in contact.sessions.items() if not session.closed}
    sessions = {n: session for n, session in there.items() if nodes is None or n in nodes}
    spec = contact.spec
    return pull(
        sessions,
        contact.inbox,
        run_id,
        folder,
        lost_s=spec.lost_s,
        show=contact.console.state,
        kinds=kinds,
    )


def fetch(contact: Contact, run_id: str, folder: Path, kinds: Collection[str], where: str) -> str:
    """Do so at the end of a run, whose own end matters more; return what came of it.

    `where` are the words by which a verb finds the hosts again.
    """
    again = f"python -m runner pull --run {run_id} {where}"
    try:
        pulled = bring(contact, run_id, folder, kinds)
    except Interrupted:
        return f"the rest of the outputs stays on the hosts: {again}"
    except NotReady as error:
        return f"{render(error.problems)}\n  {again}"
    found = any(e.new or e.there or e.notes or e.left_out or e.failed for e in pulled.values())
    told = [download.summary(pulled, os.path.relpath(folder))] if found else []
    missing = [node.name for node in contact.spec.nodes if node.name not in pulled]
    if missing:
        told.append(f"nothing fetched from {', '.join(missing)}, out of reach: {again}")
    problems = download.problems(pulled)
    return "\n".join([*told, *([render(problems)] if problems else [])])
