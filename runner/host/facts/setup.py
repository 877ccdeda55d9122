"""Setup lines of the user, run by one bash, and the environment they leave.

The lines share one shell, and a failing line ends it as with `set -e`, but at the top level only:
failures inside a sourced script or a function (conda's `activate`, `module`) do not count.
"""

from __future__ import annotations

import os
from typing import Dict, Sequence, Tuple

from runner.core.wire.facts import SetupResult
from runner.host.process import bounded_child

TIMED_OUT = -1

_LINES_VARIABLE = "__runner_lines"
_SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD")

# All up to `eval` is one line, so that bash counts the user's lines from 1. They are in a variable:
# `ps` does not show it, and sourced scripts find no positional parameters. A command that succeeds
# follows them, since the status of a last line such as `[ -f x ] && y` would become that of `eval`;
# so `eval` fails only where it cannot parse them.
_TRAP = (
    "__runner_code=$? __runner_line=$((LINENO - __runner_base)) __runner_what=$BASH_COMMAND; "
    "if ((${#BASH_SOURCE[@]} == 0)); then "
    "[[ $__runner_what == *__runner_text* ]] && __runner_line=-1; "
    'builtin printf "failed\\0%s\\0%s\\0" "$__runner_code" "$__runner_line" >&REPORT; '
    'builtin exit "$__runner_code"; fi'
)
UNDEFINED = (
    'command_not_found_handle() { builtin echo "$1: command not found" >&2; local f; '
    "case $1 in conda|mamba) set -- $1 {~,/opt}/{miniconda3,anaconda3,miniforge3,mambaforge,conda}"
    "/etc/profile.d/conda.sh;; "
    "module|ml) set -- $1 $MODULESHOME/init/bash /etc/profile.d/{modules,lmod,z00_lmod}.sh "
    "/usr/share/{modules,lmod/lmod}/init/bash;; *) return 127;; esac; "
    'for f in "${@:2}"; do if [ -f "$f" ]; then builtin echo '
    '"$1 is a shell function, which this line before it defines: source $f" >&2; '
    "return 127; fi; done; "
    'builtin echo "$1 is a shell function: find its file where you log in, by type $1" >&2; '
    "return 127; }"
)
"""Names the file that defines a function of login shells which is not there."""

_SCRIPT = (
    f"{UNDEFINED}; "
    "__runner_text=$__runner_lines$'\\n:'; unset __runner_lines; "
    f"builtin eval '__runner_base=$LINENO'; trap '{_TRAP}' ERR; "
    'builtin eval "$__runner_text"\n'
    "trap - ERR\n"
    "builtin printf 'done\\0' >&REPORT\n"
    "builtin exec ENV -0 >&REPORT\n"
)


def start(
    lines: Sequence[str], environ: Dict[str, str], folder: str, limit_s: float
) -> bounded_child.BoundedChild:
    """Run `lines` in `folder`, if that exists."""
    return bounded_child.BoundedChild(lambda: _exec_bash(lines, environ, folder), limit_s)


def result(
    child: bounded_child.BoundedChild, lines: Sequence[str], environ_before: Dict[str, str]
) -> Tuple[SetupResult, Dict[str, str]]:
    """Return how the lines ended, and the environment after them (before, if they failed)."""
    kind, _, details = child.raw_report.partition(b"\0")
    if child.timed_out:
        code = TIMED_OUT
        note = f"the setup did not end within {child.limit_s:g} s"
    elif kind == b"failed":
        code, index = (int(word) for word in details.split(b"\0")[:2])
        text = "\n".join(lines).split("\n")
        note = "bash cannot read the setup lines"
        if 0 <= index < len(text):
            note = f"setup line {index + 1} ({text[index].strip()}) ended with exit code {code}"
    elif kind == b"done" and child.code == 0:
        return SetupResult(0, child.text), parse_environment(details, environ_before)
    elif child.code == 0:
        code = 1
        note = "the setup ended its shell (exit, exec): its environment is not known"
    else:
        status = child.code or 0
        code = status if status > 0 else 128 - status
        note = f"the setup ended with exit code {code}"
    return SetupResult(code, f"{child.text}\n{note}".lstrip()), environ_before


def parse_environment(dump: bytes, environ_before: Dict[str, str]) -> Dict[str, str]:
    """Return the environment in `dump` (as of `env -0`), without bash's own variables."""
    after: Dict[str, str] = {}
    for entry in dump.split(b"\0"):
        name, equals, value = os.fsdecode(entry).partition("=")
        if equals and not name.startswith("__runner_") and name not in _SHELL_VARIABLES:
            after[name] = value
    before = {name: environ_before[name] for name in _SHELL_VARIABLES if name in environ_before}
    return {**after, **before}


def _exec_bash(lines: Sequence[str], environ: Dict[str, str], folder: str) -> None:
    bash = bounded_child.find_program("bash", environ)
    if not bash:
        raise FileNotFoundError(f"no bash on PATH ({environ.get('PATH', '')}): setup needs one")
    env = bounded_child.find_program("env", environ) or "/usr/bin/env"  # the lines may break PATH
    script = _SCRIPT.replace("REPORT", str(bounded_child.REPORT_FD)).replace("ENV", env)
    if folder:
        bounded_child.chdir_if_exists(folder)
    argv = [bash, "--norc", "--noprofile", "-c", script]
    os.execve(bash, argv, {**environ, _LINES_VARIABLE: "\n".join(lines)})
