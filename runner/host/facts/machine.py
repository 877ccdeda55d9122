"""Machine facts: cores, limits, and logind."""

from __future__ import annotations

import os
import re
import resource
from typing import Dict, Iterator, Optional

from runner.core.wire import boot
from runner.host.process import procfs
from runner.host.process.bounded_child import BoundedChild

CPU_CGROUPS = {  # by controller, which has no name in version 2: alone, or beside version 1
    "": ("sys/fs/cgroup", "sys/fs/cgroup/unified"),
    "cpu": ("sys/fs/cgroup/cpu",),
}
LOGIND = (
    "org.freedesktop.login1",
    "/org/freedesktop/login1",
    "org.freedesktop.login1.Manager",
)
LOGIND_PROPERTIES = ("KillUserProcesses", "KillOnlyUsers", "KillExcludeUsers")
LOGIND_S = 5.0  # for its answer


def soft_limits() -> Dict[str, int]:
    limits = {}
    for name in ("nofile", "memlock", "nproc"):
        limit, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))
        limit = boot.inherited()[0] if name == "nofile" else limit
        limits[name] = -1 if limit == resource.RLIM_INFINITY else limit
    return limits


def usable_cores(affinity: int, root: str = "/") -> int:
    """Return how many cores a process of ours gets: its affinity, cut by the quotas of its cgroups.

    A quota binds all cgroups below its own, so every one from ours to the top of the mount counts.
    """
    quotas = map(_cpu_quota, _cpu_cgroups(root))
    return max(1, int(min([affinity, *filter(None, quotas)])))


def _cpu_cgroups(root: str) -> Iterator[str]:
    """Yield the folder of every cgroup from the top down to ours; some are not there.

    In a container our path may be the host's; then only the top is ours to see.
    """
    for line in procfs.read_text(os.path.join(root, "proc/self/cgroup")).splitlines():
        controllers, _, path = line.partition(":")[2].partition(":")
        for controller in controllers.split(","):
            for mount in CPU_CGROUPS.get(controller, ()):
                folder = os.path.join(root, mount)
                yield folder
                for part in path.split("/")[1:]:
                    if part == "..":
                        break
                    folder = os.path.join(folder, part)
                    yield folder


def _cpu_quota(folder: str) -> Optional[float]:
    fields = procfs.read_text(os.path.join(folder, "cpu.max")).split() or [
        procfs.read_text(os.path.join(folder, "cpu.cfs_quota_us")).strip(),
        procfs.read_text(os.path.join(folder, "cpu.cfs_period_us")).strip(),
    ]
    try:
        quota, period = (int(word) for word in fields)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def ask_logind(root: str = "/") -> Optional[BoundedChild]:
    """Start to ask logind what it kills at logout; None where that spares us.

    Only processes in the scope of a session are killed, not those of a service or container. Its
    files would not do: the switch is on or off by default as the distribution has built it.
    """
    cgroups = procfs.read_text(os.path.join(root, "proc/self/cgroup"))
    if not re.search(r"/session-[^/]*\.scope(/|$)", cgroups, re.MULTILINE):
        return None
    command = ["busctl", "get-property", *LOGIND, *LOGIND_PROPERTIES]
    return BoundedChild(lambda: os.execvp(command[0], command), LOGIND_S)


def logind_kill_setting(user: str, child: Optional[BoundedChild]) -> str:
    """Return the setting by which logind would kill a run at logout (logind.conf(5)), "" for none.

    It decides by its exclusions, then by the list of users, then by the switch.
    """
    lines = child.text.splitlines() if child and child.code == 0 else []
    if len(lines) != len(LOGIND_PROPERTIES):
        return ""
    switch, included, excluded = (line.split() for line in lines)
    name = f'"{user}"'
    if name in excluded:
        return ""
    if included != ["as", "0"]:
        return f"KillOnlyUsers={user}" if name in included else ""
    return "KillUserProcesses=yes" if switch == ["b", "true"] else ""
