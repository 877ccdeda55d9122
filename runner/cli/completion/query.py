"""Completion query: what the word before the cursor may become; and the scripts that ask."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from runner.cli.parser import launch_flags
from runner.cli.suggestions import VERB_ALIASES
from runner.cli.verb import SELECTION_OPTIONS, Option, Verb, load_verb, verb_names
from runner.config.words import is_override
from runner.control.record import run_index
from runner.core.errors import ConfigError, Problem
from runner.core.shell import line

SHELLS = {
    "bash": 'eval "$({} --shell-completion install=bash)"',
    "zsh": 'eval "$({} --shell-completion install=zsh)"',
    "fish": "{} --shell-completion install=fish | source",
}
"""What installs the completion in each shell."""


def shell_completion(words: Sequence[str]) -> None:
    """Carry out `--shell-completion WORDS`; raise ConfigError."""
    action, _, shell = " ".join(words).partition("=")
    if action == "install" and shell in SHELLS:
        print(script(shell))
    elif action == "query" and shell in SHELLS:
        with contextlib.suppress(Exception):  # whatever is wrong, a shell must not show it
            for candidate in candidates(*_words_to_complete(os.environ.get("COMP_LINE", ""))):
                print(candidate)
    elif not words:
        print("Completion lasts if its line stands in ~/.bashrc, ~/.zshrc or config.fish:")
        own = Path(sys.executable).with_name("runner")  # `-m` would start a runner.py of the user's
        command = line([str(own)] if own.is_file() else [sys.executable, "-m", "runner"])
        for name, how in SHELLS.items():
            print(f"  {name:4}  {how.format(command)}")
    else:
        message = f"must be install=SHELL, not {' '.join(words)!r}"
        hint = f"the shells are {', '.join(SHELLS)}; to uninstall it, remove the line that does so"
        raise ConfigError([Problem("--shell-completion", message, hint)])


def script(shell: str) -> str:
    """Return the script that installs the completion in a shell."""
    text = Path(__file__).with_name(f"runner.{shell}").read_text(encoding="utf-8")
    return text.replace("PYTHONS", f"python python3 python3.{sys.version_info.minor}")


def _words_to_complete(line: str) -> tuple[list[str], str]:
    """Return our words on a command line, the one that is being typed apart."""
    try:
        words = shlex.split(line)
    except ValueError:  # an open quote
        words = line.split()
    current = words.pop() if words and not line[-1].isspace() else ""
    if words[1:3] == ["-m", "runner"]:
        return words[3:], current
    return words[1:], current


def candidates(words: Sequence[str], current: str) -> list[str]:
    """Return what `current` may become after `words`; what ends in `=` or `.` goes on."""
    if "--" in words:
        return []
    words = [VERB_ALIASES.get(word, word) if not at else word for at, word in enumerate(words)]
    verb = load_verb(words[0]) if words and words[0] in verb_names() else None
    last = _option(verb, words[-1]) if words else None
    if last and last.default is not False:
        return _values(last, words, current)
    flag, has_value, value = current.partition("=")
    if current.startswith("-"):
        if has_value and (option := _option(verb, flag)):
            return [f"{flag}={each}" for each in _values(option, words, value)]
        flags = [option.flag for option in verb.options] if verb else launch_flags()
        return _matching([*flags, "--help"], current)
    found = _overrides(words, current)
    if verb and verb.subject and not has_value:
        own = _values(verb.subject, words, current)
        if verb.subject_name == "cluster":  # a run is as good
            own += _run_ids(current)
        return own if verb.subject.name == "key" else [*own, *found]
    return found if words else [*_matching(verb_names(), current), *found]


def _option(verb: Verb | None, flag: str) -> Option | None:
    options = verb.options if verb else SELECTION_OPTIONS
    return next((option for option in options if option.flag == flag), None)


def _values(option: Option, words: Sequence[str], current: str) -> list[str]:
    """Return the values of a flag that begin with `current`; where none is known, no value."""
    match option.name:
        case "cluster":
            prefix = "cluster="
            found = _overrides(words, prefix + current)
            return [each.removeprefix(prefix) for each in found]
        case "run":
            return _run_ids(current)
        case "set_":
            return _overrides(words, current)
        case "key":
            return [each.rstrip("=.") for each in _overrides(words, current)]
    return []


def _overrides(words: Sequence[str], current: str) -> list[str]:
    """Return the overrides that `current` may become, given those before it."""
    key, has_value, value = current.partition("=")
    if key == "rerun" and has_value:
        return [f"rerun={run}" for run in _run_ids(value)]
    from runner.config.complete import complete  # noqa: PLC0415 (Hydra takes its time)
    from runner.config.compose import open_composer  # noqa: PLC0415

    flags = (word.split("=", 1) if word.startswith("--") else [word] for word in words)
    pairs = list(itertools.pairwise(itertools.chain.from_iterable(flags)))
    clusters = [f"cluster={value}" for flag, value in pairs if flag == "--cluster"]
    folders = [value for flag, value in pairs if flag in ("--config-dir", "-cd")]
    with open_composer(folders) as composer:
        return complete(composer, [*clusters, *filter(is_override, words)], current)


def _run_ids(current: str) -> list[str]:
    """Return the runs on record on this machine, the newest first."""
    return _matching([*run_index.records().values()], current)


def _matching(words: Sequence[str], current: str) -> list[str]:
    return [word for word in words if word.startswith(current)]
