"""The command line: `python -m runner [KEY=VALUE …] [FLAGS]`, or a verb and its words."""

from __future__ import annotations

import argparse
import functools
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from runner import __version__
from runner.cli.command import Verb, exit_code, load_verb, print_error, verb_names
from runner.config.validation import suggest
from runner.core.errors import ConfigError, Interrupted, Problem, RunnerError

if TYPE_CHECKING:
    from runner.config.compose import Composer
    from runner.core.model.spec import LaunchRequest

INFO_TOPICS = ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")
SWEEP_STOPPING_CODES = (5, 129, 130, 143)
"""Exit codes after which `--multirun` starts no other run: the user interrupted it, or processes of
the last run may be left, as after a closed terminal."""


def main(argv: Sequence[str] | None = None) -> int:
    """Carry out a command line; return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["help"]:
        words[0] = "--help"
    if not words or words[0].startswith("-") or is_override(words[0]):
        return for_each_run(words, _launch_run)
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
    for stream in (sys.stdout, sys.stderr):  # terminals and pipes may not take Unicode
        cast(TextIOWrapper, stream).reconfigure(errors="backslashreplace")
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:  # such as `| head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = 128 + signal.SIGPIPE
    sys.exit(code)


def for_each_run(argv: Sequence[str], job: Callable[[LaunchRequest], int]) -> int:
    """Call `job` for every run; return the first code but 0, or the one that ended a sweep."""
    try:
        runs = _compose_runs(argv)
    except RunnerError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return print_error(Interrupted(130))
    codes: list[int] = []
    for number, run in enumerate(runs, start=1):
        if len(runs) > 1:
            print(f"run {number} of {len(runs)}: {' '.join(run.overrides)}", file=sys.stderr)
        codes.append(exit_code(functools.partial(job, run)))
        if codes[-1] in SWEEP_STOPPING_CODES:
            break
    if len(runs) > 1:
        not_started = f", {len(runs) - len(codes)} not started" if len(codes) < len(runs) else ""
        print(f"{codes.count(0)} of {len(runs)} runs succeeded{not_started}", file=sys.stderr)
    if codes and codes[-1] in SWEEP_STOPPING_CODES:
        return codes[-1]
    return next(filter(None, codes), 0)


def _launch_run(composed: LaunchRequest) -> int:
    # Imported here, because showing a configuration needs no launch.
    from runner.workflows.launch import run  # noqa: PLC0415

    return run(composed)


def _compose_runs(argv: Sequence[str]) -> list[LaunchRequest]:
    """Return the runs to launch; none if the command line only asks for information."""
    flags = _flags_parser().parse(argv)
    if flags.version:
        print(f"runner {__version__}")
        return []
    # Imported here, because Hydra takes most of the start-up time.
    from runner.config.compose import open_composer  # noqa: PLC0415

    with open_composer(flags.config_dir) as composer:
        if _show_info(composer, flags):
            return []
        words = flags.overrides
        runs = composer.sweep(words) if flags.multirun else [composer.compose(words)]
        return [replace(run, config_dirs=tuple(flags.config_dir)) for run in runs]


def _show_info(composer: Composer, flags: argparse.Namespace) -> bool:
    """Print the information that a flag asks for; return whether one did."""
    words = flags.overrides
    if flags.help:
        composer.show(words, lambda hydra, name, args: hydra.app_help(name, _flags_parser(), args))
    elif flags.hydra_help:
        composer.show(None, lambda hydra, name, args: hydra.hydra_help(name, _flags_parser(), args))
    elif flags.cfg:
        how = (flags.cfg, flags.package, flags.resolve)
        composer.show(words, lambda hydra, name, args: hydra.show_cfg(name, args.overrides, *how))
    elif flags.info:
        topic = flags.info
        composer.show(words, lambda hydra, name, args: hydra.show_info(topic, name, args.overrides))
    elif flags.shell_completion:
        composer.show(None, lambda hydra, name, _: hydra.shell_completion(name, words))
    else:
        return False
    return True


def is_override(word: str) -> bool:
    """Return whether a word of a command line is an override, such as KEY=VALUE or ~KEY."""
    return re.match(r"[~+]|[^-\s=][^\s=]*=", word) is not None


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors with our hints."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse objects to."""
        hint = f"{self.prog} --help lists the flags"
        raise ConfigError([Problem("command line", message, hint)])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words in any order, or raise a ConfigError with our hints."""
        flags, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            flag = unknown[0].partition("=")[0]
            hints = [self.unknown_flag_hint(flag), f"{self.prog} --help lists the flags"]
            message, hint = f"there is no flag {flag!r}", "\n".join(filter(None, hints))
            raise ConfigError([Problem("command line", message, hint)])
        return flags

    def unknown_flag_hint(self, flag: str) -> str:
        """Return what may be meant by an unknown flag, or ""."""
        return suggest(flag, self._option_string_actions)


class _LaunchParser(Parser):
    def unknown_flag_hint(self, flag: str) -> str:
        key = flag.lstrip("-").replace("-", "_")
        argument = f"task.args.{key}=... for an argument of the program"
        return f"settings are written KEY=VALUE: {key}=..., or {argument}"


def _flags_parser() -> Parser:
    """Return a parser with Hydra's flags, without those that replace the config or unpickle."""
    parser = _LaunchParser("python -m runner")
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE sets, GROUP=OPTION chooses a file")
    add = parser.add_argument
    add("--config-dir", "-cd", action="append", default=[], metavar="DIR", help="YAML of yours")
    add("--resolve", action="store_true", help="with --cfg: interpolations resolved")
    add("--package", "-p", metavar="KEY", help="with --cfg: this part only")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--run", "-r", action="store_true", help="run once, which is the default")
    add("--multirun", "-m", action="store_true", help="a run for each of KEY=VALUE1,VALUE2")
    add("--help", "-h", action="store_true", help="what this is, and what can be set")
    add("--hydra-help", action="store_true", help="what can be set of Hydra")
    add("--version", action="store_true", help="our version")
    add("--cfg", "-c", choices=("job", "hydra", "all"), help="print the configuration")
    about = "print what Hydra composes from"
    add("--info", "-i", nargs="?", const="all", choices=INFO_TOPICS, help=about)
    add("--shell-completion", "-sc", action="store_true", help="install=SHELL, uninstall=SHELL")
    return parser


