"""What all verbs share: how one is made, its common flags, its messages and exit codes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from runner.config.search_path import conf_folders, shipped_folder
from runner.core.errors import ConfigError, Problem, RunnerError
from runner.core.model.launch_request import LaunchRequest
from runner.core.protocol.paths import is_run_id
from runner.ui.problems import render

if TYPE_CHECKING:
    from runner.config.compose import Composer
    from runner.workflows.host_pool import HostPool

COMMON_HELP = {
    "run": "the run's id; the latest one unless given",
    "cluster": "the cluster: a file in conf/cluster, yours or a shipped one",
    "set_": "KEY=VALUE as in a launch, such as task=train; may be given again",
    "config_dir": "look for YAML in this folder first; may be given again",
    "json_": "print what a program can read",
}


REPEATABLE_FLAGS = ("set_", "config_dir", "hosts", "rank", "skip")
"""Flags that may be given again."""

_invoke_task = cast("Callable[..., Task[Any]]", task)  # its own types know no Task


def verb(name: str, **help_texts: str) -> Callable[[Callable[..., int]], Task[Any]]:
    """Make a function a task of Fabric's, with our messages and exit codes."""

    def make_task(body: Callable[..., int]) -> Task[Any]:
        @functools.wraps(body)
        def run_body(context: Context, *args: Any, **options: Any) -> None:
            try:
                code = body(context, *args, **options)
            except RunnerError as error:
                if error.problems:
                    print(render(error.problems), file=sys.stderr)
                code = error.exit_code
            except KeyboardInterrupt:
                code = 130
            except BrokenPipeError:  # such as `| head`
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                code = 128 + signal.SIGPIPE
            if code:
                raise Exit(code=code)

        all_help = {**COMMON_HELP, **help_texts}
        parameters = inspect.signature(body).parameters
        return _invoke_task(
            run_body,
            name=name,
            auto_shortflags=False,
            iterable=[parameter for parameter in REPEATABLE_FLAGS if parameter in parameters],
            help={
                parameter: all_help[parameter] for parameter in parameters if parameter in all_help
            },
        )

    return make_task


@contextlib.contextmanager
def composer_for_dirs(config_dir: Sequence[str] | None) -> Iterator[Composer]:
    """Offer the composer that looks into those folders first."""
    from runner.config.compose import open_composer

    with open_composer(conf_folders(config_dir or ()), shipped_folder()) as composer:
        yield composer


@contextlib.contextmanager
def open_pool(composed: LaunchRequest) -> Iterator[HostPool]:
    """Offer contact with the hosts of a verb, on a console for it."""
    from runner.ui.console.factory import open_console
    from runner.workflows.host_pool import open_host_pool

    names = [node.name for node in composed.spec.nodes]
    with open_host_pool(composed.spec, open_console(composed.ui, None, names)) as pool:
        yield pool


def overrides(cluster: str, set_: Sequence[str] | None) -> list[str]:
    """Return the words of a launch that the common flags stand for."""
    return [*([f"cluster={cluster}"] if cluster else []), *(set_ or ())]


def names_cluster(cluster: str, set_: Sequence[str] | None) -> bool:
    """Whether the words name a cluster."""
    return any(word.startswith("cluster=") for word in overrides(cluster, set_))


def compose(
    cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> LaunchRequest:
    """Compose what the common flags ask for, and say what a user should hear.

    Raises:
        ConfigError: With every problem.
    """
    with composer_for_dirs(config_dir) as composer:
        composed = composer.compose(overrides(cluster, set_))
    composed = replace(composed, config_dirs=tuple(config_dir or ()))
    for note in composed.notes:
        print(f"note: {note}", file=sys.stderr)
    return composed


def compose_for_run(
    run: str, cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> LaunchRequest:
    """Compose the cluster that a verb about a run asks: the one that is named, or the run's own.

    That is on record in the folder one stands in, for the run that is named, or for the latest.

    Raises:
        ConfigError: With every problem; that is no run's name.
    """
    if run and not is_run_id(run):
        hint = "python -m runner ps --all shows which there are; or latest"
        raise ConfigError([Problem("--run", f"{run!r} is no run's name", hint)])
    if not names_cluster(cluster, set_):
        plan = Path("runs", run or "latest", "plan.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            cluster = str(json.loads(plan.read_text(encoding="utf-8"))["cluster"])
        place = f"on {cluster}, like {plan.parent}" if cluster else "on this machine, cluster=local"
        print(f"note: {place}; --cluster NAME asks another", file=sys.stderr)
    return compose(cluster, set_, config_dir)


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(flag: str, text: str, *, allow_bare: bool = True) -> float:
    """Read a time span in seconds: one with a unit, or a `allow_bare` number of seconds.

    Raises:
        ConfigError: It is none.
    """
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not match or not (match[2] or allow_bare or not float(match[1])):
        hint = f"such as {flag} 7d, {flag} 12h, {flag} 30m"
        raise ConfigError([Problem(flag, f"must be a time span, not {text!r}", hint)])
    return float(match[1]) * UNITS[match[2]]
