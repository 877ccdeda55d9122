"""The verb `stacks`: the Python stacks of every rank."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from runner.core.errors import NotReady, Problem
from runner.ui.output import note, show
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import json_option, run_option, verb

if TYPE_CHECKING:
    from runner.core.model.plan import Plan
    from runner.core.model.results import RemoteRun
    from runner.core.outcome.stacks import Stack
    from runner.verbs.shared.discovery import RunFinder


SECOND_LOOK_S = 1.0


@verb("stacks")
@run_option
@json_option
def stacks(selection: Selection, run: str, json_: bool) -> int:
    """Show the Python stacks of every rank of a run, with equal stacks folded.

    The ranks are not stopped. Where ranks wait for others, it looks again a second later: those
    that did something meanwhile are moving. The hosts keep each look in the run's log `stacks`.
    """
    from runner.core.outcome.stacks import group_stacks, moving_ranks
    from runner.ui.reports import tables
    from runner.ui.reports.report import ended_notice
    from runner.verbs.shared.discovery import open_run_finder

    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "stacks") as finder:
        run_found = finder.find(composed.spec.run_id)
        if run in ("", "latest"):
            _name_run(finder, run_found)
        plan = finder.load_record(run_found).plan
        stacks_by_node, problems = _look(finder, plan)
        report = group_stacks(plan, stacks_by_node)
        if any(group.collective for group in report.groups):
            finder.pool.poll_for_stop(SECOND_LOOK_S)
            before = [stack for found in stacks_by_node.values() for stack in found]
            stacks_by_node, problems = _look(finder, plan)
            after = [stack for found in stacks_by_node.values() for stack in found]
            moving = moving_ranks(before, after, elapsed_s=SECOND_LOOK_S, backend=plan.backend)
            report = group_stacks(plan, stacks_by_node, moving)
    node_problems = [problems.get(s.node) or finder.unreachable.get(s.node) for s in plan.nodes]
    unreachable = [problem for problem in node_problems if problem]
    if json_:
        show(json.dumps(tables.stacks_as_data(plan.run_id, report, unreachable)))
    else:
        show(tables.render_stacks(report, unreachable))
        if report.ended and not (report.groups or report.unknown):
            show(ended_notice(composed.run_flags(plan.run_id)))
    return NotReady.exit_code if unreachable else 0


def _name_run(finder: RunFinder, found: RemoteRun) -> None:
    """Say which run is meant where others are on as well."""
    others = [
        f"--run {run.run_id} ({run.info.task})"
        for run in finder.runs()
        if run.run_id != found.run_id and run.is_active
    ]
    if others:
        text = f"this is run {found.run_id} ({found.info.task}), the latest; also running: "
        note(f"{text}{', '.join(others)}")


def _look(finder: RunFinder, plan: Plan) -> tuple[dict[str, list[Stack]], dict[str, Problem]]:
    """Return the stacks on each host that answers, and the problems of the others."""
    from runner.control.attempt.stop import user_at_host
    from runner.core.outcome.stacks import parse_dumps

    request = {"run_id": plan.run_id, "reason": f"asked for by {user_at_host()}"}
    answers, problems = finder.broadcast().collect("dump_stacks", request, "stacks_dumped")
    texts = {name: answer["payload"].decode(errors="replace") for name, answer in answers.items()}
    dumps = {name: parse_dumps(text) for name, text in texts.items()}
    found = {name: [s for dump in each for s in dump.stacks] for name, each in dumps.items()}
    return found, problems