def parse_verb(argv: Sequence[str]) -> int:
    """Carry out the verb that the command line names; return the exit code."""
    name, *words = argv
    if name not in (names := verb_names()):
        message = f"{name!r} is neither KEY=VALUE nor a verb; the verbs are {', '.join(names)}"
        hint = suggest(name, names) or "python -m runner --help explains them"
        program = f"a program to run is task.script={name}" if Path(name).is_file() else ""
        raise ConfigError([Problem("command line", message, program or hint)])
    verb = load_verb(name)
    words, passed_on = split_words(words)
    parser = _VerbParser(verb)
    if passed_on and not verb.takes_words:
        parser.error(f"{name} takes no words after `--`")
    if {"--help", "-h"} & set(words):
        print(_help(verb))
        return 0
    return verb.run(parser.values(words), passed_on)


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after `--`."""
    separator = list(words).index("--") if "--" in words else len(words)
    return list(words[:separator]), list(words[separator + 1 :])


class _VerbParser(Parser):
    """The parser of one verb's flags, overrides and subject."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(f"python -m runner {verb.name}")
        self._verb = verb
        for option in verb.options:
            action = "store_true" if option.default is False else "append"
            self.add_argument(option.flag, dest=option.name, action=action, default=None)
        self.add_argument("words", nargs="*")

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the value of every option of the verb.

        A word without a flag is an override, as in a launch, or else the verb's subject.
        """
        flags = vars(self.parse(words))
        rest, values = flags.pop("words"), {}
        for option in self._verb.options:
            given = flags[option.name]
            if isinstance(option.default, tuple):
                given = given or []
            elif isinstance(given, list):
                if len(given) > 1:
                    self.error(f"{option.flag} is given twice")
                given = given[0]
            values[option.name] = given
        for word in rest:
            self._place_word(word, values)
        for option in self._verb.options:
            if values[option.name] is None:
                if option.default is None:
                    example = f"{self.prog} cluster.python --cluster lab3"
                    self.error(f"{self._verb.name} needs a {option.name}, such as: {example}")
                values[option.name] = option.default
        return values

    def _place_word(self, word: str, values: dict[str, Any]) -> None:
        subject, takes_words = self._verb.subject, self._verb.takes_words
        # A command of the shell may begin by setting a variable.
        is_shell_line = takes_words and re.match(r"\w+=.*\s", word) is not None
        if "set_" in values and is_override(word) and not is_shell_line:
            values["set_"] = [*values["set_"], word]
        elif subject is None:
            self.error(f"{self._verb.name} takes no word {word!r}: it is not KEY=VALUE")
        elif values[subject.name] is not None:
            given = f"{subject.flag} is {values[subject.name]!r}"
            hint = "; a command of several words comes after `--`" if takes_words else ""
            self.error(f"{word!r} is one word too many: {given}{hint}")
        else:
            values[subject.name] = word

    def unknown_flag_hint(self, flag: str) -> str:
        near = super().unknown_flag_hint(flag)
        return near or ("the command comes after `--`" if self._verb.takes_words else "")


def _help(verb: Verb) -> str:
    texts = {}
    for option in verb.options:
        value = "" if option.default is False else f"={option.name.strip('_').upper()}"
        texts[option.flag + value] = option.help
    width = max(map(len, texts))
    lines = [f"  {flag:{width}}  {text}" for flag, text in sorted(texts.items())]
    return "\n".join([verb.help, "", *lines])
