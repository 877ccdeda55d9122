"""Exit cause: why a rank died, by the kernel's log and the disk."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Mapping

from runner.host.process import kernel_log
from runner.host.storage.run_folder import BALLAST

TIME_TOLERANCE_S = 1.0
"""The most that a kill in the kernel's log may be apart from the recorded end: the pids there may
be those of another namespace."""

OOM_KILL = re.compile(
    r"((?:Memory cgroup out|Out) of memory: Killed process (\d+) \([^)]*\)[^,\n]*)"
)


def missing_record_reason(root: str) -> str:
    """Return why a rank's shim could not record its end in the run folder `root`."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return f"ended, and could not record how: {error.strerror}"
    if disk.f_bavail * disk.f_frsize >= BALLAST:
        return ""
    return f"ended, and could not record how: No space left in {root}"


def kernel_kill_reason(pid: int, exit_record: Mapping[str, Any], log: str = kernel_log.KMSG) -> str:
    """Return why the kernel killed a rank, by the exit record of its shim.

    "" for any end but SIGKILL, and where the kernel's log has no reason or may not be read.
    """
    if exit_record["signal"] != signal.SIGKILL:
        return ""
    message = _find_oom_message(pid, float(exit_record["mono"]), log)
    return f"was killed by the kernel: {message}" if message else ""


def _find_oom_message(pid: int, mono: float, log: str) -> str:
    """Return the kernel's message; its log has monotonic times, as `mono` is."""
    message = ""
    for logged_at, text in kernel_log.read_lines(log):
        match = OOM_KILL.search(text)
        if match and (int(match[2]) == pid or abs(logged_at - mono) < TIME_TOLERANCE_S):
            message = match[1].strip()
    return message
