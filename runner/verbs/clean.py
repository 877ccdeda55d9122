"""The verb `clean`: garbage collection on the hosts."""

from __future__ import annotations

from typing import Any

import click

from runner.control.run.hosts import workdir_request
from runner.core.errors import Interrupted, NotReady
from runner.core.planning.readiness import workdir_problems
from runner.core.remote_run import user_at_host
from runner.core.wire.run_info import RunInfo
from runner.ui.output import show_prose
from runner.ui.reports import tables
from runner.verbs.shared.selection import Selection, confirm, open_pool
from runner.verbs.shared.verb import json_option, parse_duration, show_json, verb

REMOVED = ("runs", "releases", "environments", "kept")
"""What a host says it has removed, or would."""


@verb(
    "clean",
    subject="cluster",
    examples={"clean lab3 --dry-run": "what would go", "clean lab3 --older-than 12h": "more"},
)
@click.option("--dry-run", is_flag=True, help="remove nothing, only list what would be removed")
@click.option(
    "--older-than",
    default="7d",
    metavar="7d",
    help="the age since the end or last use: 12h, 0s for all; by default 7d",
)
@click.option(
    "-y", "--yes", is_flag=True, help="remove runs that are not on record here without asking"
)
@click.option("--keep", is_flag=True, help="remove the folders of task.keep as well")
@json_option
def clean(
    selection: Selection, older_than: str, dry_run: bool, yes: bool, keep: bool, json_: bool
) -> int:
    """Remove old runs, releases and prepared environments from every host.

    With their logs and the files of their ranks; never what is in use, nor folders of task.keep.
    """
    older_than_s = parse_duration("--older-than", older_than, allow_bare=False)
    composed = selection.contact()
    spec = composed.spec
    others = [node.name for node in spec.nodes]
    request: dict[str, Any] = {
        "older_than_s": older_than_s,
        "dry_run": True,
        "others": others,
        "with_kept": keep,
    }
    with open_pool(composed) as pool:
        pool.collect_facts(lambda node: workdir_request(spec, node), workdir_problems)
        pool.console.phase("cleaning")
        cleaned = pool.broadcast().all("clean", request, reply_kind="cleaned")
        old = sorted({run_id for reply in cleaned.values() for run_id in reply["runs"]})
        runs = {run_id: RunInfo(run_id) for run_id in old}
        if old:
            listed = pool.runs(spec.nodes)
            if listed.problems:
                raise NotReady([*listed.problems.values()])
            runs.update({run.run_id: run.info for run in listed.runs if run.run_id in runs})
        if not dry_run and any(any(each[name] for name in REMOVED) for each in cleaned.values()):
            confirm(pool, "remove", list(runs.values()), yes=yes)
            request |= {"dry_run": False, "only": old}
            try:
                cleaned = pool.broadcast().all("clean", request, reply_kind="cleaned")
            except Interrupted as error:
                message = "interrupted; what was removed is gone, the rest is intact"
                raise Interrupted(error.exit_code, message) from None
    results = {node.name: tables.CleanResult.from_reply(cleaned[node.name]) for node in spec.nodes}
    if json_:
        show_json(results)
    else:
        reader = user_at_host()
        show_prose(tables.render_clean(results, runs, older_than, dry_run=dry_run, reader=reader))
    return 0
