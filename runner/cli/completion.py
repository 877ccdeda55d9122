"""Completion: what Click and our keys make of a word, for bash, zsh and fish."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import click
from click.shell_completion import CompletionItem, ShellComplete, split_arg_string

from runner.cli.words import LAUNCH, verb_names
from runner.config.words import is_override
from runner.control.record import run_index
from runner.core.errors import ConfigError

VARIABLE = "_RUNNER_COMPLETE"
SCRIPTS = {
    "bash": """\
_runner_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(_RUNNER_COMPLETE=bash COMP_LINE=${COMP_LINE:0:COMP_POINT} \\
        COMP_WORDBREAKS=$COMP_WORDBREAKS "${1/#\\~/$HOME}" 2>/dev/null))
    [[ $COMPREPLY == *[=./] ]] && compopt -o nospace
}
complete -o bashdefault -o default -F _runner_completion runner""",
    "zsh": """\
_runner_completion() {
    local -a found
    found=(${(f)"$(_RUNNER_COMPLETE=zsh COMP_LINE="${(j: :)words[1,CURRENT-1]} $PREFIX" \\
        ${~words[1]} 2>/dev/null)"})
    (( $#found )) || { _files; return }
    compadd -S '' -- ${(M)found:#*[=./]}
    compadd -- ${found:#*[=./]}
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }
compdef _runner_completion runner""",
    "fish": """\
function _runner_completion
    set -lx COMP_LINE (commandline -cp)
    set -l found (env _RUNNER_COMPLETE=fish runner 2>/dev/null)
    if test -n "$found"
        string join \\n -- $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c runner -f -a '(_runner_completion)'""",
}
"""What installs the completion in each shell; where nothing is known, files are completed."""


def complete(program: click.Command, shell: str) -> int:
    """Print what the last word of `COMP_LINE` may become, one a line, for the script of a shell."""
    line = os.environ.get("COMP_LINE", "")
    words = split_arg_string(line)
    current = words.pop() if words and not line[-1:].isspace() else ""
    flag, equals, _ = current.partition("=")
    prefix = f"{flag}=" if equals and flag.startswith("--") else ""
    # Bash completes what comes after the last of these.
    ends = os.environ.get("COMP_WORDBREAKS", "=:") if shell == "bash" else ""
    known = max((current.rfind(end) + 1 for end in "=:" if end in ends), default=0)
    with contextlib.suppress(Exception):  # whatever is wrong, a shell must not show it
        asked = ShellComplete(program, {}, "runner", VARIABLE)
        for item in asked.get_completions(words[1:], current):
            print(f"{prefix}{item.value}"[known:])
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
