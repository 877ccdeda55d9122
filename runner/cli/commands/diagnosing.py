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

from runner.cli.command import composed_for, composed_of, contact_of, verb
from runner.core.errors import ConfigError, NotReady, Problem

if TYPE_CHECKING:
    from runner.control.record.run_store import RunStore
    from runner.core.model.launch_request import Composed


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
    from runner.workflows.preflight import examined

    modes = [name for name, wanted in (("smoke", smoke), ("pairs", bandwidth)) if wanted]
    if modes and json_:
        what = "prints findings; --smoke and --bandwidth print what a run does"
        hint = "their results are data, too: in outputs/NODE/collectives.json of their run"
        raise ConfigError([Problem("--json", what, hint)])
    unknown = sorted(set(skip or ()) - CHECKS.keys())
    if unknown:
        what = f"there is no check {unknown[0]!r}"
        raise ConfigError([Problem("--skip", what, f"there are {', '.join(CHECKS)}")])
    composed = composed_of(cluster, set_, config_dir)
    with contact_of(replace(composed, spec=replace(composed.spec, run_id="check"))) as hosts:
        found = examined(composed, hosts, skip or ())
    if json_:
        print(json.dumps(findings.as_data(found)))
    else:
        width, colour = findings.screen()
        spec = composed.spec
        print(findings.render(found, spec.cluster, spec.task.name, width, colour=colour))
    code = NotReady.exit_code if findings.errors(found) else 0
    for mode in modes:
        code = code or _collectives(mode, cluster, set_, config_dir)
    return code


def _collectives(
    mode: str, cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> int:
    """Launch the shipped task that tries the network, on the nodes of the user's own task."""
    from runner.workflows.launch import run

    kept = [word for word in set_ or () if not word.startswith(("task=", "task.")) or _nodes(word)]
    words = [*kept, "task=collectives", f"task.args.mode={mode}"]
    return run(composed_of(cluster, words, config_dir))


def _nodes(word: str) -> bool:
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

    composed = composed_for(run, cluster, set_, config_dir)
    store = RunStore(composed.run_dir.parent / (run or "latest"))
    if not store.ended:
        store = _fetched(composed, run)
    if json_:
        print(json.dumps(json.loads((store.folder / "result.json").read_text(encoding="utf-8"))))
        return 0
    plan, verdict = store.read_result()
    folder = store.folder.parent / plan.run_id
    told = report.ending(
        plan,
        verdict,
        Path(os.path.relpath(folder)),
        store.tail,
        disconnect_s=plan.nodes[0].order.disconnect_s,
        where=composed.where,
    )
    print(told)
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
    from runner.core.outcome.diagnosis import pictured
    from runner.core.outcome.stacks import parse
    from runner.ui.reports.stacks import as_data, render
    from runner.workflows.discovery import hosts_of
    from runner.workflows.host_pool import whoami

    composed = composed_for(run, cluster, set_, config_dir)
    with hosts_of(composed, "stacks") as hosts:
        found = hosts.one(run)
        plan = hosts.record(found).plan
        ask = {"run_id": plan.run_id, "why": f"asked for by {whoami()}"}
        answers, problems = hosts.asking().some("dump", ask, "dumped")
    told = {
        name: [stack for dump in parse(answer["payload"].decode()) for stack in dump.stacks]
        for name, answer in answers.items()
    }
    shown = pictured(plan, told)
    kept_from = [problems.get(s.node) or hosts.silent.get(s.node) for s in plan.nodes]
    silent = [problem for problem in kept_from if problem]
    if json_:
        print(json.dumps(as_data(plan.run_id, shown, silent)))
    else:
        print(render(shown, silent))
    return NotReady.exit_code if silent else 0


def _fetched(composed: Composed, run: str) -> RunStore:
    """Bring the record of an ended run here.

    Raises:
        NotReady: It has not ended, or cannot be had.
    """
    from runner.workflows.attach import Joined
    from runner.workflows.discovery import hosts_of

    with hosts_of(composed, "why") as hosts:
        joined = Joined(composed, hosts, run)
        if joined.waits or not joined.over:
            how = "is about to start once more" if joined.waits else "has not ended"
            what = f"run {joined.plan.run_id} {how}, as far as the hosts say"
            words = f"--run {joined.plan.run_id} {composed.where}"
            hint = f"python -m runner attach {words}\npython -m runner stacks {words}"
            raise NotReady([Problem("--run", what, hint)])
        joined.pull()
    return joined.store


VERBS: dict[str, Task[Any]] = {each.name: each for each in (check, why, stacks)}
"""Every such verb by the name it is called by."""
