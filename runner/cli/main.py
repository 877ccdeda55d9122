"""The command line: `python -m runner [KEY=VALUE …] [FLAGS]`, or a verb and its words."""

from __future__ import annotations

import argparse
import functools
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO, TextIOWrapper
from typing import TYPE_CHECKING, NoReturn, cast

from runner import __version__
from runner.cli.parser import VerbParser, fit_help, help_text, launch_parser, split_words
from runner.cli.suggestions import (
    LAUNCH_WORDS,
    VERB_ALIASES,
    looks_like_key,
    misplaced_words,
    missing_script,
    other_launcher,
    unknown_verb,
    unused_program,
)
from runner.cli.verb import exit_code, load_verb, print_error, verb_names
from runner.config.gone import VERBS
from runner.config.overrides import is_override, names_file, override_key
from runner.core import descriptor_limit
from runner.core.errors import ConfigError, Interrupted, Problem
from runner.core.shell import line, this_program
from runner.ui.layout import terminal_width
from runner.ui.output import name_output, note

if TYPE_CHECKING:
    from runner.core.model.spec import LaunchRequest


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words[0] = "--help"
    is_launch = bool(words) and words[0] in LAUNCH_WORDS
    words = words[1:] if is_launch else words
    is_verb = not is_launch and _verb_name(words) in verb_names()
    if not is_verb and (problem := other_launcher(words)):
        return print_error(ConfigError([problem]))
    if is_launch or not words or words[0].startswith("-") or is_override(words[0]):
        return for_each_run(words)
    return exit_code(lambda: parse_verb(words))


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
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    except OSError as error:  # such as a full disk
        from runner.ui.reports.internal_fault import report_fault  # noqa: PLC0415

        code = print_error(report_fault(error))
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:  # else the interpreter tries again, and exits with 120
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    sys.exit(code)


def _report_thread(args: threading.ExceptHookArgs) -> None:
    """Print the fault of a thread as that of the main one; whoever waits for it has a deadline."""
    from runner.ui.reports.internal_fault import report_fault  # noqa: PLC0415

    if isinstance(args.exc_value, Exception):
        print_error(report_fault(args.exc_value))


def for_each_run(argv: Sequence[str], job: Callable[[LaunchRequest], int] | None = None) -> int:
    """Launch every run that the command line asks for, or do `job` for each; return the exit code.

    That of a sweep is the first but 0, or the one that ended it.
    """
    return exit_code(functools.partial(_compose_and_run, argv, job))


def _compose_and_run(argv: Sequence[str], job: Callable[[LaunchRequest], int] | None) -> int:
    try:
        runs = _compose_runs(argv)
    except KeyboardInterrupt:
        raise Interrupted(130) from None
    if len(runs) < 2:  # noqa: PLR2004 (none, if something was only shown)
        return (job or _launch_run)(runs[0]) if runs else 0
    # Imported here, because most command lines are no sweep.
    from runner.workflows.sweep import SharedLaunch, run_sweep  # noqa: PLC0415

    launch = job or SharedLaunch()
    return run_sweep(runs, lambda request: exit_code(functools.partial(launch, request)))


def _launch_run(composed: LaunchRequest) -> int:
    # Imported here, because showing a configuration needs no launch.
    from runner.workflows.launch import run  # noqa: PLC0415

    return run(composed)


