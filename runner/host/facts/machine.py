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
from runner.core.model.hardware import TopProcess
from runner.host.process import bounded_child, cgroup, procfs
from runner.host.storage import release_store

_LIMITS = {
    "nofile": resource.RLIMIT_NOFILE,
    "memlock": resource.RLIMIT_MEMLOCK,
    "nproc": resource.RLIMIT_NPROC,
}
_MAX_COMMAND = 100
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")

MIN_TOP_CORES = 0.5
"""Who took fewer over its life is not worth a name."""


def absolute(path: str, home: str) -> str:
    """Return `path` from the root; a leading `~/` is `home`."""
    if path == "~" or path.startswith("~/"):
        return os.path.normpath(os.path.join(home, path[2:]))
    try:
        return os.path.abspath(path)
    except OSError:  # our working directory was deleted
        return os.path.normpath(os.path.join(home, path))


def soft_limits() -> Dict[str, int]:
    """Return the soft limits; -1 is unlimited."""
    soft = {name: resource.getrlimit(number)[0] for name, number in _LIMITS.items()}
    return {name: -1 if v == resource.RLIM_INFINITY else v for name, v in soft.items()}


def login_name() -> str:
    """Return our login name; the environment knows it without a directory service."""
    return os.environ.get("LOGNAME") or os.environ.get("USER") or _name_of_uid(os.getuid())


def user_name(uid: int) -> str:
    """Return the login name of a user, the number where there is none."""
    return _name_of_uid(uid)


def process_owner(pid: int) -> str:
    """Return the login name a process runs under, "" when it is hidden."""
    try:
        return _name_of_uid(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""


def process_command(pid: int, root: str = "/") -> str:
    """Return program and script of a process, "" when they are hidden.

    No more of its command line: what follows may hold somebody's secrets.
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


def usable_cores(affinity: int, root: str = "/") -> int:
    """Return how many cores a process of ours gets: its affinity, cut by the quotas of its cgroups.

    A quota binds all cgroups below its own, so every one from ours to the top of the mount counts.
    """
    quotas = [_cpu_quota(folder) for folder in cgroup.ancestors("cpu", root)]
    return max(1, int(min([affinity, *filter(None, quotas)])))


def top_process(root: str = "/") -> Optional[TopProcess]:
    """Return who runs right now and took most cores over its life, us left out; None for nobody.

    That is what `ps` calls %CPU: one look is enough, and a process that began a minute ago to do
    little else stands out.
    """
    uptime = procfs.read_text(os.path.join(root, "proc/uptime")).split()
    top = TopProcess(0, MIN_TOP_CORES)
    for name in os.listdir(os.path.join(root, "proc")):
        if not name.isdigit() or int(name) in (os.getpid(), os.getppid()):
            continue
        fields = (
            procfs.read_text(os.path.join(root, "proc", name, "stat")).rpartition(")")[2].split()
        )
        if len(fields) < 20 or fields[0] not in "RD" or not uptime:
            continue
        age = float(uptime[0]) - int(fields[19]) / _TICKS_PER_S
        cores = (int(fields[11]) + int(fields[12])) / _TICKS_PER_S / max(age, 1.0)
        if cores > top.cores:
            top = TopProcess(int(name), round(cores, 1))
    if not top.pid:
        return None
    return replace(top, user=process_owner(top.pid), command=process_command(top.pid, root))


def start_survey(request: FactsRequest, home: str) -> bounded_child.BoundedChild:
    """Look at the folders of a run, in a child: any of them may be on a dead network disk."""
    return bounded_child.BoundedChild(
        functools.partial(_survey, request, home), request.tool_timeout_s
    )


def survey_result(child: bounded_child.BoundedChild, request: FactsRequest) -> Dict[str, Any]:
    """Return the fields of Facts that `start_survey` could fill."""
    report = child.report()
    if report.get("top_process"):
        report["top_process"] = decode(TopProcess, report["top_process"])
    if "workdir_error" not in report:
        reason = f"no answer within {child.limit_s:g} s" if child.timed_out else child.text
        report["workdir_error"] = f"looking at {request.workdir}: {reason}"
    return report


def unwritable_reason(path: str) -> str:
    """Return why no file can be written below `path`, "" if it can; nothing is tried out."""
    parent = _nearest_existing(path)
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
    bounded_child.report_facts(shm_free=_free_bytes("/dev/shm"))
    workdir = absolute(request.workdir, home)
    tasks = os.path.join(workdir, "tasks", request.tasks_hash)
    bounded_child.report_facts(
        workdir_error=unwritable_reason(workdir),
        disk_free=_free_bytes(_nearest_existing(workdir)),
        has_tasks=bool(request.tasks_hash) and os.path.isdir(tasks),
    )
    if request.release:
        bounded_child.report_facts(has_release=release_store.is_intact(workdir, request.release))
    project = absolute(request.project, home)
    if request.project:
        bounded_child.report_facts(project_exists=os.path.isdir(project))
    if request.script:
        script = absolute(os.path.join(project, request.script), home)
        bounded_child.report_facts(script_exists=os.path.isfile(script))
    if request.release and request.thorough:  # last, since it may take its time
        bounded_child.report_facts(
            release_state=release_store.check_intact(workdir, request.release)
        )
    if request.thorough:
        bounded_child.report_facts(top_process=encode(top_process()))


def _nearest_existing(path: str) -> str:
    """Return the nearest parent of `path` that is there, even as a dangling link."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    return path


def _free_bytes(path: str) -> Optional[int]:
    try:
        disk = os.statvfs(path)
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def _cpu_quota(folder: str) -> Optional[float]:
    """Return the cores a cgroup may use on average, None for no limit."""
    fields = procfs.read_text(os.path.join(folder, "cpu.max")).split() or [
        procfs.read_text(os.path.join(folder, "cpu.cfs_quota_us")).strip(),
        procfs.read_text(os.path.join(folder, "cpu.cfs_period_us")).strip(),
    ]
    try:
        quota, period = (int(word) for word in fields)
    except ValueError:
        return None
    return quota / period if quota > 0 and period > 0 else None


def _name_of_uid(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
