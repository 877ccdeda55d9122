"""Verdict of a job: how the run ended by the records of its nodes, as an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import NoReturn

from runner.core.codec import decode, parse_json
from runner.core.model.plan import Plan
from runner.core.outcome.verdict import fold_events
from runner.core.protocol.events import TimedEvent
from runner.core.protocol.paths import RunPaths
from runner.host.process import procfs
from runner.host.process.importer import HostCode
from runner.host.slurm import shared_files
from runner.host.slurm.job_folder import job_paths, start_number
from runner.host.slurm.node_task import NOT_STARTED
from runner.host.storage.run_folder import read_events


def _last_plan(first: Plan) -> Plan:
    """Return the plan of the last attempt: in their allocation, the nodes may have relaunched."""
    plans = [first]
    workdir = first.nodes[0].order.workdir
    for name in procfs.list_names(os.path.join(workdir, "runs", first.run_id)):
        text = procfs.read_text(RunPaths(workdir, first.run_id, name).plan)
        with contextlib.suppress(ValueError):
            plans.append(decode(Plan, parse_json(text)))
    return max(plans, key=lambda plan: plan.attempt)


def main(code: HostCode) -> NoReturn:
    """Exit with the code of the run, as its launch does; print "stopped" if a user stopped it."""
    del code
    paths = job_paths(sys.argv[2])
    orders = shared_files.read(paths.start(start_number(os.environ)).orders) or {}
    if "plan" not in orders:
        sys.exit(NOT_STARTED)
    plan = _last_plan(decode(Plan, orders["plan"]))
    events = []
    for part in plan.nodes:
        folder = RunPaths(part.order.workdir, plan.run_id, part.node)
        events += [e for e in read_events(folder) if e.attempt >= plan.attempt]
    timed = [TimedEvent(event.wall, event) for event in events]
    verdict = fold_events(plan, timed, 0.0)
    if verdict.stop_reason:
        print("stopped")
    sys.exit(verdict.exit_code)
