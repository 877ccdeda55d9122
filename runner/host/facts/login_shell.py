"""Login shell probe: the interpreter that a user gets by typing its name on this host.

An SSH command does not run in a login shell and reads no profile, so the two may differ.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from typing import Dict, List

from runner.host.process import bounded_child

TIMEOUT_S = 5.0
"""How long the user's start-up files may take."""

BARE_NAME = re.compile(r"[A-Za-z0-9_.+-]+")
"""A name that is looked up on the PATH, and needs no quotes."""

_MARK = "runner-login:"

# One line without "!", since csh expands it even between single quotes.
_PROBE_SCRIPT = '/bin/sh -c \'printf "\\n{mark}%s\\n" "$(command -v {python})"\''


def start(python: str, environ: Dict[str, str]) -> bounded_child.BoundedChild:
    """Ask the login shell for the path of `python`, a bare name."""
    return bounded_child.BoundedChild(functools.partial(_exec_shell, python, environ), TIMEOUT_S)


def result(child: bounded_child.BoundedChild) -> str:
    """Return the path, "" when it is not known."""
    return parse_path(child.text)


def parse_path(text: str) -> str:
    """Return the path in the output of a shell, which may have the output of start-up files."""
    paths = [line[len(_MARK) :] for line in text.splitlines() if line.startswith(_MARK)]
    return paths[-1] if paths and os.path.isabs(paths[-1]) else ""


def login_argv(shell: str, python: str) -> List[str]:
    """Return the command that starts a shell as a login on a terminal does.

    csh and tcsh take `-l` only alone, and read the file people set PATH in without it.
    """
    flags = "-ic" if os.path.basename(shell) in ("csh", "tcsh") else "-lic"
    return [shell, flags, _PROBE_SCRIPT.format(mark=_MARK, python=python)]


def _exec_shell(python: str, environ: Dict[str, str]) -> None:
    shell = pwd.getpwuid(os.getuid()).pw_shell or environ.get("SHELL", "/bin/sh")
    os.chdir(os.path.expanduser("~"))
    os.execve(shell, login_argv(shell, python), {**environ, "TERM": "dumb"})
