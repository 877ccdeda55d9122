"""The verb `check`: the preflight checks of a cluster, and network trials."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from runner.cli.command import Selection, open_pool, verb
from runner.core.errors import ConfigError, NotReady, Problem

OTHER_TASK = r"[~+]*task(=|\.(?!(nodes|nnodes)\b)|$)"
"""Overrides that speak of a task, but not of its nodes."""


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

    Errors are what makes a launch refuse or hang. Nothing is started without --smoke and
    --bandwidth.
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
    with open_pool(replace(composed, spec=replace(composed.spec, run_id="check"))) as pool:
        findings_by_check = run_preflight(composed, pool, skip)
    if json_:
        print(json.dumps(problems.findings_as_data(findings_by_check)))
    else:
        width, colour = layout.detect_screen()
        names = composed.spec.cluster, composed.spec.task.name
        print(problems.render_findings(findings_by_check, *names, width, colour=colour))
    code = NotReady.exit_code if problems.find_errors(findings_by_check) else 0
    for mode in modes:
        code = code or _run_collectives(mode, selection)
    return code


def _run_collectives(mode: str, selection: Selection) -> int:
    """Launch the shipped task that tests the network, on the nodes of the user's own task."""
    from runner.workflows.launch import run

    kept = [word for word in selection.settings if not re.match(OTHER_TASK, word)]
    settings = (*kept, "task=collectives", f"task.args.mode={mode}")
    return run(replace(selection, settings=settings).compose())
