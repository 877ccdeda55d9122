"""The verb `stacks`: the Python stacks of every rank."""

from __future__ import annotations

from runner.control.run.discovery import RunFinder
from runner.core.errors import NotReady, Problem
from runner.core.outcome.stacks import Stack, group_stacks, parse_dumps
from runner.core.remote_run import user_at_host
from runner.core.wire.plan import Plan
from runner.ui.output import note, show
from runner.ui.reports import tables
from runner.ui.reports.report import ended_notice
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import json_option, run_option, show_json, verb


@verb("stacks")
@run_option
@json_option
def stacks(selection: Selection, run: str, json_: bool) -> int:
    """Show the Python stacks of every rank of a run, with equal stacks folded.

    The ranks are not stopped. It shows one moment: ranks that are elsewhere when you ask again are
    moving. The hosts keep each look in the run's log `stacks`.
    """
    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "stacks") as finder:
        found = finder.find(composed.spec.run_id)
        if run in ("", "latest"):
            on = [each.run_id for each in finder.runs() if each.is_active]
            if others := ", ".join(run_id for run_id in on if run_id != found.run_id):
                told = f"this is run {found.run_id} ({found.info.task}), the latest"
                note(f"{told}; also running: {others}")
        plan = finder.load_record(found).plan
        stacks_by_node, problems = _look(finder, plan)
    report = group_stacks(plan, stacks_by_node)
    problems = {**finder.unreachable, **problems}
    silent = [problems[share.node] for share in plan.nodes if share.node in problems]
    if json_:
        show_json(tables.stacks_as_data(plan.run_id, report, silent))
    else:
        show(tables.render_stacks(report, silent))
        if report.ended and not (report.groups or report.unknown):
            show(ended_notice(composed.run_flags(plan.run_id)))
    return NotReady.exit_code if silent else 0


def _look(finder: RunFinder, plan: Plan) -> tuple[dict[str, list[Stack]], dict[str, Problem]]:
    """Return the stacks on each host that answers, and the problems of the others."""
    request = {"run_id": plan.run_id, "reason": f"asked for by {user_at_host()}"}
    answers, problems = finder.pool.broadcast().collect("dump_stacks", request, "stacks_dumped")
    found: dict[str, list[Stack]] = {}
    for name, answer in answers.items():
        dumps = parse_dumps(answer["payload"].decode(errors="replace"))
        found[name] = [stack for dump in dumps for stack in dump.stacks]
    return found, problems
