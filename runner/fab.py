"""Invoke tasks for a fabfile: each verb is one, by `from runner.fab import *`."""

from __future__ import annotations

import inspect
import itertools
import sys
from typing import Any

if "fabfile" in sys.modules:  # whose folder Invoke has put first: it may have a `yaml.py`
    sys.path.append(sys.path.pop(0))

import click
from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from runner.cli.main import load_verb, main
from runner.verbs import verb_names
from runner.verbs.shared.verb import Verb

ours = list(itertools.takewhile("--".__ne__, sys.argv))
if "fabfile" in sys.modules and "exec" in ours and len(ours) < len(sys.argv):
    raise Exit("error: fab exec: takes no words after `--`; use --command", code=2)


def make_task(verb: Verb) -> Task[Any]:
    """Make an Invoke task of a verb, with the same flags, messages and exit codes."""
    options = [option for option in verb.params if isinstance(option, click.Option)]
    flags = {option.opts[-1][2:].replace("-", "_"): option for option in options}

    def run_verb(context: Context, **values: Any) -> None:
        if getattr(context, "original_host", None) or context.config.run.dry:
            message = "connects to the nodes of a cluster by itself, without -H or --dry"
            raise Exit(f"error: fab {verb.name}: {message}", code=2)
        words = [str(verb.name)]
        for name, value in values.items():
            flag = flags[name].opts[-1]
            given = value if isinstance(value, list) else [value] if value else []
            words += [flag if each is True else f"{flag}={each}" for each in given]
        if code := main(words):
            raise Exit(code=code)

    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
    for name, option in flags.items():
        default = False if option.is_flag else None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    run_verb.__name__ = str(verb.name)
    run_verb.__doc__ = verb.help
    run_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made: Task[Any] = task(
        name=verb.name,
        auto_shortflags=False,
        iterable=[name for name, option in flags.items() if option.multiple],
        help={name: option.help for name, option in flags.items()},
    )(run_verb)
    return made


TASKS = {name: make_task(load_verb(name)) for name in verb_names()}
globals().update(TASKS)
__all__ = list(TASKS)
