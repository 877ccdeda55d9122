"""What this machine offers a process of ours: cores, folders, limits; and who else runs on it."""

from __future__ import annotations

import functools
import os
import pwd
import resource
from dataclasses import replace
from typing import Any, Dict, Optional

from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.core.model.hardware import Busy
from runner.host.process import bounded_child, cgroup, procfs
from runner.host.storage import release_store

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
}
_COMMAND_LENGTH = 100
_TICKS = os.sysconf("SC_CLK_TCK")

BUSY_CORES = 0.5
"""Who took fewer over its life is not worth a name."""


def absolute(path: str, home: str) -> str:
    """Return `path` from the root; a leading `~/` is `home`."""
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(os.path.join(home, path[2:]))
    try:
        return os.path.abspath(path)
    except OSError:  # our working directory was deleted
        return os.path.normpath(os.path.join(home, path))


def limits() -> Dict[str, int]:
    """Return the soft limits; -1 is unlimited."""
    soft = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    return {name: -1 if v == resource.RLIM_INFINITY else v for name, v in soft.items()}


def user() -> str:
    """Return our login name; the environment knows it without a directory service."""
    return os.environ.get("LOGNAME") or os.environ.get("USER") or _login(os.getuid())


def user_name(uid: int) -> str:
    """Return the login name of a user, the number where there is none."""
    return _login(uid)


def owner(pid: int) -> str:
    """Return the login name a process runs under, "" when it is hidden."""
    try:
        return _login(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def command(pid: int, root: str = "/") -> str:
    """Return program and script of a process, "" when they are hidden.

    No more of its command line: what follows may hold somebody's secrets.
    """
    folder = os.path.join(root, "proc", str(pid))
    words = procfs.read_text(os.path.join(folder, "cmdline")).split("\0")[:-1]
    if not words:
        return procfs.read_text(os.path.join(folder, "comm")).strip()
    shown = [os.path.basename(words[0])]
    for word in words[1:]:
        if word == "-c":
            break
        shown.append(word)
        if not word.startswith("-"):
            break
    return " ".join(shown)[:_COMMAND_LENGTH]


def cores(affinity: int, root: str = "/") -> int:
    """Return how many cores a process of ours gets: its affinity, cut by the quotas of its cgroups.

    A quota binds all cgroups below its own, so every one from ours to the top of the mount counts.
    """
    quotas = [_quota(folder) for folder in cgroup.up_the_tree("cpu", root)]
    return max(1, int(min([affinity, *filter(None, quotas)])))


def busiest(root: str = "/") -> Optional[Busy]:
    """Return who runs right now and took most cores over its life, us left out; None for nobody.

    That is what `ps` calls %CPU: one look is enough, and a process that began a minute ago to do
    little else stands out.
    """
    up = procfs.read_text(os.path.join(root, "proc/uptime")).split()
    found = Busy(0, BUSY_CORES)
    for name in os.listdir(os.path.join(root, "proc")):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        words = (
            procfs.read_text(os.path.join(root, "proc", name, "stat")).rpartition(")")[2].split()
        )
        if len(words) < 20 or words[0] not in "RD" or not up:
            continue
        age = float(up[0]) - int(words[19]) / _TICKS
        cores = (int(words[11]) + int(words[12])) / _TICKS / max(age, 1.0)
        if cores > found.cores:
            found = Busy(int(name), round(cores, 1))
    if not found.pid:
        return None
    return replace(found, user=owner(found.pid), command=command(found.pid, root))


def survey(request: FactsRequest, home: str) -> bounded_child.Child:
    """Look at the folders of a run, in a child: any of them may be on a dead network disk."""
    return bounded_child.Child(functools.partial(_survey, request, home), request.deadline_s)


def surveyed(child: bounded_child.Child, request: FactsRequest) -> Dict[str, Any]:
    """Return the fields of Facts that `survey` could fill."""
    told = child.told()
    if told.get("busiest"):
        told["busiest"] = decode(Busy, told["busiest"])
    if "workdir_error" not in told:
        why = f"no answer within {child.limit_s:g} s" if child.late else child.text
        told["workdir_error"] = f"looking at {request.workdir}: {why}"
    return told


def writable(path: str) -> str:
    """Return why no file can be written below `path`, "" if it can; nothing is tried out."""
    parent = _existing(path)
    if not os.path.exists(parent):
        return f"{parent} is a link to nothing"
    if not os.path.isdir(parent):
        return f"{parent} is a file, not a folder"
    if os.statvfs(parent).f_flag & os.ST_RDONLY:
        return f"{parent} is on a read-only file system"
    if not os.access(parent, os.W_OK | os.X_OK):
        return f"no permission to write in {parent}"
    return ""


def _survey(request: FactsRequest, home: str) -> None:
    bounded_child.tell(shm_free=_free("/dev/shm"))
    workdir = absolute(request.workdir, home)
    tasks = os.path.join(workdir, "tasks", request.tasks_hash)
    bounded_child.tell(
        workdir_error=writable(workdir),
        disk_free=_free(_existing(workdir)),
        tasks_held=bool(request.tasks_hash) and os.path.isdir(tasks),
    )
    if request.release:
        bounded_child.tell(release_held=release_store.held(workdir, request.release))
    project = absolute(request.project, home)
    if request.project:
        bounded_child.tell(project_exists=os.path.isdir(project))
    if request.script:
        script = absolute(os.path.join(project, request.script), home)
        bounded_child.tell(script_exists=os.path.isfile(script))
    if request.release and request.thorough:  # last, since it may take its time
        bounded_child.tell(release=release_store.condition(workdir, request.release))
    if request.thorough:
        bounded_child.tell(busiest=encode(busiest()))


def _existing(path: str) -> str:
    """Return the nearest parent of `path` that is there, even as a dangling link."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _free(path: str) -> Optional[int]:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _quota(folder: str) -> Optional[float]:
    """Return the cores a cgroup may use on average, None for no limit."""
    words = procfs.read_text(os.path.join(folder, "cpu.max")).split() or [
        procfs.read_text(os.path.join(folder, "cpu.cfs_quota_us")).strip(),
        procfs.read_text(os.path.join(folder, "cpu.cfs_period_us")).strip(),
    ]
    try:
        quota, period = (int(word) for word in words)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
