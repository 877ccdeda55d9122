"""Command line parsers: argparse, with our messages, for verbs and launches."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from runner.cli.command import Option, Verb, load_verb, verb_names
from runner.config.validation import suggest
from runner.core.errors import ConfigError, Problem


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
        """Parse words in any order.

        Raises:
            ConfigError: A flag is unknown, or its value missing.
        """
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


def parse_verb(argv: Sequence[str]) -> int:
    """Carry out the verb that the command line names; return the exit code.

    Raises:
        ConfigError: The words cannot be understood.
    """
    name, *words = argv
    if name not in verb_names():
        raise ConfigError([_unknown_verb(name)])
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
            kind: dict[str, Any] = {"action": "append", "default": []}
            if option.default is False:
                kind = {"action": "store_true"}
            elif not isinstance(option.default, tuple):
                kind = {"action": _StoreOnce}
            self.add_argument(option.flag, dest=option.name, **kind)
        self.add_argument("words", nargs="*")

    def values(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the value of every option of the verb.

        A word without a flag is an override, as in a launch, or else the verb's subject.
        """
        flags = vars(self.parse(words))
        subject = self._verb.subject
        for word in flags.pop("words"):
            if "set_" in flags and is_override(word) and not self._is_shell_line(word):
                flags["set_"] = [*flags["set_"], word]
            elif subject is None:
                self.error(f"{self._verb.name} takes no word {word!r}: it is not KEY=VALUE")
            elif flags[subject.name] is not None:
                message = (
                    f"{word!r} is one word too many: {subject.flag} is {flags[subject.name]!r}"
                )
                if self._verb.takes_words:
                    message += "; a command of several words comes after `--`"
                self.error(message)
            else:
                flags[subject.name] = word
        for option in self._verb.options:
            if flags[option.name] is None:
                flags[option.name] = self._default(option)
        return flags

    def _default(self, option: Option) -> bool | str | tuple[str, ...]:
        if option.default is None:
            example = f"{self.prog} cluster.python --cluster lab3"
            self.error(f"{self._verb.name} needs a {option.name}, such as: {example}")
        return option.default

    def _is_shell_line(self, word: str) -> bool:
        """Return whether a word is a command that begins by setting a variable."""
        return self._verb.takes_words and re.match(r"\w+=.*\s", word) is not None

    def unknown_flag_hint(self, flag: str) -> str:
        near = super().unknown_flag_hint(flag)
        return near or ("the command comes after `--`" if self._verb.takes_words else "")


class _StoreOnce(argparse.Action):
    """Stores a value, and refuses a second one."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"{option_string} is given twice")
        setattr(namespace, self.dest, values)


def _unknown_verb(name: str) -> Problem:
    names = verb_names()
    message = f"{name!r} is neither KEY=VALUE nor a verb; the verbs are {', '.join(names)}"
    hint = suggest(name, names) or "python -m runner --help explains them"
    if Path(name).is_file():
        hint = f"a program to run is task.script={name}"
    return Problem("command line", message, hint)


def _help(verb: Verb) -> str:
    rows = []
    for option in verb.options:
        value = "" if option.default is False else f"={option.name.strip('_').upper()}"
        rows.append((option.flag + value, option.help))
    width = max(len(flag) for flag, _ in rows)
    lines = [f"  {flag:{width}}  {text}" for flag, text in sorted(rows)]
    return "\n".join([verb.help, "", *lines])
