"""The verb `check`: the preflight checks of a cluster, and network trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from runner.cli.command import Selection, open_pool, verb
from runner.config.overrides import override_key
from runner.core.errors import ConfigError, NotReady, Problem
from runner.ui.output import show

NODE_KEYS = ("task.nodes", "task.nnodes")
"""The keys of a task that say which nodes it takes."""
TASK_CHECKS = ("code", "packages")
"""The checks of what a task needs: without a task the cluster alone is judged."""


@verb(
    "check",
    skip="leave this check out; repeatable",
    smoke="then a real run, 20 seconds of all_reduce on the ranks and the backend of a launch",
    bandwidth="then a real run that measures between every two nodes, and names the slow one",
)
def check(
    selection: Selection,
    skip: Sequence[str] = (),
    smoke: bool = False,
    bandwidth: bool = False,
    json_: bool = False,
) -> int:
    """Look for what is wrong with a cluster, before a run does.

    Without a task the cluster alone is judged. Errors are what makes a launch refuse or hang.
    Nothing is started without --smoke and --bandwidth.
    """
    from runner.checks.base import all_checks
    from runner.ui import layout, problems
    from runner.workflows.preparation import run_preflight

    modes = [name for name, enabled in (("smoke", smoke), ("pairs", bandwidth)) if enabled]
    if modes and json_:
        message = "prints findings; --smoke and --bandwidth print what a run does"
        hint = "their results are data, too: in outputs/NODE/collectives.json of their run"
        raise ConfigError([Problem("--json", message, hint)])
    unknown = sorted(set(skip) - all_checks().keys())
    if unknown:
        message = f"there is no check {unknown[0]!r}"
        raise ConfigError([Problem("--skip", message, f"there are {', '.join(all_checks())}")])
    composed = selection.compose()
    skip = [*skip, *(() if composed.names_program else TASK_CHECKS)]
    with open_pool(replace(composed, spec=replace(composed.spec, run_id="check"))) as pool:
        findings_by_check = run_preflight(composed, pool, skip)
    if json_:
        show(json.dumps(problems.findings_as_data(findings_by_check)))
    else:
        width, colour = layout.detect_screen()
        task = composed.spec.task.name if composed.names_program else ""
        names = composed.spec.cluster, task
        # Not by `show`, which drops colours; each text of a host in it is printable.
        print(problems.render_findings(findings_by_check, *names, width, colour=colour))
    code = NotReady.exit_code if problems.find_errors(findings_by_check) else 0
    for mode in modes:
        code = code or _run_collectives(mode, selection)
    return code


def _run_collectives(mode: str, selection: Selection) -> int:
    """Launch the shipped task that tests the network, on the nodes of the user's own task."""
    from runner.workflows.launch import run

    keys = {word: override_key(word) for word in selection.settings}
    kept = [w for w, key in keys.items() if key in NODE_KEYS or key.partition(".")[0] != "task"]
    settings = (*kept, "task=collectives", f"task.args.mode={mode}")
    return run(replace(selection, settings=settings).compose())
