"""Why a rank died, as far as its host can tell."""

from __future__ import annotations

import os
import re
import signal
from typing import Any, Mapping

from runner.host.records import BALLAST

KMSG = "/dev/kmsg"
NEAR_S = 1.0
"""A death that the kernel tells of may be so far from ours; its pids may be another namespace's."""

RECORD = 8 << 10
RECORDS = 50_000
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


def seen(pid: int, end: Mapping[str, Any], log: str = KMSG) -> str:
    """Say what the kernel did to a rank, by the record that its shim made of its `end`.

    "" for any end but SIGKILL, and where its log says nothing or may not be read.
    """
    if end["signal"] != signal.SIGKILL:
        return ""
    said = _told(pid, float(end["mono"]), log)
    return f"was killed by the kernel: {said}" if said else ""


def _told(pid: int, mono: float, log: str) -> str:
    """Return the kernel's words; `mono` is of the monotonic clock, which its log has as well."""
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        said = ""
        for _ in range(RECORDS):
            try:
                record = os.read(descriptor, RECORD).decode(errors="replace")
            except BrokenPipeError:  # the kernel wrote over what we were to read
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.splitlines():
                said = _of(line, pid, mono) or said
        return said
    finally:
        os.close(descriptor)


def _of(line: str, pid: int, mono: float) -> str:
    """Return the words of a line like `3,512,1239866964,-;Out of memory: Killed process 7 …`."""
    found = KILLED.search(line)
    head = line.partition(";")[0].split(",")
    if not found or len(head) < 3 or not head[2].isdigit():  # level, number, microseconds
        return ""
    ours = int(found[2]) == pid or abs(int(head[2]) / 1e6 - mono) < NEAR_S
    return found[1].strip() if ours else ""
