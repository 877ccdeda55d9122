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

from runner.cli.app import ROOT_FLAGS, program
from runner.cli.words import misplaced_word, split_words, unknown_flag
from runner.config.words import is_override
from runner.core import descriptor_limit
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.ui.output import name_output
from runner.verbs import LAUNCH
from runner.verbs.shared.verb import exit_code, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(words))


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    passed_on: list[str] = []
    if not words or words[0].partition("=")[0] not in ROOT_FLAGS:
        words, passed_on = split_words(words)
    try:
        with program.make_context(this_program(), words, obj=passed_on) as ctx:
            return int(program.invoke(ctx))
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except click.UsageError as error:
        raise ConfigError([_problem(error, words)]) from error


def _problem(error: click.UsageError, words: Sequence[str]) -> Problem:
    """Return what Click objects to, with the next step."""
    ctx = error.ctx or click.Context(program, info_name=this_program())
    verb = ctx.info_name if ctx.parent else "runner"
    hint = f"`{ctx.command_path} --help` lists the flags"
    if isinstance(error, click.BadArgumentUsage) and verb == LAUNCH:
        word, *others = [word for word in ctx.params["words"] if not is_override(word)]
        return misplaced_word(word, others[0] if others else "")
    if not isinstance(error, click.NoSuchOption):
        return Problem(str(verb), error.format_message().rstrip("."), hint)
    begin = error.option_name  # of `-tail` this is `-t`
    word = next((word for word in words if word.startswith(begin)), begin)
    flag = word.partition("=")[0]
    flags = [name for option in (*ctx.command.params, *program.params) for name in option.opts]
    meant = unknown_flag(str(verb), flag, flags)
    return Problem(flag, f"{verb} has no such flag", f"{meant}\n{hint}" if meant else hint)


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

        sys.exit(complete(program, shell))
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
