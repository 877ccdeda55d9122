"""Why a rank died, as far as its host can tell."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Mapping

from runner.host.process import kernel_log
from runner.host.storage.run_folder import BALLAST

NEAR_S = 1.0
"""A death that the kernel tells of may be so far from ours; its pids may be another namespace's."""

KILLED = re.compile(r"((?:Memory cgroup out|Out) of memory: Killed process (\d+) \([^)]*\)[^,\n]*)")


def unseen(root: str) -> str:
    """Say why a rank's shim, in the run's folder `root`, could not record how it ended."""
    try:
        free = os.statvfs(root)
    except OSError as error:
        return f"ended, and could not record how: {error.strerror}"
    if free.f_bavail * free.f_frsize >= BALLAST:
        return ""
    return f"ended, and could not record how: No space left in {root}"


def seen(pid: int, end: Mapping[str, Any], log: str = kernel_log.KMSG) -> str:
    """Say what the kernel did to a rank, by the record that its shim made of its `end`.

    "" for any end but SIGKILL, and where its log says nothing or may not be read.
    """
    if end["signal"] != signal.SIGKILL:
        return ""
    said = _told(pid, float(end["mono"]), log)
    return f"was killed by the kernel: {said}" if said else ""


def _told(pid: int, mono: float, log: str) -> str:
    """Return the kernel's words; `mono` is of the monotonic clock, which its log has as well."""
    said = ""
    for when, text in kernel_log.lines(log):
        found = KILLED.search(text)
        if found and (int(found[2]) == pid or abs(when - mono) < NEAR_S):
            said = found[1].strip()
    return said
