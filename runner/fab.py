"""Invoke tasks for a fabfile: each verb is one, by `from runner.fab import *`."""

from __future__ import annotations

import inspect
import sys
from typing import Any

if "fabfile" in sys.modules:  # whose folder Invoke has put first: it may have a `yaml.py`
    sys.path.append(sys.path.pop(0))

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from runner.cli.app import load_verb
from runner.cli.main import main
from runner.cli.verb import Verb
from runner.cli.words import verb_names
from runner.core.shell import this_program


def make_task(verb: Verb) -> Task[Any]:
    """Make an Invoke task of a verb, with the same flags, messages and exit codes."""
    flags = {option.opts[-1]: option for option in verb.params if option.name != "words"}

    def run_verb(context: Context, **values: Any) -> None:
        if getattr(context, "original_host", None) or context.config.run.dry:
            message = (
                f"{verb.name} connects to the nodes of a cluster by itself, without -H or --dry"
            )
            raise Exit(f"error: {message}\n    {this_program()} {verb.name} --help", code=2)
        words = [str(verb.name)]
        for flag, value in zip(flags, values.values(), strict=True):
            given = value if isinstance(value, list) else [value] if value else []
            words += [flag if each is True else f"{flag}={each}" for each in given]
        if code := main(words):
            raise Exit(code=code)

    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
    for flag, option in flags.items():
        is_switch = getattr(option, "is_flag", False)
        name = flag.removeprefix("--").replace("-", "_")
        default = False if is_switch else None
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    run_verb.__name__ = str(verb.name)
    run_verb.__doc__ = verb.help
    run_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    names = [parameter.name for parameter in parameters[1:]]
    made: Task[Any] = task(
        name=verb.name,
        auto_shortflags=False,
        iterable=[n for n, option in zip(names, flags.values(), strict=True) if option.multiple],
        help={n: option.help for n, option in zip(names, flags.values(), strict=True)},
    )(run_verb)
    return made


TASKS = {name: make_task(load_verb(name)) for name in verb_names()}
globals().update(TASKS)
__all__ = list(TASKS)
