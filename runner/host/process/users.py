"""Users of this host: our own login, and the owner and command of a process."""

from __future__ import annotations

import os
import pwd
from typing import Mapping

from runner.host.process import procfs

_MAX_COMMAND = 100


def login_name() -> str:
    """Return our login name; the environment has it without asking a directory service."""
    return os.environ.get("LOGNAME") or os.environ.get("USER") or user_name(os.getuid())


def ssh_server_address(environ: Mapping[str, str]) -> str:
    """Return the address of this host that the SSH client connected to, "" without one."""
    fields = environ.get("SSH_CONNECTION", "").split()
    return fields[2].partition("%")[0] if len(fields) == 4 else ""


def user_name(uid: int) -> str:
    """Return the login name of a user, the number where there is none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def process_owner(pid: int) -> str:
    """Return the login name a process runs under, "" when it is hidden."""
    try:
        return user_name(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def process_command(pid: int, root: str = "/") -> str:
    """Return program and script of a process, "" when they are hidden.

    The rest of its command line is left out: it may hold secrets.
    """
    folder = os.path.join(root, "proc", str(pid))
    args = procfs.read_text(os.path.join(folder, "cmdline")).split("\0")[:-1]
    if not args:
        return procfs.read_text(os.path.join(folder, "comm")).strip()
    shown = [os.path.basename(args[0])]
    for word in args[1:]:
        if word == "-c":
            break
        shown.append(word)
        if not word.startswith("-"):
            break
    return " ".join(shown)[:_MAX_COMMAND]