def _compose_runs(argv: Sequence[str]) -> list[LaunchRequest]:
    """Return the runs to launch; none if the command line only asks for information."""
    words, for_program = split_words(argv)
    parser = launch_parser()
    flags = parser.parse(words)
    if len(flags.cluster) > 1:
        parser.error("--cluster is given twice")
    if misplaced := misplaced_words(flags.overrides, verb_names()):
        raise ConfigError(misplaced)
    flags.overrides[:0] = [f"cluster={name}" for name in flags.cluster]
    if flags.version:
        print(f"runner {__version__}")
        return []
    if flags.shell_completion:
        from runner.cli.completion.query import shell_completion  # noqa: PLC0415 (rarely used)

        shell_completion(flags.overrides)
        return []
    # Imported here, because Hydra takes most of the start-up time.
    from runner.config.compose import open_composer  # noqa: PLC0415

    if flags.help:
        _show_help(flags, for_program)
        return []
    with open_composer(flags.config_dir, for_program, for_launches=True) as composer:
        words = flags.overrides
        if flags.multirun and not words:
            words_text = "--multirun cluster=local task=resnet18 task.args.lr=0.1,0.01"
            message = "there is nothing to run through: no word is given"
            hint = f"such as: {this_program()} {words_text}"
            raise ConfigError([Problem("--multirun", message, hint)])
        runs = composer.sweep(words) if flags.multirun else [composer.compose(words)]
    if len(runs) > 1 and any(run.spec.detach for run in runs):
        raise ConfigError([_detached_sweep(flags, for_program)])
    if text := missing_script(runs[0].spec) or unused_program(runs[0]):
        note(text)
    _confirm_record(runs[0], words, yes=flags.yes)
    return [replace(run, config_dirs=tuple(flags.config_dir)) for run in runs]


def _detached_sweep(flags: argparse.Namespace, for_program: Sequence[str]) -> Problem:
    typed = [word for word in flags.overrides if override_key(word) != "detach"]
    chosen = [] if len(typed) < len(flags.overrides) else ["detach=false"]  # else the YAML has it
    folders = [word for folder in flags.config_dir for word in ("--config-dir", folder)]
    arguments = ["--", *for_program] if for_program else []
    command = f"{this_program()} {line(['-m', *folders, *typed, *chosen, *arguments])}"
    message = "the runs of a --multirun follow each other: each is awaited before the next"
    return Problem("detach", message, f"to detach the sweep itself: nohup {command} &")


def _confirm_record(request: LaunchRequest, words: Sequence[str], *, yes: bool) -> None:
    """Ask before a record is repeated that came from hosts; sweeps change it by words alone."""
    if yes and not any(override_key(word) == "rerun" for word in words):
        message = "there is nothing to confirm: it goes with rerun=RUN_ID"
        raise ConfigError([Problem("--yes", message)])
    if request.record_hosts and not yes:
        from runner.workflows.launch import confirm_record  # noqa: PLC0415 (rarely used)

        confirm_record(request)


def _show_help(flags: argparse.Namespace, for_program: Sequence[str]) -> None:
    """Print what can be set; where the YAML has a fault, by the shipped one, and the fault."""
    from runner.config.compose import open_composer  # noqa: PLC0415

    shown = StringIO()
    fault: ConfigError | None = None
    with redirect_stdout(shown):
        try:
            with open_composer(flags.config_dir, for_program) as composer:
                composer.print_help(flags.overrides, launch_parser())
        except ConfigError as error:
            fault = error
            with open_composer(shipped_only=True) as composer:
                composer.print_help([], launch_parser())
    print(fit_help(shown.getvalue(), terminal_width()))
    if fault:
        print_error(fault)


def _verb_name(words: Sequence[str]) -> str:
    """Return the verb that the first word is, if it is one."""
    return VERB_ALIASES.get(words[0], words[0]) if words else ""


def parse_verb(argv: Sequence[str]) -> int:
    """Carry out the verb that the command line names; return the exit code."""
    _, *words = argv
    name, names = _verb_name(argv), verb_names()
    if name in VERBS:
        raise ConfigError([Problem(name, f"is gone; {VERBS[name]}")])
    if name not in names:
        is_setting = looks_like_key(name) or names_file(name) or words[:1] == ["="]
        before_flags = itertools.takewhile(lambda word: not word.startswith("-"), argv)
        misplaced = misplaced_words(list(before_flags), names) if is_setting else []
        raise ConfigError(misplaced or [unknown_verb([name, *words], names)])
    verb = load_verb(name)
    words, passed_on = split_words(words)
    parser = VerbParser(verb)
    if passed_on and not verb.takes_words:
        parser.error(f"{name} takes no words after `--`")
    if {"--help", "-h"} & set(words):
        print(fit_help(help_text(verb), terminal_width()))
        return 0
    return verb.run(parser.values(words), passed_on)
