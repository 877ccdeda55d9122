"""The verb `clean`: garbage collection on the hosts, or of kept code on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from runner.core.codec import decode, encode
from runner.core.errors import Interrupted, NotReady, Problem
from runner.ui.output import show, show_prose
from runner.verbs.shared.selection import Selection, open_pool, workdir_request
from runner.verbs.shared.verb import json_option, parse_duration, verb

DEFAULT_AGE = "7d"
UNREFERENCED_AGE_S = 3600.0
"""How long code is kept that no run on record has: one may be about to start."""


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
    from runner.verbs.shared.confirmation import confirm

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


@dataclass(frozen=True)
class PrunedCode:
    """What was removed from one store, or would be."""

    releases: tuple[str, ...]
    size: int  # bytes
    runs: tuple[str, ...]  # on record, whose code it was


@dataclass(frozen=True)
class RecordedRelease:
    """The part of a recorded plan that matters here."""

    run_id: str
    release: str = ""


def prune_code(runs: Path, older_than_s: float | None, *, dry_run: bool) -> PrunedCode:
    """Remove what no run launched from this folder has, or only older ones if an age is given.

    Runs whose end is not on record keep their code: they may be on.

    Raises:
        NotReady: A plan on record cannot be read.
        OSError: The store cannot be read or written.
    """
    from runner.control.code.code_store import STORE, CodeStore
    from runner.control.record import run_index
    from runner.control.record.file_names import PLAN_FILE
    from runner.control.record.run_store import RunStore

    oldest = 0.0 if older_than_s is None else time.time() - older_than_s
    planned_by: list[RecordedRelease] = []
    keep: set[str] = set()
    for file in (folder / PLAN_FILE for folder in run_index.launched_here()):
        with contextlib.suppress(FileNotFoundError):  # its launch has not come so far
            planned, planned_at = _read_release(file), file.stat().st_mtime
            planned_by.append(planned)
            if planned_at > oldest or not RunStore(file.parent).has_result:
                keep.add(planned.release)
    min_age_s = UNREFERENCED_AGE_S if older_than_s is None else older_than_s
    releases, size = CodeStore(runs / STORE).prune(keep, min_age_s, dry_run=dry_run)
    of_runs = sorted(planned.run_id for planned in planned_by if planned.release in releases)
    return PrunedCode(releases, size, tuple(of_runs))


def _read_release(file: Path) -> RecordedRelease:
    try:
        return decode(RecordedRelease, json.loads(file.read_bytes()))
    except ValueError as error:
        message = f"cannot be read, so nobody knows whose code it names: {error}"
        hint = "remove the record of that run, or put its plan.json back; no code was removed"
        raise NotReady([Problem(str(file), message, hint)]) from error
