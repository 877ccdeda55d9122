"""The verbs that say what is wrong: with a cluster before a run, and with a run that failed."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import Task

from runner.cli.command import compose, compose_for_run, open_pool, verb
from runner.core.errors import ConfigError, NotReady, Problem

if TYPE_CHECKING:
    from runner.control.record.run_store import RunStore
    from runner.core.model.launch_request import LaunchRequest


@verb(
    "check",
    skip="leave this check out; may be given again",
    smoke="then a real run, 20 seconds of all_reduce on the ranks and the backend of a launch",
    bandwidth="then a real run that measures between every two nodes, and names the slow one",
)
def check(
    _context: Context,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    skip: Sequence[str] | None = None,
    smoke: bool = False,
    bandwidth: bool = False,
    json_: bool = False,
) -> int:
    """Look for what is wrong with a cluster, before a run does.

    Errors are what a launch refuses for, or hangs of; without --smoke and --bandwidth nothing is
    started.
    """
    from runner.checks.registry import CHECKS
    from runner.ui.reports import findings
    from runner.workflows.preflight import run_preflight

    modes = [name for name, enabled in (("smoke", smoke), ("pairs", bandwidth)) if enabled]
    if modes and json_:
        message = "prints findings; --smoke and --bandwidth print what a run does"
        hint = "their results are data, too: in outputs/NODE/collectives.json of their run"
        raise ConfigError([Problem("--json", message, hint)])
    unknown = sorted(set(skip or ()) - CHECKS.keys())
    if unknown:
        message = f"there is no check {unknown[0]!r}"
        raise ConfigError([Problem("--skip", message, f"there are {', '.join(CHECKS)}")])
    composed = compose(cluster, set_, config_dir)
    with open_pool(replace(composed, spec=replace(composed.spec, run_id="check"))) as pool:
        findings_by_check = run_preflight(composed, pool, skip or ())
    if json_:
        print(json.dumps(findings.as_data(findings_by_check)))
    else:
        width, colour = findings.detect_screen()
        spec = composed.spec
        print(
            findings.render(findings_by_check, spec.cluster, spec.task.name, width, colour=colour)
        )
    code = NotReady.exit_code if findings.errors(findings_by_check) else 0
    for mode in modes:
        code = code or _run_collectives(mode, cluster, set_, config_dir)
    return code


def _run_collectives(
    mode: str, cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> int:
    """Launch the shipped task that tries the network, on the nodes of the user's own task."""
    from runner.workflows.launch import run

    user_overrides = [
        word
        for word in set_ or ()
        if not word.startswith(("task=", "task.")) or _selects_nodes(word)
    ]
    overrides = [*user_overrides, "task=collectives", f"task.args.mode={mode}"]
    return run(compose(cluster, overrides, config_dir))


def _selects_nodes(word: str) -> bool:
    """Whether a word chooses nodes."""
    return word.startswith(("task.nodes=", "task.nnodes="))


@verb("why")
def why(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Say again how a run ended, and why.

    From the record here, or from the hosts where there is none.
    """
    from runner.control.record.run_store import RunStore
    from runner.ui.reports import report

    composed = compose_for_run(run, cluster, set_, config_dir)
    store = RunStore(composed.run_dir.parent / (run or "latest"))
    if not store.has_result:
        store = _download_record(composed, run)
    if json_:
        print(json.dumps(json.loads((store.folder / "result.json").read_text(encoding="utf-8"))))
        return 0
    plan, verdict = store.read_result()
    folder = store.folder.parent / plan.run_id
    report_text = report.final_report(
        plan,
        verdict,
        Path(os.path.relpath(folder)),
        store.tail,
        disconnect_s=plan.nodes[0].order.disconnect_s,
        cluster_selector=composed.cluster_selector,
    )
    print(report_text)
    return 0


@verb("stacks")
def stacks(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Show where every rank of a run is: its Python stacks, equal ones as one.

    The ranks go on; it is one look, so look again before you blame one. The hosts keep what they
    told in the run's log `stacks`.
    """
    from runner.core.outcome.diagnosis import group_run_stacks
    from runner.core.outcome.stacks import parse_dumps
    from runner.ui.reports.stacks import as_data, render
    from runner.workflows.discovery import open_run_finder
    from runner.workflows.host_pool import user_at_host

    composed = compose_for_run(run, cluster, set_, config_dir)
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
        print(json.dumps(as_data(plan.run_id, groups, unreachable)))
    else:
        print(render(groups, unreachable))
    return NotReady.exit_code if unreachable else 0


def _download_record(composed: LaunchRequest, run: str) -> RunStore:
    """Bring the record of an ended run here.

    Raises:
        NotReady: It has not ended, or cannot be had.
    """
    from runner.workflows.attach import AttachedRun
    from runner.workflows.discovery import open_run_finder

    with open_run_finder(composed, "why") as finder:
        attached = AttachedRun(composed, finder, run)
        if attached.relaunch_pending or not attached.already_ended:
            state = "is about to start once more" if attached.relaunch_pending else "has not ended"
            message = f"run {attached.plan.run_id} {state}, as far as the hosts say"
            selector = f"--run {attached.plan.run_id} {composed.cluster_selector}"
            hint = f"python -m runner attach {selector}\npython -m runner stacks {selector}"
            raise NotReady([Problem("--run", message, hint)])
        attached.pull()
    return attached.store


VERBS: dict[str, Task[Any]] = {each.name: each for each in (check, why, stacks)}
"""Every such verb by the name it is called by."""
