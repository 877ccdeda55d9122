"""The verb `check`: the preflight checks of a cluster, and network trials."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runner.config.kinds import suggest
from runner.config.words import key_of
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, NotReady, Problem
from runner.core.shell import this_program
from runner.ui.output import show
from runner.verbs.shared.selection import Selection, open_pool
from runner.verbs.shared.verb import exit_code, json_option, verb

if TYPE_CHECKING:
    from runner.core.launch_request import LaunchRequest
    from runner.core.model.facts import FactsRequest
    from runner.core.model.results import Finding
    from runner.core.spec import Node
    from runner.verbs.shared.host_pool import HostPool

NODE_KEYS = ("task.nodes", "task.nnodes")
"""The keys of a task that say which nodes it takes."""


@verb(
    "check",
    subject="cluster",
    keys=None,
    examples={"check lab3": "the machines", "check lab3 task=fit": "with what a task needs"},
)
@click.option(
    "--smoke", is_flag=True, help="then run 20 seconds of all_reduce, on the backend of a launch"
)
@click.option(
    "--bandwidth", is_flag=True, help="then measure between every two nodes, and name the slow one"
)
@click.option("--skip", multiple=True, metavar="gpus", help="leave this check out; repeatable")
@json_option
def check(
    selection: Selection, skip: Sequence[str], smoke: bool, bandwidth: bool, json_: bool
) -> int:
    """Look for what is wrong with a cluster, before a run does.

    Without a task the cluster alone is judged. Errors are what makes a launch refuse or hang.
    Nothing is started without --smoke and --bandwidth.
    """
    from runner.checks.base import all_checks
    from runner.ui import problems
    from runner.ui.layout import terminal_width
    from runner.verbs.launching.attempts import without_pulls

    wanted = (("--smoke", "smoke", smoke), ("--bandwidth", "pairs", bandwidth))
    trials = [(flag, mode) for flag, mode, enabled in wanted if enabled]
    if trials and json_:
        message = "prints findings; --smoke and --bandwidth print what a run does"
        hint = "their results are data, too: in outputs/NODE/collectives.json of their run"
        raise ConfigError([Problem("--json", message, hint)])
    unknown = sorted(set(skip) - all_checks().keys())
    if unknown:
        message = f"there is no check {unknown[0]!r}"
        hint = f"{suggest(unknown[0], all_checks())}\nthere are {', '.join(all_checks())}"
        raise ConfigError([Problem("--skip", message, hint.strip())])
    composed = without_pulls(selection.compose())
    with open_pool(replace(composed, spec=replace(composed.spec, run_id="check"))) as pool:
        findings_by_check = _run_preflight(composed, pool, skip)
    cluster = composed.spec.cluster.name
    if json_:
        show(json.dumps(problems.findings_as_data(findings_by_check)))
    else:
        colour = sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        task = composed.spec.task.name if composed.names_program else ""
        width = terminal_width()
        # Not by `show`, which drops colours; each text of a host in it is printable.
        print(problems.render_findings(findings_by_check, cluster, task, width, colour=colour))
    if not problems.find_errors(findings_by_check):
        codes = (_run_collectives(*trial, cluster, selection) for trial in trials)
        return next(filter(None, codes), 0)
    for flag, _ in trials:
        show(f"{cluster}: {flag} was not started: the errors above come first", file=sys.stderr)
    return NotReady.exit_code


def _run_preflight(
    composed: LaunchRequest, pool: HostPool, skip: Collection[str]
) -> dict[str, list[Finding]]:
    """Return the findings of every check that is not skipped; nothing is started or changed.

    Raises:
        ConfigError, NotReady: The code here cannot be pushed.
    """
    from runner.checks.base import CheckContext, evaluate_checks
    from runner.control.code.snapshot import Snapshot
    from runner.control.network_probe import NetworkProber
    from runner.core.model.release import CodeRef
    from runner.core.planning.readiness import facts_request

    spec, skipped = pool.spec, {*composed.spec.skip_checks, *skip}
    code = CodeRef()
    if spec.pushes_code:
        code = Snapshot.take(spec, Path.cwd(), composed.run_dir).code

    def request(node: Node) -> FactsRequest:
        return replace(facts_request(spec, node, code), run_id="", thorough=True)

    facts, unreachable = pool.collect_available_facts(request)
    offsets = {name: session.clock_offset for name, session in pool.sessions.items()}
    context = CheckContext(spec, facts, unreachable, offsets)
    if context.ready and "pairs" not in skipped:
        pool.console.phase("trying the network")
        nodes = tuple(node for node, _ in context.ready)
        probe = NetworkProber(spec, pool.broadcast).run(nodes, facts)
        context = replace(context, network_probe=probe)
    return evaluate_checks(context, skipped)


def _run_collectives(flag: str, mode: str, cluster: str, selection: Selection) -> int:
    """Launch the shipped task that tests the network, on the nodes of the user's own task."""
    from runner.verbs.launching.launch_session import run

    keys = {word: key_of(word) for word in selection.settings}
    kept = [w for w, key in keys.items() if key in NODE_KEYS or key.partition(".")[0] != "task"]
    settings = (*kept, "task=collectives", f"task.args.mode={mode}")
    code = exit_code(lambda: run(replace(selection, settings=settings).compose()))
    if 0 < code < SIGNAL_EXIT_BASE:
        message = f"{flag} failed, as a launch would: mend what is named above"
        again = f"`{this_program()} why` says it again"
        show(f"{cluster}: {message} ({again}), or leave nodes out: cluster.exclude", sys.stderr)
    return code
