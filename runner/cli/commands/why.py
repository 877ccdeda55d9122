"""The verb `why`: the verdict of an ended run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from runner.cli.command import Selection, verb
from runner.core.errors import NotReady, Problem

if TYPE_CHECKING:
    from runner.control.record.run_store import RunStore
    from runner.core.model.spec import LaunchRequest


@verb("why")
def why(selection: Selection, run: str = "", json_: bool = False) -> int:
    """Print again how a run ended, and why.

    It reads the record here, or the hosts' if there is none here.
    """
    from runner.control.record.run_store import RunStore
    from runner.core.outcome.diagnosis import diagnose
    from runner.ui.reports import report

    composed = selection.compose_for_run(run)
    store = RunStore(composed.run_dir.parent / (run or "latest"))
    if not store.has_result:
        store = _download_record(composed, run)
    if json_:
        print(json.dumps(json.loads((store.folder / "result.json").read_text(encoding="utf-8"))))
        return 0
    plan, verdict = store.read_result()
    folder = Path(os.path.relpath(store.folder.parent / plan.run_id))
    report_text = report.final_report(
        *(plan, verdict, folder, diagnose(plan, verdict, store.tail)),
        disconnect_s=plan.nodes[0].order.disconnect_s,
        cluster_selector=composed.cluster_selector,
    )
    print(report_text)
    return 0


def _download_record(composed: LaunchRequest, run: str) -> RunStore:
    """Download the record of an ended run, or raise NotReady."""
    from runner.workflows.discovery import FoundRun, open_run_finder
    from runner.workflows.pull import pull_run

    with open_run_finder(composed, "why") as finder:
        found = FoundRun(composed, finder, run)
        if found.relaunch_pending or not found.already_ended:
            state = "is about to be relaunched" if found.relaunch_pending else "has not ended"
            message = f"run {found.plan.run_id} {state}, as far as the hosts say"
            selector = f"--run {found.plan.run_id} {composed.cluster_selector}"
            hint = f"python -m runner attach {selector}\npython -m runner stacks {selector}"
            raise NotReady([Problem("--run", message, hint)])
        pull_run(found)
    return found.store
