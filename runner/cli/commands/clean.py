"""The verb `clean`: garbage collection on the hosts, or of kept code on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from runner.cli.selection import Selection, open_pool, workdir_request
from runner.cli.verb import json_option, parse_duration, verb
from runner.core.codec import encode
from runner.core.errors import Interrupted, NotReady, Problem
from runner.ui.output import show, show_prose

DEFAULT_AGE = "7d"


@verb(
    "clean",
    subject="cluster",
    examples={"clean lab3 --dry-run": "what would go", "clean lab3 --older-than 12h": "more"},
)
@click.option("--dry-run", is_flag=True, help="remove nothing, only list what would be removed")
@click.option(
    "--older-than",
    default="",
    metavar=DEFAULT_AGE,
    help=f"the age since the end or last use: 12h, 30m; by default {DEFAULT_AGE}",
)
@click.option(
    "-y", "--yes", is_flag=True, help="remove runs that are not on record here without asking"
)
@click.option(
    "--local",
    is_flag=True,
    help="remove kept code from ./runs instead: that of no run on record, or of older ones, too",
)
@json_option
def clean(
    selection: Selection, older_than: str, dry_run: bool, yes: bool, local: bool, json_: bool
) -> int:
    """Remove old runs and releases from every host.

    With their logs and the files of their ranks; never what is in use.
    """
    if local:
        return _clean_local(older_than, dry_run=dry_run, as_json=json_)

    from runner.control.attempt.stop import user_at_host
    from runner.control.record.host_record import merge_statuses
    from runner.core.model.run_info import RunInfo
    from runner.core.planning.readiness import workdir_problems
    from runner.ui.reports import tables
    from runner.workflows.confirmation import confirm

    older_than_s = parse_duration("--older-than", older_than or DEFAULT_AGE, allow_bare=False)
    composed = selection.contact()
    spec = composed.spec
    others = [node.name for node in spec.nodes]
    request: dict[str, Any] = {"older_than_s": older_than_s, "dry_run": True, "others": others}
    with open_pool(composed) as pool:
        pool.collect_facts(lambda node: workdir_request(spec, node), workdir_problems)
        pool.console.phase("cleaning")
        cleaned = pool.broadcast().all("clean", request, reply_kind="cleaned")
        old = sorted({run_id for reply in cleaned.values() for run_id in reply["runs"]})
        runs = {run_id: RunInfo(run_id) for run_id in old}
        if old:
            listings = pool.broadcast().all("runs", {"others": others}, reply_kind="runs")
            merged, _ = merge_statuses(listings, {node.name: node.host for node in spec.nodes})
            runs.update({run.run_id: run.info for run in merged if run.run_id in runs})
        if not dry_run and any(each["runs"] or each["releases"] for each in cleaned.values()):
            confirm(pool, "remove", list(runs.values()), yes=yes)
            request |= {"dry_run": False, "only": old}
            try:
                cleaned = pool.broadcast().all("clean", request, reply_kind="cleaned")
            except Interrupted as error:
                message = "interrupted; what was removed is gone, the rest is intact"
                raise Interrupted(error.exit_code, message) from None
    results = {node.name: tables.CleanResult.from_reply(cleaned[node.name]) for node in spec.nodes}
    age = older_than or DEFAULT_AGE
    reader = user_at_host()
    text = tables.render_clean(results, runs, age, dry_run=dry_run, reader=reader)
    if json_:
        show(json.dumps(encode(results)))
    else:
        show_prose(text)
    return 0


def _clean_local(older_than: str, *, dry_run: bool, as_json: bool) -> int:
    from runner.ui.reports import tables
    from runner.workflows.prune_code import prune_code

    age_s = parse_duration("--older-than", older_than, allow_bare=False) if older_than else None
    runs = Path("runs")
    try:
        pruned = prune_code(runs, age_s, dry_run=dry_run)
    except OSError as error:
        message = f"cannot clean {error.filename or runs}: {error.strerror}"
        raise NotReady([Problem("", message)]) from error
    if as_json:
        show(json.dumps(encode(pruned)))
    else:
        show_prose(tables.render_pruned(pruned.releases, pruned.size, pruned.runs, dry_run=dry_run))
    return 0
