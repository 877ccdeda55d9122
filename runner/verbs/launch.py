"""The verb `launch`, which needs no word: a run, or a sweep of runs."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from runner.config.kinds import suggest
from runner.config.words import key_of, names_file
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.shell import line, this_program
from runner.core.spec import Spec
from runner.ui.output import note
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import exit_code, verb


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
@click.option("-y", "--yes", is_flag=True, help="with rerun: repeat a record of hosts, unasked")
def launch(selection: Selection, multirun: bool, yes: bool, words: Sequence[str]) -> int:
    """Start a PyTorch job on every machine of a cluster, and stay until it has ended.

    Words without a flag set keys: KEY=VALUE. What follows the program's file, or `--`, is for the
    program. `runner config` prints the keys, docs/configuration.md explains them.
    """
    try:
        runs = _compose(selection, words, is_sweep=multirun, yes=yes)
    except KeyboardInterrupt:
        raise Interrupted(130) from None
    start = launcher(len(runs))
    if len(runs) == 1:
        return start(runs[0])
    # Imported here, because most launches are no sweep.
    from runner.verbs.launching.sweep import run_sweep

    return run_sweep(runs, lambda request: exit_code(functools.partial(start, request)))


def launcher(count: int) -> Callable[[LaunchRequest], int]:
    """Return what carries out so many runs, one after the other."""
    if count == 1:
        from runner.verbs.launching.launch_session import run

        return run
    from runner.verbs.launching.sweep import SharedLaunch

    return SharedLaunch()


def _compose(
    selection: Selection, words: Sequence[str], *, is_sweep: bool, yes: bool
) -> list[LaunchRequest]:
    """Return the runs to launch."""
    # Imported here, because Hydra takes most of the start-up time.
    from runner.config.compose import open_composer

    typed = selection.overrides
    if is_sweep and not typed:
        example = "--multirun cluster=local task=resnet18 task.args.lr=0.1,0.01"
        message = "there is nothing to run through: no word is given"
        hint = f"such as: {this_program()} {example}"
        raise ConfigError([Problem("--multirun", message, hint)])
    with open_composer(selection.config_dirs, words, for_launches=True) as composer:
        runs = composer.sweep(typed) if is_sweep else [composer.compose(typed)]
    if len(runs) > 1 and any(run.spec.detach for run in runs):
        raise ConfigError([_detached_sweep(selection, words)])
    if text := missing_script(runs[0].spec) or unused_program(runs[0]):
        note(text)
    _confirm_record(runs[0], selection.settings, yes=yes)
    return [replace(run, config_dirs=selection.config_dirs) for run in runs]


def _detached_sweep(selection: Selection, words: Sequence[str]) -> Problem:
    typed = [word for word in selection.overrides if key_of(word) != "detach"]
    chosen = [] if len(typed) < len(selection.overrides) else ["detach=false"]  # the YAML has it
    folders = [word for folder in selection.config_dirs for word in ("--config-dir", folder)]
    arguments = ["--", *words] if words else []
    command = f"{this_program()} {line(['-m', *folders, *typed, *chosen, *arguments])}"
    message = "the runs of a --multirun follow each other: each is awaited before the next"
    return Problem("detach", message, f"to detach the sweep itself: nohup {command} &")


def _confirm_record(request: LaunchRequest, words: Sequence[str], *, yes: bool) -> None:
    """Ask before a record is repeated that came from hosts; sweeps change it by words alone."""
    if yes and not any(key_of(word) == "rerun" for word in words):
        message = "there is nothing to confirm: it goes with rerun=RUN_ID"
        raise ConfigError([Problem("--yes", message)])
    if request.record_hosts and not yes:
        from runner.verbs.launching.launch_session import confirm_record

        confirm_record(request)


def unused_program(request: LaunchRequest) -> str:
    """Return that a launch which names no task runs another program than the one here, or ""."""
    name = next(filter(names_file, ("train.py", "main.py")), "")
    if request.names_program or not name:
        return ""
    shipped = f"this runs {request.spec.task.name}, which comes with the runner"
    return f"{shipped}; `{this_program()} {name}` runs {name}"


def missing_script(spec: Spec) -> str:
    """Return where a script may be that is not here: beside `conf` further up, or spelled so."""
    from runner.config.source import conf_folders

    script = spec.task.target
    project = conf_folders([])[0].parent
    is_taken_from_here = spec.pushes_code or spec.cluster.project == str(Path.cwd())
    is_missing = spec.task.kind == "script" and is_taken_from_here and not Path(script).exists()
    if not is_missing:
        return ""
    if project not in Path.cwd().parents or not names_file(str(project / script)):
        names = [str(path) for path in Path(script).parent.glob("*") if path.is_file()]
        near = suggest(str(Path(script)), names)
        return near and f"{script} is not here; {near}"
    above = os.path.relpath(project)
    return f"{script} is in {above}, beside conf, and not here: cd {above}"
