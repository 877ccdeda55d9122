"""PID namespaces: those of processes, and the numbers that processes have in them."""

from __future__ import annotations

import os

from runner.host.process import procfs

INITIAL = 0xEFFFFFFC
"""The namespace of the machine itself, in which the kernel's log names processes."""


def namespace_of(pid: object = "self") -> int:
    """Return the inode of the PID namespace of a process, 0 if that cannot be seen."""
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:
        return 0


def outer_pid(pid: int, namespace: int, start_ticks: int) -> int:
    """Return our number of a process that has the number `pid` in its namespace, 0 for none.

    The namespace of another user's process is hidden: that is known by when it began.
    """
    if not namespace or namespace == namespace_of():
        return pid
    for each in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        seen = namespace_of(each)
        is_it = seen == namespace or (not seen and procfs.start_ticks_of(each) == start_ticks)
        if is_it and inner_pid(each) == pid:
            return each
    return 0


def inner_pid(pid: int) -> int:
    """Return the number of a process in its innermost namespace."""
    for line in procfs.read_text(f"/proc/{pid}/status").splitlines():
        if line.startswith("NSpid:"):
            return int(line.split()[-1])
    return 0
