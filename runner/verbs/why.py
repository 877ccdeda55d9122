"""The verb `why`: the verdict of an ended run."""

from __future__ import annotations

import contextlib
import json

from runner.control.record import run_index
from runner.control.record.launch_record import JOB_FILE, RESULT_FILE, read_launch
from runner.control.record.run_store import RunStore
from runner.control.run.found_run import FoundRun, pull_run
from runner.control.run.job_run import job_run
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.remote_run import BROKEN, aggregate_state
from runner.core.shell import this_program
from runner.core.wire.events import parse
from runner.core.wire.files import LOG, RECORD, SAMPLES
from runner.core.wire.paths import EVENTS_FILE
from runner.ui.output import note, show, show_prose, tell
from runner.ui.reports import report
from runner.verbs.shared.selection import Selection, open_run_finder, record_of
from runner.verbs.shared.verb import json_option, run_option, verb


@verb("why")
@run_option
@json_option
def why(selection: Selection, run: str, json_: bool) -> int:
    """Print again how a run ended, and why.

    It reads the record here, or the hosts' if there is none here.
    """
    is_here = not (selection.settings or selection.config_dirs)
    record = record_of(run) if is_here else None
    store = RunStore(record) if record else None
    selector = ""
    if store and not store.has_result and (store.folder / JOB_FILE).exists():
        in_job = job_run(read_launch(store.folder), tell)
        if in_job:
            in_job.complete()
    if store is None or not _is_complete(store):
        try:
            by_record = selection.contact_by_record(record) if record else None
            composed = by_record or selection.contact_for_run(run)
            selector = composed.selector
            store = _ask_hosts(composed, RunStore(composed.run_dir))
        except ConfigError as error:
            if store is None or not store.has_result:
                raise
            note(f"not asked again: {error}")
    if json_:
        show(json.dumps(json.loads((store.folder / RESULT_FILE).read_text(encoding="utf-8"))))
        return 0
    plan, verdict = store.read_result()
    report_text, _ = report.final_report(
        plan,
        verdict,
        store.display_path,
        store.diagnose(plan, verdict),
        run_flags=f"--run {plan.run_id} {selector}".rstrip(),
        rerun=store.rerun_without_lost(plan, verdict),
    )
    show_prose(report_text)
    with contextlib.suppress(OSError), (store.folder / EVENTS_FILE).open("rb") as file:
        for line in file:
            if b'"kind":"notification_failed"' in line:
                with contextlib.suppress(ValueError):
                    event = parse(line.decode(errors="replace"))
                    where = f"{event.node}: " if event.node else ""
                    note(where + getattr(event.body, "text", ""))
    return 0


def _is_complete(store: RunStore) -> bool:
    """Whether a record has a proven end, and the logs: `stop` fetches none."""
    if not store.has_result or run_index.has_unproven_end(store.folder):
        return False
    verdict = store.read_result()[1]
    ran = verdict.nodes_that_ran
    return not verdict.has_begun or all(any((store.logs / node).glob("*")) for node in ran)


def _ask_hosts(composed: LaunchRequest, known: RunStore) -> RunStore:
    """Return the record of an ended run with what its hosts can say by now.

    Where they cannot, what is `known` is that, with a note; without an end there it is NotReady.
    """
    try:
        with open_run_finder(composed, "why") as finder:
            found = FoundRun(composed, finder)
            if not (found.has_ended or found.store.has_result):
                state = "has not ended, as far as the hosts say"
                steps = ["attach", "stacks"]
                if found.reported.relaunch_pending:
                    state = "is about to be relaunched, as far as the hosts say"
                elif aggregate_state(found.reported.by_host) == BROKEN:
                    state = "is broken: its supervisors are gone, and its record has no end"
                    steps = ["stop"]
                hint = "\n".join(f"{this_program()} {verb} {found.flags}" for verb in steps)
                raise NotReady([Problem("", f"run {found.plan.run_id} {state}", hint)])
            pull_run(found, (RECORD, LOG, SAMPLES))
            for problem in finder.unreachable.values() if known.has_result else ():
                note(f"asked again in vain: {problem}")
    except NotReady as error:
        if not known.has_result:
            raise
        note(f"asked again in vain: {error}")
        return known
    return found.store
