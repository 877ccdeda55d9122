"""Parsers of the command line: the flags of a launch, and those of each verb."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from runner.cli.suggestions import OTHER_LINES
from runner.cli.verb import Verb
from runner.config.gone import FLAGS
from runner.config.overrides import is_override
from runner.config.validation import suggest
from runner.core.errors import ConfigError, Problem
from runner.core.shell import this_program
from runner.ui.layout import wrap, wrap_lines

EXAMPLES = {"key": "cluster.python --cluster lab3", "run": "latest"}
"""Values of the options that a verb needs."""

FLAG_EXAMPLES = {
    "--cluster": "lab3",
    "--command": "nvidia-smi",
    "--config-dir": "~/conf",
    "--hosts": "gpu[01-16]",
    "--key": "cluster.nodes",
    "--node": "gpu2",
    "--older-than": "7d",
    "--out": "run.html",
    "--python": "~/venv/bin/python",
    "--rank": "0,4-7",
    "--run": "latest",
    "--script": "train.py",
    "--set": "task=train",
    "--skip": "gpus",
    "--sort": "loss",
    "--tail": "100",
    "--task": "train",
    "--tensorboard": "tb",
    "--timeout": "10m",
    "--user": "me",
    "--watch": "5",
}
"""A value of each flag that takes one."""

TORCHRUN_FLAGS = re.compile(
    r"nnodes|nproc_per_node|node_rank|local_addr|master_(addr|port)|max_restarts|rdzv_\w+|standalone"
    r"|num_(machines|processes)"
)


class Parser(argparse.ArgumentParser):
    """A parser that raises its errors with our hints."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse objects to."""
        hint = f"`{self.prog} --help` lists the flags"
        if match := re.match(r"argument (?:-\S+?/)?(--[\w-]+)\S*: expected one argument", message):
            flag = match[1]
            example = FLAG_EXAMPLES.get(flag, "VALUE")
            message = f"{flag} needs a value, such as: {self.prog} {flag} {example}"
        raise ConfigError([Problem("command line", message, hint)])

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse words in any order, or raise a ConfigError with our hints."""
        flags, unknown = self.parse_known_intermixed_args(list(words))
        if unknown:
            flag = unknown[0].partition("=")[0]
            verb = self.prog.removeprefix(this_program()).strip()
            if instead := FLAGS.get(f"{verb} {flag}".strip()):
                raise ConfigError([Problem(flag, f"is gone; {instead}")])
            hints = [self.unknown_flag_hint(flag), f"`{self.prog} --help` lists the flags"]
            message, hint = f"there is no flag {flag!r}", "\n".join(filter(None, hints))
            raise ConfigError([Problem("command line", message, hint)])
        return flags

    def unknown_flag_hint(self, flag: str) -> str:
        """Return what may be meant by an unknown flag, or ""."""
        return suggest(flag, self._option_string_actions)


class LaunchParser(Parser):
    """The parser of a launch's flags and overrides."""

    def unknown_flag_hint(self, flag: str) -> str:
        """Return where an argument of the program goes, or how a setting is written."""
        if flag in ("--config-name", "--config-path", "-cn", "-cp"):
            return "cluster=NAME and task=NAME choose files, --config-dir=DIR where to look first"
        from runner.config.schema import RunnerConfig  # noqa: PLC0415

        key = flag.lstrip("-").replace("-", "_")
        defaults = {option.name: option.default for option in dataclasses.fields(RunnerConfig)}
        if key in defaults:
            value = "true" if isinstance(defaults[key], bool) else "..."
            return f"settings are written KEY=VALUE: {key}={value}"
        if TORCHRUN_FLAGS.fullmatch(key):
            return OTHER_LINES
        return f"an argument of the program is task.args.{key}=..., or comes after `--`"


