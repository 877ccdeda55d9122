"""Program: `runner [KEY=VALUE …] [FLAGS]`, or a verb and its words, on Click."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
from collections.abc import Sequence
from io import TextIOWrapper
from typing import NoReturn, cast

import click

from runner import __version__
from runner.cli.words import misplaced_word, split_words, unknown_flag
from runner.config.words import is_override
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Interrupted, Problem
from runner.core.shell import this_program
from runner.core.wire import boot
from runner.ui.output import name_output, report_fault
from runner.verbs import LAUNCH, verb_names
from runner.verbs.shared.verb import CONTEXT, Verb, exit_code, print_error

HELP = """\
Usage: runner [KEY=VALUE]... [PROGRAM.py [ARGUMENTS]...]
       runner VERB [FLAGS], see `runner VERB --help`

Start a PyTorch job on every machine of a cluster, over SSH.

First steps
  init     write the first YAML: your machines and program
  check    find what would stop a launch, before it does
  launch   the same as no verb, such as
             runner train.py --lr 0.1
             runner cluster=lab task=fit task.args.lr=0.1
  logs     output of the ranks, -f to follow
A run
  ps, top  what runs where, and what every GPU does
  attach   follow a run      stop    end it, with proof
  why      how it ended      stacks  where its ranks are
  pull     download its logs and outputs
Runs     report (a page), compare, export (TensorBoard)
Hosts    deploy (push the code), exec, clean
Keys     config (all of them), explain (who set one)

Flags    --version, --shell-completion bash|zsh|fish
Without --run, a verb takes the latest run, except stop.
"""
ROOT_FLAGS = ("-h", "--help", "-V", "--version", "--shell-completion")


class Program(click.Group):
    """The verbs; each is imported when it is asked for."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> Verb | None:  # noqa: ARG002
        return load_verb(cmd_name) if cmd_name in verb_names() else None

    def format_help(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write(HELP)


def _print_completion(ctx: click.Context, _: click.Parameter, shell: str | None) -> None:
    if shell and not ctx.resilient_parsing:
        from runner.cli.completion import SCRIPTS

        print(SCRIPTS[shell])
        ctx.exit()


@click.group(cls=Program, context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", message="runner %(version)s")
@click.option(
    "--shell-completion",
    type=click.Choice(["bash", "zsh", "fish"]),
    metavar="bash",
    is_eager=True,
    expose_value=False,
    callback=_print_completion,
)
def program() -> None:
    """Start a PyTorch job on every machine of a cluster."""


def load_verb(name: str) -> Verb:
    module = importlib.import_module(f"runner.verbs.{name}")
    return next(each for each in vars(module).values() if isinstance(each, Verb))


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    return exit_code(lambda: _run(words))


def _run(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    passed_on: list[str] = []
    if not words or words[0].partition("=")[0] not in ROOT_FLAGS:
        words, passed_on = split_words(words)
    try:
        with program.make_context("runner", words, obj=passed_on) as ctx:
            return int(program.invoke(ctx))
    except click.exceptions.Exit as end:
        return int(end.exit_code)
    except click.Abort:
        raise Interrupted(SIGNAL_EXIT_BASE + signal.SIGINT) from None
    except click.UsageError as error:
        raise ConfigError([_problem(error, words)]) from error


def _problem(error: click.UsageError, words: Sequence[str]) -> Problem:
    """Return what Click objects to, with the next step."""
    ctx = error.ctx or click.Context(program, info_name="runner")
    verb = ctx.info_name
    path = ctx.command_path.replace("runner", this_program(), 1)
    hint = f"`{path} --help` lists the flags"
    if isinstance(error, click.BadArgumentUsage) and verb == LAUNCH:
        word, *others = [word for word in ctx.params["words"] if not is_override(word)]
        return misplaced_word(word, others[0] if others else "")
    if not isinstance(error, click.NoSuchOption):
        return Problem(str(verb), error.format_message().rstrip("."), hint)
    begin = error.option_name  # of `-tail` this is `-t`
    word = next((word for word in words if word.startswith(begin)), begin)
    flag = word.partition("=")[0]
    flags = [name for option in (*ctx.command.params, *program.params) for name in option.opts]
    flags += ctx.help_option_names
    meant = unknown_flag(str(verb), flag, flags)
    return Problem(flag, f"{verb} has no such flag", f"{meant}\n{hint}" if meant else hint)


def entry() -> NoReturn:
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
    boot.raise_to_hard()
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
    if isinstance(args.exc_value, Exception):
        print_error(report_fault(args.exc_value))
