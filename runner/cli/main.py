"""Process of a command line: its streams, its signals, and what becomes of errors."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn, cast

import click

from runner.cli.app import PROGRAM, ROOT_FLAGS
from runner.cli.words import misplaced_words, split_words, unknown_flag
from runner.core import descriptor_limit
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.ui.output import name_output
from runner.verbs.shared.verb import MisplacedWords, exit_code, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(words))


def _run(argv: Sequence[str]) -> int:
    words = list(argv)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    passed_on: list[str] = []
    if not words or words[0].partition("=")[0] not in ROOT_FLAGS:
        words, passed_on = split_words(words)
    try:
        with PROGRAM.make_context("runner", words, obj=passed_on) as ctx:
            return int(PROGRAM.invoke(ctx))
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except MisplacedWords as error:
        raise ConfigError(misplaced_words(error.verb, error.words)) from error
    except click.UsageError as error:
        raise ConfigError([_problem(error)]) from error


def _problem(error: click.UsageError) -> Problem:
    """Return what Click objects to, in our words."""
    verb = error.ctx.command.name if error.ctx and error.ctx.parent else ""
    path = " ".join(filter(None, (this_program(), verb)))
    hint = f"`{path} --help` lists the flags"
    command = error.ctx.command if error.ctx else PROGRAM
    if isinstance(error, click.NoSuchOption):
        flags = [name for option in (*command.params, *PROGRAM.params) for name in option.opts]
        return unknown_flag(verb or "", error.option_name, flags)
    if isinstance(error, click.BadOptionUsage):
        flag = error.option_name
        example = next((each.metavar for each in command.params if flag in each.opts), None)
        if not example:
            return Problem(flag, "takes no value", hint)
        return Problem(flag, "needs a value", f"such as {path} {flag} {example}\n{hint}")
    if isinstance(error, click.BadParameter) and error.param:
        return Problem(error.param.opts[-1], error.message.rstrip("."), hint)
    return Problem(verb or "runner", error.message.rstrip("."), hint)


def entry() -> NoReturn:
    """Exit with the code of `main`."""
    for descriptor in range(3):  # else our own pipes and sockets would get the closed ones
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    sys.stdout = name_output(cast(TextIOWrapper, sys.stdout))
    cast(TextIOWrapper, sys.stderr).reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.excepthook = _report_thread
    descriptor_limit.raise_to_hard()
    if shell := os.environ.get("_RUNNER_COMPLETE"):
        from runner.cli.completion import complete

        sys.exit(complete(PROGRAM, shell))
    code = main()
    code = exit_code(_flush) or code
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # else the interpreter tries again, and exits with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _flush() -> int:
    sys.stdout.flush()
    return 0


def _report_thread(args: threading.ExceptHookArgs) -> None:
    """Print the fault of a thread as that of the main one; whoever waits for it has a deadline."""
    from runner.ui.reports.internal_fault import report_fault

    if isinstance(args.exc_value, Exception):
        print_error(report_fault(args.exc_value))
