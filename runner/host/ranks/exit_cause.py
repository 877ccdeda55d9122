"""Why a rank died, as far as its host can tell."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Mapping

from runner.host.process import kernel_log
from runner.host.storage.run_folder import BALLAST

TIME_TOLERANCE_S = 1.0
"""A death that the kernel tells of may be so far from ours; its pids may be another namespace's."""

OOM_KILL = re.compile(
    r"((?:Memory cgroup out|Out) of memory: Killed process (\d+) \([^)]*\)[^,\n]*)"
)


def missing_record_reason(root: str) -> str:
    """Say why a rank's shim, in the run's folder `root`, could not record how it ended."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return f"ended, and could not record how: {error.strerror}"
    if disk.f_bavail * disk.f_frsize >= BALLAST:
        return ""
    return f"ended, and could not record how: No space left in {root}"


def kernel_kill_reason(pid: int, exit_record: Mapping[str, Any], log: str = kernel_log.KMSG) -> str:
    """Say what the kernel did to a rank, by the record that its shim made of its `exit_record`.

    "" for any end but SIGKILL, and where its log says nothing or may not be read.
    """
    if exit_record["signal"] != signal.SIGKILL:
        return ""
    message = _find_oom_message(pid, float(exit_record["mono"]), log)
    return f"was killed by the kernel: {message}" if message else ""


def _find_oom_message(pid: int, mono: float, log: str) -> str:
    """Return the kernel's words; `mono` is of the monotonic clock, which its log has as well."""
    message = ""
    for logged_at, text in kernel_log.read_lines(log):
        match = OOM_KILL.search(text)
        if match and (int(match[2]) == pid or abs(logged_at - mono) < TIME_TOLERANCE_S):
            message = match[1].strip()
    return message
