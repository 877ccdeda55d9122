"""The verb `why`: the verdict of an ended run."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from runner.cli.command import Selection, verb
from runner.core.errors import NotReady, Problem
from runner.ui.output import show

if TYPE_CHECKING:
    from runner.control.record.run_store import RunStore
    from runner.core.model.spec import LaunchRequest


@verb("why")
def why(selection: Selection, run: str = "", json_: bool = False) -> int:
    """Print again how a run ended, and why.

    It reads the record here, or the hosts' if there is none here.
    """
    from runner.control.record import run_index
    from runner.control.record.run_store import RunStore
    from runner.core.outcome.diagnosis import diagnose
    from runner.ui.reports import report

    composed = selection.contact_for_run(run)
    run_id = composed.spec.run_id
    folder = run_index.record_folder(run_id) if run_id else None
    store = RunStore(folder) if folder else None
    if store is None or not store.has_result:
        store = _download_record(composed)
    elif store.has_unproven_end:
        _ask_again(composed)
    if json_:
        show(json.dumps(json.loads((store.folder / "result.json").read_text(encoding="utf-8"))))
        return 0
    plan, verdict = store.read_result()
    report_text = report.final_report(
        *(plan, verdict, store.display_path, diagnose(plan, verdict, store.tail)),
        disconnect_s=plan.nodes[0].order.disconnect_s,
        run_flags=composed.run_flags(plan.run_id),
    )
    show(report_text)
    return 0


def _ask_again(composed: LaunchRequest) -> None:
    """Complete the result on record by what its hosts can say by now; note those that cannot."""
    from runner.workflows.discovery import FoundRun, open_run_finder
    from runner.workflows.pull import complete_result

    try:
        with open_run_finder(composed, "why") as finder:
            complete_result(FoundRun(composed, finder))
    except NotReady as error:
        show(f"note: asked again in vain: {error}", file=sys.stderr)


def _download_record(composed: LaunchRequest) -> RunStore:
    """Download the record of an ended run, or raise NotReady."""
    from runner.workflows.discovery import FoundRun, open_run_finder
    from runner.workflows.pull import pull_run

    with open_run_finder(composed, "why") as finder:
        found = FoundRun(composed, finder)
        if found.relaunch_pending or not found.already_ended:
            state = "is about to be relaunched" if found.relaunch_pending else "has not ended"
            message = f"run {found.plan.run_id} {state}, as far as the hosts say"
            hint = f"python -m runner attach {found.flags}\npython -m runner stacks {found.flags}"
            raise NotReady([Problem("--run", message, hint)])
        pull_run(found)
    return found.store
