"""The verb `stacks`: the Python stacks of every rank."""

from __future__ import annotations

import json

from runner.cli.command import Selection, verb
from runner.core.errors import NotReady


@verb("stacks")
def stacks(selection: Selection, run: str = "", json_: bool = False) -> int:
    """Show the Python stacks of every rank of a run, with equal stacks folded.

    The ranks are not stopped. This is one sample, so take another before you draw conclusions. The
    hosts keep each sample in the run's log `stacks`.
    """
    from runner.core.outcome.stacks import group_run_stacks, parse_dumps
    from runner.ui.reports import tables
    from runner.workflows.discovery import open_run_finder
    from runner.workflows.host_pool import user_at_host

    composed = selection.compose_for_run(run)
    with open_run_finder(composed, "stacks") as finder:
        run_found = finder.find(run)
        plan = finder.load_record(run_found).plan
        request = {"run_id": plan.run_id, "reason": f"asked for by {user_at_host()}"}
        answers, problems = finder.broadcast().collect("dump_stacks", request, "stacks_dumped")
    stacks_by_node = {
        name: [stack for dump in parse_dumps(answer["payload"].decode()) for stack in dump.stacks]
        for name, answer in answers.items()
    }
    groups = group_run_stacks(plan, stacks_by_node)
    node_problems = [problems.get(s.node) or finder.unreachable.get(s.node) for s in plan.nodes]
    unreachable = [problem for problem in node_problems if problem]
    if json_:
        print(json.dumps(tables.stacks_as_data(plan.run_id, groups, unreachable)))
    else:
        print(tables.render_stacks(groups, unreachable))
    return NotReady.exit_code if unreachable else 0
