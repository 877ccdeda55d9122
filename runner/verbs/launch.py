"""The verb `launch`, which needs no word: a run, or a sweep of runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from runner.core.errors import ConfigError, Interrupted, Problem, suggest
from runner.core.launch_request import LaunchRequest
from runner.core.shell import this_program
from runner.ui.output import note
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import verb


@verb(
    "launch",
    subject="",
    keys=None,
    examples={
        "train.py --lr 0.1": "this program",
        "cluster=lab task=fit task.args.lr=0.2": "by files in conf/",
        "cluster=lab task=fit dry_run=true": "each host's command",
        "task=fit detach=true": "return when all runs",
        "task=fit -m task.args.lr=0.1,0.2": "a run of each",
        "rerun=latest task.args.lr=0.3": "the last run, changed",
    },
)
@click.option("-m", "--multirun", is_flag=True, help="a run for each of KEY=VALUE1,VALUE2")
def launch(selection: Selection, multirun: bool, words: Sequence[str]) -> int:
    """Start a PyTorch job on every machine of a cluster, and stay until it has ended.

    Words without a flag set keys: KEY=VALUE. What follows the program's file, or `--`, is for the
    program. `runner config` prints the keys, docs/configuration.md explains them.
    """
    try:
        runs = _compose(selection, words, is_sweep=multirun)
    except KeyboardInterrupt:
        raise Interrupted(130) from None
    # Imported here, because what was typed is judged first.
    if len(runs) == 1:
        from runner.verbs.launching.launch_session import run

        return run(runs[0])
    from runner.verbs.launching.sweep import run_sweep

    return run_sweep(runs)


def _compose(selection: Selection, words: Sequence[str], *, is_sweep: bool) -> list[LaunchRequest]:
    # Imported here, because Hydra takes most of the start-up time.
    from runner.config.compose import open_composer

    typed = selection.settings
    if is_sweep and not typed:
        example = "--multirun cluster=local task=resnet18 task.args.lr=0.1,0.01"
        message = "there is nothing to run through: no word is given"
        hint = f"such as: {this_program()} {example}"
        raise ConfigError([Problem("--multirun", message, hint)])
    with open_composer(selection.config_dirs, words, for_launches=True) as composer:
        runs = composer.sweep(typed) if is_sweep else [composer.compose(typed)]
    if is_sweep and len(runs) == 1:
        note("--multirun: no key has several values, as in task.args.lr=0.1,0.2; this is one run")
    if len(runs) > 1 and any(run.spec.detach for run in runs):
        message = "the runs of a --multirun follow each other: each is awaited before the next"
        hint = f"detach=false, and to detach the sweep itself: nohup {this_program()} -m ... &"
        raise ConfigError([Problem("detach", message, hint)])
    if near := _near_script(runs[0]):
        note(near)
    return [replace(run, config_dirs=selection.config_dirs) for run in runs]


def _near_script(request: LaunchRequest) -> str:
    """Return which script here is spelled like the one that is not here, or ""."""
    spec = request.spec
    script = Path(spec.task.target)
    is_taken_from_here = spec.pushes_code or spec.cluster.project == str(Path.cwd())
    is_here = script.exists() or script.is_symlink()
    if spec.task.kind != "script" or not is_taken_from_here or is_here:
        return ""
    names = [str(path) for path in script.parent.glob("*") if path.is_file()]
    near = suggest(str(script), names)
    return near and f"{script} is not here; {near}"
