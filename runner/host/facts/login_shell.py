"""Which interpreter a login shell finds: what a user gets who types its name on this host.

Our own shell reads no profile (an SSH command's is no login shell), so the two may differ.
"""

from __future__ import annotations

import functools
import os
import pwd
import re
from typing import Dict, List

from runner.host.process import bounded_child

LIMIT_S = 5.0
"""How long the user's start-up files may take."""

BARE = re.compile(r"[A-Za-z0-9_.+-]+")
"""A name that is looked up on PATH, and needs no quotes."""

_MARK = "runner-login:"

# One line without "!", since csh expands it even between single quotes.
_LOOK = '/bin/sh -c \'printf "\\n{mark}%s\\n" "$(command -v {python})"\''


def start(python: str, environ: Dict[str, str]) -> bounded_child.Child:
    """Ask the login shell where `python`, a bare name, is."""
    return bounded_child.Child(functools.partial(_run, python, environ), LIMIT_S)


def result(child: bounded_child.Child) -> str:
    """Return the path, "" when it is not known."""
    return parse(child.text)


def parse(text: str) -> str:
    """Return the path in what a shell printed, between whatever its start-up files print."""
    found = [line[len(_MARK) :] for line in text.splitlines() if line.startswith(_MARK)]
    return found[-1] if found and os.path.isabs(found[-1]) else ""


def argv(shell: str, python: str) -> List[str]:
    """Return how that shell is started as by a login on a terminal.

    csh and tcsh take `-l` only alone, and read the file people set PATH in without it.
    """
    flags = "-ic" if os.path.basename(shell) in ("csh", "tcsh") else "-lic"
    return [shell, flags, _LOOK.format(mark=_MARK, python=python)]


def _run(python: str, environ: Dict[str, str]) -> None:
    shell = pwd.getpwuid(os.getuid()).pw_shell or environ.get("SHELL", "/bin/sh")
    os.chdir(os.path.expanduser("~"))
    os.execve(shell, argv(shell, python), {**environ, "TERM": "dumb"})
