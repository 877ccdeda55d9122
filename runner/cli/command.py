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

from runner.config.search_path import conf_folders, shipped
from runner.core.errors import ConfigError, Problem, RunnerError
from runner.core.model.launch_request import Composed
from runner.core.protocol.paths import is_run_id
from runner.ui.problems import render

if TYPE_CHECKING:
    from runner.config.compose import Composer
    from runner.workflows.host_pool import Contact

COMMON = {
    "run": "the run's id; the latest one unless given",
    "cluster": "the cluster: a file in conf/cluster, yours or a shipped one",
    "set_": "KEY=VALUE as in a launch, such as task=train; may be given again",
    "config_dir": "look for YAML in this folder first; may be given again",
    "json_": "print what a program can read",
}


LISTS = ("set_", "config_dir", "hosts", "rank", "skip")
"""Flags that may be given again."""

_task = cast("Callable[..., Task[Any]]", task)  # its own types know no Task


def verb(name: str, **texts: str) -> Callable[[Callable[..., int]], Task[Any]]:
    """Make a function a task of Fabric's, with our messages and exit codes."""

    def wrap(body: Callable[..., int]) -> Task[Any]:
        @functools.wraps(body)
        def told(context: Context, *args: Any, **options: Any) -> None:
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

        words = {**COMMON, **texts}
        parameters = inspect.signature(body).parameters
        return _task(
            told,
            name=name,
            auto_shortflags=False,
            iterable=[each for each in LISTS if each in parameters],
            help={each: words[each] for each in parameters if each in words},
        )

    return wrap


@contextlib.contextmanager
def composer_of(config_dir: Sequence[str] | None) -> Iterator[Composer]:
    """Offer the composer that looks into those folders first."""
    from runner.config.compose import open_composer

    with open_composer(conf_folders(config_dir or ()), shipped()) as composer:
        yield composer


@contextlib.contextmanager
def contact_of(composed: Composed) -> Iterator[Contact]:
    """Offer contact with the hosts of a verb, on a console for it."""
    from runner.ui.console.plain import open_console
    from runner.workflows.host_pool import contact

    names = [node.name for node in composed.spec.nodes]
    with contact(composed.spec, open_console(composed.ui, None, names)) as made:
        yield made


def words_of(cluster: str, set_: Sequence[str] | None) -> list[str]:
    """Return the words of a launch that the common flags stand for."""
    return [*([f"cluster={cluster}"] if cluster else []), *(set_ or ())]


def says_cluster(cluster: str, set_: Sequence[str] | None) -> bool:
    """Whether the words name a cluster."""
    return any(word.startswith("cluster=") for word in words_of(cluster, set_))


def composed_of(
    cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> Composed:
    """Compose what the common flags ask for, and say what a user should hear.

    Raises:
        ConfigError: With every problem.
    """
    with composer_of(config_dir) as composer:
        composed = composer.compose(words_of(cluster, set_))
    composed = replace(composed, config_dirs=tuple(config_dir or ()))
    for note in composed.notes:
        print(f"note: {note}", file=sys.stderr)
    return composed


def composed_for(
    run: str, cluster: str, set_: Sequence[str] | None, config_dir: Sequence[str] | None
) -> Composed:
    """Compose the cluster that a verb about a run asks: the one that is named, or the run's own.

    That is on record in the folder one stands in, for the run that is named, or for the latest.

    Raises:
        ConfigError: With every problem; that is no run's name.
    """
    if run and not is_run_id(run):
        hint = "python -m runner ps --all shows which there are; or latest"
        raise ConfigError([Problem("--run", f"{run!r} is no run's name", hint)])
    if not says_cluster(cluster, set_):
        plan = Path("runs", run or "latest", "plan.json")
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            cluster = str(json.loads(plan.read_text(encoding="utf-8"))["cluster"])
        where = f"on {cluster}, like {plan.parent}" if cluster else "on this machine, cluster=local"
        print(f"note: {where}; --cluster NAME asks another", file=sys.stderr)
    return composed_of(cluster, set_, config_dir)


UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


def span(flag: str, text: str, *, bare: bool = True) -> float:
    """Read a time span in seconds: one with a unit, or a `bare` number of seconds.

    Raises:
        ConfigError: It is none.
    """
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not found or not (found[2] or bare or not float(found[1])):
        hint = f"such as {flag} 7d, {flag} 12h, {flag} 30m"
        raise ConfigError([Problem(flag, f"must be a time span, not {text!r}", hint)])
    return float(found[1]) * UNITS[found[2]]
