"""The verb `pull`: a download of the logs, records and outputs of a run."""

from __future__ import annotations

import sys

import click

from runner.control.run.found_run import FoundRun, pull_run
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.wire.files import OUTPUT, glob_problem
from runner.ui.output import show, show_prose
from runner.ui.problems import render_problems
from runner.ui.reports import tables
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import json_option, run_option, show_json, verb


@verb(
    "pull",
    examples={
        "pull": "what the latest run lacks here",
        "pull latest 'checkpoints/*.pt'": "these files from where its ranks ran",
    },
)
@run_option
@click.option(
    "--files",
    multiple=True,
    metavar="'*.pt'",
    help="files to download in place of all that is missing; a word with . / or *",
)
@json_option
def pull(selection: Selection, run: str, files: tuple[str, ...], json_: bool) -> int:
    """Download the logs, records and outputs of a run into runs/RUN.

    Only what is missing here is downloaded. A launch does so at its end.
    """
    for pattern in files:
        if reason := glob_problem(pattern):
            hint = "it begins where the ranks run, such as --files 'checkpoints/*.pt'"
            raise ConfigError([Problem("--files", f"{pattern!r} {reason}", hint)])
    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "pull") as finder:
        found = FoundRun(composed, finder)
        pulled = pull_run(found, (OUTPUT,), files) if files else pull_run(found)
    problems = tables.pull_problems(pulled)
    this_attempt = {share.node for share in found.plan.nodes}
    for name in found.all_nodes:
        problem = finder.unreachable.get(name)  # such a host may have some of it
        if name not in pulled and (problem or name in this_attempt):
            problems.append(problem or Problem(name, "has no files of that run"))
    if json_:
        show_json(pulled)
    else:
        outputs = files or found.plan.outputs
        told = tables.render_pull(pulled, str(found.store.display_path), outputs)
        left = "" if outputs else tables.outputs_left(found.plan)
        show_prose("\n".join(filter(None, (told, left))))
    if problems:
        show(render_problems(problems), file=sys.stderr)
    is_complete = all(result.is_complete for result in pulled.values())
    return 0 if is_complete and not problems else NotReady.exit_code
