"""Processes as /proc shows them: who descends from whom, and who is still there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
from typing import AbstractSet, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """Of /proc/PID/stat: parent, state, session, threads; start, CPU in ticks; page faults."""

    ppid: int
    state: str
    session: int
    threads: int
    start_ticks: int
    cpu_ticks: int = 0
    page_faults: int = 0

    @property
    def alive(self) -> bool:
        """Whether it can still do something; a first thread may end long before the others."""
        return self.state not in "ZX" or self.threads > 1


def table() -> Dict[int, Process]:
    """Return every process that can be seen, by pid."""
    processes = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue
        ppid, session, threads, start_ticks = (int(fields[n]) for n in (1, 3, 17, 19))
        cpu_ticks, page_faults = (int(fields[n]) + int(fields[m]) for n, m in ((11, 12), (7, 9)))
        state = fields[0].decode()
        processes[int(name)] = Process(
            ppid, state, session, threads, start_ticks, cpu_ticks, page_faults
        )
    return processes


def read_text(path: str) -> str:
    """Return what a file of the kernel's says, "" where there is none that may be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def list_names(folder: str) -> List[str]:
    """Return the names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def descendants(root_pid: int, known_processes: Optional[Dict[int, Process]] = None) -> List[int]:
    """Return the living descendants of `root_pid`, parents first; zombies are not alive."""
    processes = table() if known_processes is None else known_processes
    children: Dict[int, List[int]] = {}
    for pid, process in processes.items():
        children.setdefault(process.ppid, []).append(pid)
    living: List[int] = []
    queue = [root_pid]
    while queue:
        for child in children.get(queue.pop(), ()):
            queue.append(child)
            if processes[child].alive:
                living.append(child)
    return living


def no_children_left() -> bool:
    """Whether we have no child, alive or not: for a subreaper that is, no descendant.

    Unlike a walk through /proc it cannot miss one that forks and ends between two looks.
    """
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return True
    return False


def child_pids() -> List[int]:
    """Return our own children, as the kernel lists them at once; none where it does not."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def start_ticks_of(pid: int) -> int:
    """Return when a process began, in clock ticks since the boot; -1 when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return -1
    return -1 if fields[0] in (b"Z", b"X") else int(fields[19])


def is_running(pid: int) -> bool:
    """Whether a process is there, and no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def recent_pids(count: int) -> List[int]:
    """Return the pids that were given out last, the newest first; not all of them may be there."""
    with open("/proc/loadavg", encoding="ascii") as file:
        last = int(file.read().split()[-1])
    return list(range(last, max(1, last - count), -1))


def with_env(env_tags: AbstractSet[str]) -> List[int]:
    """Return the living processes whose environment holds all `env_tags` (NAME=value), but ours."""
    return [
        pid
        for pid, process in table().items()
        if pid != os.getpid() and process.alive and has_env(pid, process, env_tags)
    ]


def has_env(pid: int, process: Process, env_tags: AbstractSet[str]) -> bool:
    """Whether the environment of a process, as it was at its last exec, holds all `env_tags`."""
    wanted_tags = {tag.encode() for tag in env_tags}
    variables = _read_environ(f"/proc/{pid}/environ")
    if process.state in "ZX":  # its first thread ended, and took this view of the memory along
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{pid}/task"):
                variables = variables or _read_environ(f"/proc/{pid}/task/{thread}/environ")
    return wanted_tags.issubset(variables.split(b"\0"))


def pid_has_env(pid: int, env_tags: AbstractSet[str]) -> bool:
    """Whether the environment of a process holds all `env_tags`; False for one that is gone."""
    return {tag.encode() for tag in env_tags}.issubset(
        _read_environ(f"/proc/{pid}/environ").split(b"\0")
    )


def _read_environ(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def signal_all(pids: Iterable[int], signum: int) -> Set[int]:
    """Signal every process of `pids` that is still there; return those that got it."""
    signalled = set()
    for pid in pids:
        try:
            os.kill(pid, signum)
            signalled.add(pid)
        except (ProcessLookupError, PermissionError):
            continue
    return signalled


def record_exit(
    process: subprocess.Popen[bytes], status: int
) -> Tuple[Optional[int], Optional[int]]:
    """Take it that somebody else reaped a child, which would read as success later.

    Returns:
        Its exit code, or the signal that ended it.
    """
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if signum else os.WEXITSTATUS(status)
    process.returncode = -signum if signum else code
    return code, signum


def close_fds_except(kept_fds: AbstractSet[int]) -> None:
    """Close every descriptor of this process but `kept_fds` and the standard streams."""
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept_fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def become_subreaper() -> None:
    """Make orphaned descendants ours, so that none escapes by a double fork."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(signum: int = signal.SIGKILL) -> None:
    """Ask the kernel for `signum` when the parent ends (since Linux 2.1.57, prctl(2))."""
    _prctl(PR_SET_PDEATHSIG, int(signum))


_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
