"""Shell lines of the user, run by one bash: for the environment of a run, or to make one on disk.

A failing line ends them as with `set -e`, but at the top level only: failures inside a sourced
script or a function (conda's `activate`, `module`) do not count.
"""

from __future__ import annotations

import os
from typing import Dict, List, Sequence, Tuple

from runner.core.wire.facts import PREPARED, SetupResult
from runner.host.process import bounded_child
from runner.host.storage.run_folder import write_atomic

TIMED_OUT = -1

_BASH = ("--norc", "--noprofile")  # some read a .bashrc where sshd has started them
_SHELL_VARIABLES = ("_", "SHLVL", "PWD", "OLDPWD")

_HEADER = (
    'command_not_found_handle() { builtin echo "$1: command not found" >&2; local f; '
    "case $1 in conda|mamba) set -- $1 {~,/opt}/{miniconda3,anaconda3,miniforge3,mambaforge,conda}"
    "/etc/profile.d/conda.sh;; "
    "module|ml) set -- $1 $MODULESHOME/init/bash /etc/profile.d/{modules,lmod,z00_lmod}.sh "
    "/usr/share/{modules,lmod/lmod}/init/bash;; *) return 127;; esac; "
    'for f in "${@:2}"; do if [ -f "$f" ]; then builtin echo '
    '"$1 is a shell function, which this line before it defines: source $f" >&2; '
    "return 127; fi; done; "
    'builtin echo "$1 is a shell function: find its file where you log in, by type $1" >&2; '
    "return 127; }; "
    "trap '__code=$?; if ((${#BASH_SOURCE[@]} == 1)); then "
    'builtin printf "line %s (%s) ended with exit code %s\\n" '
    '"$LINENO" "$BASH_COMMAND" "$__code" >&FAILED; builtin exit "$__code"; fi\' ERR; '
)
"""Stands before the user's first line, on the same one. It names the file that defines a function
of login shells which is not there, and the line that fails."""

_MAKE = (
    'exec > >(exec tee "$RUNNER_PREPARED.log") 2>&1; "$0" "$@" && '
    '{ sync -f "$RUNNER_PREPARED" || :; } && : >"$RUNNER_PREPARED.made"'
)
"""What is marked as made is on the disk; the user's lines may end their own shell."""


def start(
    lines: Sequence[str], environ: Dict[str, str], folder: str, limit_s: float
) -> bounded_child.BoundedChild:
    """Run `lines` in `folder`, if that exists, for their environment."""
    return bounded_child.BoundedChild(lambda: _exec_bash(lines, environ, folder), limit_s)


def result(
    child: bounded_child.BoundedChild, environ_before: Dict[str, str]
) -> Tuple[SetupResult, Dict[str, str]]:
    """Return how the lines ended, and the environment after them (before, if they failed)."""
    status = child.code or 0
    code = status if status >= 0 else 128 - status
    if child.timed_out:
        code = TIMED_OUT
        note = f"the setup did not end within {child.limit_s:g} s"
    elif code:
        failed = child.raw_report.decode(errors="replace").strip()
        note = f"setup {failed}" if failed else f"the setup ended with exit code {code}"
    elif child.raw_report:
        return SetupResult(0, child.text), _environment(child.raw_report, environ_before)
    else:
        code = 1
        note = "the setup ended its shell (exit, exec): its environment is not known"
    return SetupResult(code, f"{child.text}\n{note}".lstrip()), environ_before


def _environment(dump: bytes, before: Dict[str, str]) -> Dict[str, str]:
    """Return the environment in `dump` (as of `env -0`), with bash's own variables as before."""
    entries = (os.fsdecode(entry).partition("=") for entry in dump.split(b"\0"))
    after = {name: value for name, equals, value in entries if equals}
    for name in _SHELL_VARIABLES:
        after.pop(name, None)
        if name in before:
            after[name] = before[name]
    return after


def _exec_bash(lines: Sequence[str], environ: Dict[str, str], folder: str) -> None:
    """Become a bash that reads the lines from a pipe: `ps` shows none of them."""
    bash = bounded_child.find_program("bash", environ)
    if not bash:
        raise FileNotFoundError(f"no bash on PATH ({environ.get('PATH', '')}): setup needs one")
    env = bounded_child.find_program("env", environ) or "/usr/bin/env"  # the lines may break PATH
    report_fd = bounded_child.REPORT_FD
    script = _script(lines, failed_fd=report_fd)
    script += f"\ntrap - ERR\nbuiltin exec {env} -0 >&{report_fd}\n"
    if folder:
        bounded_child.chdir_if_exists(folder)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    if os.write(writer, script.encode()) < len(script.encode()):
        raise ValueError("the setup lines are too long: put them into a file, and source it")
    os.close(writer)
    os.set_inheritable(reader, True)
    os.execve(bash, [bash, *_BASH, f"/dev/fd/{reader}"], environ)


def _script(lines: Sequence[str], *, failed_fd: int, begin: str = "") -> str:
    header = _HEADER.replace("FAILED", str(failed_fd))
    return begin + header + "\n".join((*lines, ""))


def make_command(folder: str, bash: str, lines: Sequence[str]) -> List[str]:
    """Return the command that makes an environment in `folder`, from a script beside it."""
    script = f"{folder}.sh"
    write_atomic(script, _script(lines, failed_fd=2, begin=f'cd "{PREPARED}" || exit; '))
    return [bash, *_BASH, "-c", _MAKE, bash, *_BASH, script]
