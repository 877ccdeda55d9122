"""`python -m runner VERB …`: the words of a verb, read by Invoke's parser as `fab` reads them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.parser.context import ParserContext
from invoke.parser.parser import Parser
from invoke.tasks import Task

from runner.cli.commands.verbs import REST, VERBS, split
from runner.config.validation import nearest
from runner.core.errors import ConfigError, Problem

EXAMPLES = {"explain": "python -m runner explain cluster.python --cluster lab3"}
"""For a verb that cannot do without a word of its own."""


def run(argv: Sequence[str]) -> int:
    """Do what the words ask for; return the exit code.

    Raises:
        ConfigError: They cannot be understood.
    """
    name, *words = argv
    if name not in VERBS:
        raise ConfigError([_no_verb(name)])
    words, REST[:] = split(words)
    if REST and name != "exec":
        raise _wrong(name, f"{name} takes no words after `--`")
    verb = VERBS[name]
    context = ParserContext(name=name, aliases=(), args=verb.get_arguments())
    if "--help" in words or "-h" in words:
        _help(verb, context)
        return 0
    flags = [name, *_as_flags(name, words, context)]
    try:
        parsed = Parser(contexts=[context]).parse_argv(flags)
    except ParseError as error:
        what = _plainly(name, str(error))
        if name == "exec":
            what += "; the command comes after `--`"
        raise _wrong(name, what) from error
    try:
        verb.body(Context(), **parsed[0].as_kwargs)
    except Exit as error:
        return int(error.code)
    return 0


def _no_verb(name: str) -> Problem:
    what = f"{name!r} is neither KEY=VALUE nor a verb; there are {', '.join(VERBS)}"
    hint = nearest(name, VERBS)
    if Path(name).is_file():
        hint = f"a program to run is task.script={name}"
    return Problem("command line", what, hint or "python -m runner --help shows what there is")


def _wrong(name: str, what: str) -> ConfigError:
    hint = f"python -m runner {name} --help shows what there is"
    return ConfigError([Problem("command line", what, hint)])


def _plainly(name: str, said: str) -> str:
    """Return what Invoke says, in words of a command line."""
    if "positional" in said:
        return f"{name} needs a key, such as: {EXAMPLES[name]}"
    return said.rstrip("!")


def _as_flags(name: str, words: Sequence[str], context: ParserContext) -> Iterator[str]:
    """Let words stand alone: KEY=VALUE is `--set KEY=VALUE`, another one the verb's own subject."""
    subject = next((f"--{each}" for each in ("key", "command", "run") if each in context.args), "")
    expecting, seen = "", set()
    for word in words:
        if word.startswith("-") and not expecting:
            flag, equals, _ = word.partition("=")
            arg = context.flags.get(flag)
            if arg is not None and arg.takes_value and not equals:
                expecting = flag
            if flag in seen and arg is not None and arg.kind is not list:
                raise _wrong(name, f"{flag} is given twice")
            seen.add(flag)
            yield word
        elif expecting:
            if word in context.flags:
                break
            expecting = ""
            yield word
        elif re.match(r"[\w.+~@/]+=", word) and not (subject == "--command" and _is_line(word)):
            yield from ("--set", word)
        else:
            yield from (subject, word) if subject else (word,)
    if expecting:
        raise _wrong(name, f"{expecting} needs a value")


def _is_line(word: str) -> bool:
    """Whether a word is a line of shell that begins by setting a variable."""
    return re.match(r"\w+=.*\s", word) is not None


def _help(verb: Task[Any], context: ParserContext) -> None:
    rows = []
    for name, arg in context.args.items():
        value = f"={(arg.attr_name or name).strip('_').upper()}" if arg.takes_value else ""
        rows.append((f"--{name}{value}", arg.help or ""))
    width = max(len(flag) for flag, _ in rows)
    print(inspect.getdoc(verb.body))
    print("\n".join(["", *(f"  {flag:{width}}  {text}" for flag, text in sorted(rows))]))
