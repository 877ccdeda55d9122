"""Completion: Click's for bash, zsh and fish, with our verbs, keys, clusters and runs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    split_arg_string,
)

from runner.cli.words import LAUNCH, verb_names
from runner.config.words import is_override
from runner.control.record import run_index
from runner.core.errors import ConfigError

VARIABLE = "_RUNNER_COMPLETE"


class _Words(ShellComplete):
    """Completion of a line as it was typed up to the cursor."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the last, and that one."""
        line = os.environ["COMP_WORDS"]
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        return words[1:], incomplete

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what the last word may become, as a whole; a file if nothing is known."""
        flag, equals, _ = incomplete.partition("=")
        prefix = f"{flag}=" if equals and flag.startswith("--") else ""
        found: list[CompletionItem] = []
        with contextlib.suppress(Exception):  # whatever is wrong, a shell must not show it
            found = super().get_completions(args, incomplete)
        for item in found:
            item.value = f"{prefix}{item.value}"
        return found or [CompletionItem(incomplete, type="file")]


class Bash(_Words, BashComplete):
    """Bash, which takes `=` and `:` for ends of words."""

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=($(COMP_WORDS=${COMP_LINE:0:COMP_POINT} COMP_WORDBREAKS=$COMP_WORDBREAKS \\
        %(complete_var)s=bash_complete "${1/#\\~/$HOME}" 2>/dev/null))
    [[ $COMPREPLY == *[=./] ]] && compopt -o nospace
}
complete -o bashdefault -o default -F %(complete_func)s %(prog_name)s
"""

    def source(self) -> str:
        """Return the script."""
        return self.source_template % self.source_vars()

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem]:
        """Return what follows the last end of a word."""
        ends = [each for each in "=:" if each in os.environ.get("COMP_WORDBREAKS", "=:")]
        known = max((incomplete.rfind(each) + 1 for each in ends), default=0)
        found = super().get_completions(args, incomplete)
        for item in found:
            item.value = item.value[known:]
        return [item for item in found if item.type == "plain"]

    def format_completion(self, item: CompletionItem) -> str:
        """Return one line."""
        return str(item.value)


class Zsh(_Words, ZshComplete):
    """Zsh, which adds a blank to each word unless it is told."""

    source_template = """\
%(complete_func)s() {
    local -a found
    found=(${(f)"$(COMP_WORDS="${(j: :)words[1,CURRENT-1]} $PREFIX" \\
        %(complete_var)s=zsh_complete ${~words[1]} 2>/dev/null)"})
    (( $#found )) || { _files; return }
    compadd -S '' -- ${(M)found:#*[=./]}
    compadd -- ${found:#*[=./]}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef %(complete_func)s %(prog_name)s
"""

    def complete(self) -> str:
        """Return the words, one a line."""
        found = self.get_completions(*self.get_completion_args())
        return "\n".join(item.value for item in found if item.type == "plain")


class Fish(_Words, FishComplete):
    """Fish, which says where the cursor is."""


SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": Zsh, "fish": Fish}


def script(program: click.Command, shell: str) -> str:
    """Return the script that installs the completion in a shell."""
    return SHELLS[shell](program, {}, "runner", VARIABLE).source()


def complete(program: click.Command, instruction: str) -> int:
    """Print what may come next on a line, for the script of a shell; return the exit code."""
    shell = instruction.partition("_")[0]
    if shell not in SHELLS:
        return 1
    print(SHELLS[shell](program, {}, "runner", VARIABLE).complete())
    return 0


def candidates(ctx: click.Context, name: str, current: str) -> list[CompletionItem]:
    """Return what the value of a parameter may become; what ends in `=` or `.` goes on."""
    subject = getattr(ctx.command, "subject", "")
    if name == "words":
        found = [] if "=" in current or not subject else _values(ctx, subject, current)
        if ctx.command.name == LAUNCH and not ctx.params.get("words"):
            found += [verb for verb in verb_names() if verb.startswith(current)]
        if getattr(ctx.command, "selects_hosts", False) and subject != "key":
            found += _overrides(ctx, current)
    else:
        found = _values(ctx, name, current)
    return [CompletionItem(each) for each in found]


def _values(ctx: click.Context, name: str, current: str) -> list[str]:
    """Return the values of a flag that begin with `current`; where none is known, no value."""
    if name == "cluster":
        prefix = "cluster="
        found = [each.removeprefix(prefix) for each in _overrides(ctx, prefix + current)]
        return found + _run_ids(current) if ctx.command.name == "top" else found
    if name == "run":
        return _run_ids(current)
    if name == "set_":
        return _overrides(ctx, current)
    if name == "key":
        return [each.rstrip("=.") for each in _overrides(ctx, current)]
    return []


def _overrides(ctx: click.Context, current: str) -> list[str]:
    """Return the overrides that `current` may become, given those before it."""
    key, has_value, value = current.partition("=")
    if key == "rerun" and has_value:
        return [f"rerun={run}" for run in _run_ids(value)]
    from runner.config.complete import complete as complete_word
    from runner.config.compose import open_composer

    given: Sequence[str] = (*(ctx.params.get("set_") or ()), *(ctx.params.get("words") or ()))
    words = [word for word in given if is_override(word)]
    if cluster := ctx.params.get("cluster"):
        words.insert(0, f"cluster={cluster}")
    with open_composer(ctx.params.get("config_dir") or ()) as composer:
        with contextlib.suppress(ConfigError):  # a mistake before it
            return complete_word(composer, words, current)
        return complete_word(composer, [], current)


def _run_ids(current: str) -> list[str]:
    """Return the runs on record on this machine, the newest first."""
    return [run for run in run_index.records().values() if run.startswith(current)]
