"""Completion: what Click and our keys make of a word, for bash, zsh and fish."""

from __future__ import annotations

import contextlib
import os

import click
from click.shell_completion import ShellComplete, split_arg_string

from runner.cli.words import with_verb

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
    prefix = f"{flag}=" if equals and flag.startswith("--") else ""  # Click leaves it out
    known = 0
    if shell == "bash":  # it completes what comes after the last of these
        breaks = os.environ.get("COMP_WORDBREAKS", "=:")
        known = max((current.rfind(each) + 1 for each in "=:" if each in breaks), default=0)
    with contextlib.suppress(Exception):  # whatever is wrong, a shell must not show it
        shown = ShellComplete(program, {}, "runner", "")
        for item in shown.get_completions(with_verb(words[1:]), current):
            print(f"{prefix}{item.value}"[known:])
    return 0