def launch_parser() -> Parser:
    """Return the parser of a launch; of Hydra's flags it has those that are about runs."""
    parser = LaunchParser(this_program())
    parser.add_argument("overrides", nargs="*", help="KEY=VALUE sets, GROUP=OPTION chooses a file")
    add = parser.add_argument
    add("--config-dir", "-cd", action="append", default=[], metavar="DIR", help="YAML of yours")
    add("--cluster", action="append", default=[], metavar="NAME", help="as cluster=NAME")
    add("--yes", action="store_true", help="with rerun: launch what hosts have on record, unasked")
    add = parser.add_mutually_exclusive_group().add_argument
    add("--run", "-r", action="store_true", help="run once, which is the default")
    add("--multirun", "-m", action="store_true", help="a run for each of KEY=VALUE1,VALUE2")
    add("--help", "-h", action="store_true", help="what this is, and what can be set")
    add("--version", action="store_true", help="our version")
    add("--shell-completion", "-sc", action="store_true", help="how to have TAB complete words")
    return parser


def launch_flags() -> list[str]:
    """Return the flags of a launch in their long form."""
    return [flag for flag in launch_parser()._option_string_actions if flag.startswith("--")]  # noqa: SLF001


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and after `--`."""
    separator = list(words).index("--") if "--" in words else len(words)
    return list(words[:separator]), list(words[separator + 1 :])


class VerbParser(Parser):
    """The parser of one verb's flags, overrides and subject."""

    def __init__(self, verb: Verb) -> None:
        super().__init__(f"{this_program()} {verb.name}")
        self._verb = verb
        for option in verb.options:
            action = "store_true" if option.default is False else "append"
            self.add_argument(option.flag, dest=option.name, action=action, default=None)
        self.add_argument("words", nargs="*")

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the value of every option of the verb.

        A word without a flag is an override, as in a launch, or else the verb's subject.
        """
        flags = vars(self.parse(self._joined(words)))
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
                    example = f"{self.prog} {EXAMPLES.get(option.name, '...')}"
                    self.error(f"{self._verb.name} needs a {option.name}, such as: {example}")
                values[option.name] = option.default
        return values

    def _joined(self, words: Sequence[str]) -> list[str]:
        """Return words with `--sort -loss` as one: a value may begin with a dash."""
        takers = {option.flag for option in self._verb.options if option.default is not False}
        joined: list[str] = []
        for word in words:
            is_value = re.match(r"-\w", word) and word not in self._option_string_actions
            if is_value and joined and joined[-1] in takers:
                joined[-1] += f"={word}"
            else:
                joined.append(word)
        return joined

    def _place_word(self, word: str, values: dict[str, Any]) -> None:
        subject, takes_words = self._verb.subject, self._verb.takes_words
        # A command of the shell may begin by setting a variable.
        is_shell_line = takes_words and re.match(r"\w+=.*\s", word) is not None
        if "set_" in values and is_override(word) and not is_shell_line:
            values["set_"] = [*values["set_"], word]
        elif subject is None:
            self.error(f"{self._verb.name} takes flags alone, not {word!r}")
        elif isinstance(subject.default, tuple):
            values[subject.name] = [*values[subject.name], word]
        elif values[subject.name] is not None:
            given = f"{subject.flag} is {values[subject.name]!r}"
            hint = "; a command of several words comes after `--`" if takes_words else ""
            self.error(f"{word!r} is one word too many: {given}{hint}")
        else:
            values[subject.name] = word

    def unknown_flag_hint(self, flag: str) -> str:
        """Return a flag of similar spelling or first letter, or where a command is given."""
        if re.fullmatch(r"-[a-z]", flag):
            flag = next((f for f in self._option_string_actions if f.startswith(f"-{flag}")), flag)
        near = super().unknown_flag_hint(flag)
        return near or ("the command comes after `--`" if self._verb.takes_words else "")


def help_text(verb: Verb) -> str:
    """Return what `--help` prints of a verb."""
    texts = {}
    for option in verb.options:
        value = "" if option.default is False else f"={option.name.strip('_').upper()}"
        texts[option.flag + value] = option.help
    width = max(map(len, texts))
    lines = [f"  {flag:{width}}  {text}" for flag, text in sorted(texts.items())]
    return "\n".join([verb.help, "", *lines])


def fit_help(text: str, width: int) -> str:
    """Return help as lines of at most this width, commands whole, explanations in their column."""
    lines = []
    for each in text.splitlines():
        if column := re.match(r" +\S.*?  +", each):
            lines += wrap(each, width, hanging_margin=" " * len(column[0]))
        else:
            lines.append(wrap_lines(each, width))
    return "\n".join(lines)
