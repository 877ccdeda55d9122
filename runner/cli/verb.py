"""Verbs: one declaration of a command and its flags, for `python -m runner` and `fab` alike."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import pkgutil
import re
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.cli import commands
from runner.cli.selection import Selection
from runner.core.errors import ConfigError, Problem, RunnerError
from runner.ui.output import show
from runner.ui.problems import render_problems

COMMON_HELP = {"run": "the run's id; by default the latest run", "json_": "print JSON"}
SUBJECTS = ("key", "command", "run", "cluster")
"""The options that a word without a flag may stand for: the first of them that a verb has."""

UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True)
class Option:
    """A flag of a verb."""

    name: str  # that of the parameter which takes its value
    default: bool | str | tuple[str, ...] | None
    """False for a switch, a tuple for a repeatable flag, None for a required value."""
    help: str

    @property
    def flag(self) -> str:
        """The flag as typed."""
        return f"--{self.name.rstrip('_').replace('_', '-')}"


SELECTION_OPTIONS = (
    Option("cluster", "", "the cluster: a file in conf/cluster, yours or a shipped one"),
    Option("set_", (), "KEY=VALUE as in a launch, such as task=train; repeatable"),
    Option("config_dir", (), "look for YAML in this folder first; repeatable"),
)


@dataclass(frozen=True)
class Verb:
    """A command about a cluster or its runs."""

    name: str
    body: Callable[..., int]  # it returns the exit code
    options: tuple[Option, ...]
    takes_words: bool = False  # after `--`
    subject_name: str = ""  # the option that a bare word stands for, if not the usual one

    @property
    def help(self) -> str:
        """The text for `--help`."""
        return inspect.getdoc(self.body) or ""

    @property
    def subject(self) -> Option | None:
        """The option that a word which is no flag and no override stands for."""
        named = {option.name: option for option in self.options}
        if "set_" not in named and "run" not in named:
            return None
        return next(named[name] for name in (self.subject_name, *SUBJECTS) if name in named)

    def run(self, values: Mapping[str, Any], words: Sequence[str] = ()) -> int:
        """Carry out the verb with the value of every option; print errors, return the exit code."""
        arguments = dict(values)
        if "set_" in arguments:
            cluster, words_set = arguments.pop("cluster"), tuple(arguments.pop("set_") or ())
            folders = tuple(arguments.pop("config_dir") or ())
            arguments["selection"] = Selection(cluster, words_set, folders)
        if self.takes_words:
            arguments["words"] = words
        try:
            return exit_code(functools.partial(self.body, **arguments))
        except BrokenPipeError:  # such as `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            return 128 + signal.SIGPIPE


def verb(
    name: str, *, subject: str = "", **help_texts: str
) -> Callable[[Callable[..., int]], Verb]:
    """Make a verb of a function: each parameter becomes a flag, `selection` the common ones.

    The `subject` is the option that a word without a flag stands for.
    """

    def make_verb(body: Callable[..., int]) -> Verb:
        options: list[Option] = []
        parameters = inspect.signature(body).parameters
        for parameter in parameters.values():
            if parameter.name == "selection":
                options += SELECTION_OPTIONS
            elif parameter.kind is not parameter.KEYWORD_ONLY:
                default = None if parameter.default is parameter.empty else parameter.default
                text = help_texts.get(parameter.name) or COMMON_HELP[parameter.name]
                options.append(Option(parameter.name, default, text))
        takes_words = "words" in parameters
        return Verb(name, body, tuple(options), takes_words=takes_words, subject_name=subject)

    return make_verb


def verb_names() -> list[str]:
    """Return the name of every verb: each has a file of that name in `commands`."""
    return [module.name for module in pkgutil.iter_modules(commands.__path__)]


def load_verb(name: str) -> Verb:
    """Import one verb."""
    module = importlib.import_module(f"{commands.__name__}.{name}")
    return next(each for each in vars(module).values() if isinstance(each, Verb))


def exit_code(job: Callable[[], int]) -> int:
    """Call a job; print its error, and return the exit code."""
    try:
        return job()
    except RunnerError as error:
        return print_error(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        from runner.ui.reports.internal_fault import report_fault

        return print_error(report_fault(error))


def print_error(error: RunnerError) -> int:
    """Print the problems of an error; return its exit code."""
    if error.problems:
        with contextlib.suppress(OSError):  # such as a full disk; the exit code tells
            show(render_problems(error.problems), file=sys.stderr)
    return error.exit_code


def parse_duration(flag: str, text: str, *, allow_bare: bool = True) -> float:
    """Return the value of a flag, such as 12h, in seconds, or raise ConfigError."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if not match or not (match[2] or allow_bare or not float(match[1])):
        hint = f"such as {flag} 7d, {flag} 12h, {flag} 30m"
        raise ConfigError([Problem(flag, f"must be a duration, not {text!r}", hint)])
    return float(match[1]) * UNITS[match[2]]


def parse_tail(text: str) -> int:
    """Return the number of lines of `--tail`, or raise ConfigError."""
    if not text.isdecimal() or not int(text):
        message = f"must be a number of lines from 1, not {text!r}"
        raise ConfigError([Problem("--tail", message, "--tail 100")])
    return int(text)
