"""The verb `deploy`: a push of the code to every host."""

from __future__ import annotations

import time
from pathlib import Path

from runner.control.code.snapshot import Snapshot
from runner.control.record.said_notes import unsaid
from runner.control.run.hosts import workdir_request
from runner.core.errors import ConfigError, Problem
from runner.core.planning.readiness import workdir_problems
from runner.core.shell import this_program
from runner.ui.output import show_prose
from runner.ui.reports import tables
from runner.verbs.shared.selection import Selection, open_pool
from runner.verbs.shared.verb import json_option, show_json, verb


@verb(
    "deploy",
    subject="cluster",
    keys=("cluster.project", "deploy"),
    examples={"deploy lab3": "the folder you stand in"},
)
@json_option
def deploy(selection: Selection, json_: bool) -> int:
    """Push the code of the working directory to every host.

    A launch does so for the hosts that lack it.
    """
    composed = selection.contact()
    spec = composed.spec
    if not spec.deploy.enabled:
        where = f"in {spec.cluster.project} on its hosts"
        message = f"cluster {spec.cluster.name} takes no code: it is {where}"
        hint = "cluster.project=null pushes it"
        if not selection.names_cluster:
            hint = f"which cluster? {this_program()} deploy --cluster NAME"
        raise ConfigError([Problem("cluster.project", message, hint)])
    snapshot = Snapshot(spec, Path.cwd())
    with open_pool(composed) as pool:
        for note in unsaid("code", snapshot.notes):
            pool.console.message(f"note: {note}")
        facts = pool.collect_facts(lambda node: workdir_request(spec, node), workdir_problems)
        started_at = time.monotonic()
        received = pool.push(snapshot.release(), facts)
        seconds = time.monotonic() - started_at
    by_node = {node.name: received[node.name] for node in spec.nodes}
    deployed = tables.PushResult(
        release=snapshot.code.release,
        commit=snapshot.code.commit,
        files=len(snapshot.release().manifest.files),
        size=snapshot.release().manifest.size,
        seconds=round(seconds, 3),
        sent={name: each.sent if each.is_new else None for name, each in by_node.items()},
    )
    if json_:
        show_json(deployed)
    else:
        show_prose(tables.render_push(deployed))
    return 0
