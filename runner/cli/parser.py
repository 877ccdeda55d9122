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

from runner.cli.commands.verbs import PASSTHROUGH_ARGS, VERBS, split_passthrough
from runner.config.validation import suggest
from runner.core.errors import ConfigError, Problem

USAGE_EXAMPLES = {"explain": "python -m runner explain cluster.python --cluster lab3"}
"""For a verb that cannot do without a word of its own."""


def run(argv: Sequence[str]) -> int:
    """Do what the words ask for; return the exit code.

    Raises:
        ConfigError: They cannot be understood.
    """
    name, *words = argv
    if name not in VERBS:
        raise ConfigError([_unknown_verb(name)])
    words, PASSTHROUGH_ARGS[:] = split_passthrough(words)
    if PASSTHROUGH_ARGS and name != "exec":
        raise _usage_error(name, f"{name} takes no words after `--`")
    verb = VERBS[name]
    context = ParserContext(name=name, aliases=(), args=verb.get_arguments())
    if "--help" in words or "-h" in words:
        _print_help(verb, context)
        return 0
    flags = [name, *normalise_words(name, words, context)]
    try:
        parsed = Parser(contexts=[context]).parse_argv(flags)
    except ParseError as error:
        message = reword(name, str(error))
        if name == "exec":
            message += "; the command comes after `--`"
        raise _usage_error(name, message) from error
    try:
        verb.body(Context(), **parsed[0].as_kwargs)
    except Exit as error:
        return int(error.code)
    return 0


def _unknown_verb(name: str) -> Problem:
    message = f"{name!r} is neither KEY=VALUE nor a verb; there are {', '.join(VERBS)}"
    hint = suggest(name, VERBS)
    if Path(name).is_file():
        hint = f"a program to run is task.script={name}"
    return Problem("command line", message, hint or "python -m runner --help shows what there is")


def _usage_error(name: str, message: str) -> ConfigError:
    hint = f"python -m runner {name} --help shows what there is"
    return ConfigError([Problem("command line", message, hint)])


def reword(name: str, error_text: str) -> str:
    """Return what Invoke says, in words of a command line."""
    if "positional" in error_text:
        return f"{name} needs a key, such as: {USAGE_EXAMPLES[name]}"
    return error_text.rstrip("!")


def normalise_words(name: str, words: Sequence[str], context: ParserContext) -> Iterator[str]:
    """Let words stand alone: KEY=VALUE is `--set KEY=VALUE`, another one the verb's own subject."""
    subject = next(
        (f"--{flag_name}" for flag_name in ("key", "command", "run") if flag_name in context.args),
        "",
    )
    pending_flag, used_flags = "", set()
    for word in words:
        if word.startswith("-") and not pending_flag:
            flag, equals, _ = word.partition("=")
            arg = context.flags.get(flag)
            if arg is not None and arg.takes_value and not equals:
                pending_flag = flag
            if flag in used_flags and arg is not None and arg.kind is not list:
                raise _usage_error(name, f"{flag} is given twice")
            used_flags.add(flag)
            yield word
        elif pending_flag:
            if word in context.flags:
                break
            pending_flag = ""
            yield word
        elif re.match(r"[\w.+~@/]+=", word) and not (
            subject == "--command" and _is_shell_line(word)
        ):
            yield from ("--set", word)
        else:
            yield from (subject, word) if subject else (word,)
    if pending_flag:
        raise _usage_error(name, f"{pending_flag} needs a value")


def _is_shell_line(word: str) -> bool:
    """Whether a word is a line of shell that begins by setting a variable."""
    return re.match(r"\w+=.*\s", word) is not None


def _print_help(verb: Task[Any], context: ParserContext) -> None:
    rows = []
    for name, arg in context.args.items():
        value = f"={(arg.attr_name or name).strip('_').upper()}" if arg.takes_value else ""
        rows.append((f"--{name}{value}", arg.help or ""))
    width = max(len(flag) for flag, _ in rows)
    print(inspect.getdoc(verb.body))
    print("\n".join(["", *(f"  {flag:{width}}  {help_text}" for flag, help_text in sorted(rows))]))
