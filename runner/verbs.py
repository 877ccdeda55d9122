"""Invoke tasks for a fabfile: each verb is one, by `from runner.verbs import *`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any, cast

from invoke.context import Context
from invoke.exceptions import Exit
from invoke.tasks import Task, task

from runner.cli.command import Option, Verb, load_verb, verb_names
from runner.cli.main import split_words


def make_task(verb: Verb) -> Task[Any]:
    """Make an Invoke task of a verb, with the same flags, messages and exit codes."""

    def run_verb(_context: Context, **values: Any) -> None:
        given = {option.name: option.default for option in verb.options} | values
        if code := verb.run(given, _words_after_separator):
            raise Exit(code=code)

    parameters = [inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)]
    parameters += map(_parameter, verb.options)
    run_verb.__name__, run_verb.__doc__ = verb.body.__name__, verb.help
    run_verb.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    decorate = cast("Callable[..., Callable[..., Task[Any]]]", task)  # its own types know no Task
    return decorate(
        name=verb.name,
        auto_shortflags=False,
        iterable=[option.name for option in verb.options if isinstance(option.default, tuple)],
        help={option.name: option.help for option in verb.options},
    )(run_verb)


def _parameter(option: Option) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    if option.default is None:
        return inspect.Parameter(option.name, kind)
    default = None if isinstance(option.default, tuple) else option.default
    return inspect.Parameter(option.name, kind, default=default)


def _take_words_after_separator() -> list[str]:
    """Keep the words of `fab exec -- WORDS` for our verb: Fabric would run them on its -H hosts."""
    core = getattr(getattr(sys.modules.get("fabric.main"), "program", None), "core", None)
    before, words = split_words(sys.argv[1:])
    if core is None or not words or "exec" not in before:
        return []
    core.remainder = ""
    return words


_words_after_separator = _take_words_after_separator()
TASKS = {verb.body.__name__: make_task(verb) for verb in map(load_verb, verb_names())}
globals().update(TASKS)
__all__ = list(TASKS)
