"""Processes as /proc shows them, their users, descendants and signals; and the kernel's log."""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import resource
import signal
import subprocess
from typing import AbstractSet, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from runner.core.wire import boot

_MAX_COMMAND = 100
_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|(ba|da|z)?sh|perl|ruby|node")
_DEFAULT_SIGNALS = (
    signal.SIGALRM,
    signal.SIGCHLD,
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGPIPE,
    signal.SIGTERM,
)
KMSG = "/dev/kmsg"
MAX_RECORD_BYTES = 8 << 10  # of the kernel log
MAX_RECORDS = 50_000


class Process(NamedTuple):
    """Fields of /proc/PID/stat; times in clock ticks."""

    ppid: int
    state: str
    group: int
    threads: int
    start_ticks: int
    cpu_ticks: int = 0
    page_faults: int = 0

    @property
    def alive(self) -> bool:
        """Whether it can still act; its first thread may end long before the others."""
        return self.state not in "ZX" or self.threads > 1


def table() -> Dict[int, Process]:
    found = ((int(name), read_process(name)) for name in os.listdir("/proc") if name.isdigit())
    return {pid: process for pid, process in found if process is not None}


def read_process(pid: object) -> Optional[Process]:
    """Return a process, perhaps a zombie; None for one that is gone."""
    fields: List[bytes] = []
    with contextlib.suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    if not fields:
        return None
    return Process(
        ppid=int(fields[1]),
        state=fields[0].decode(),
        group=int(fields[2]),
        threads=int(fields[17]),
        start_ticks=int(fields[19]),
        cpu_ticks=int(fields[11]) + int(fields[12]),
        page_faults=int(fields[7]) + int(fields[9]),
    )


def read_text(path: str) -> str:
    """Return the text of a small file, "" where there is none that may be read."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return file.read()
    return ""


def list_names(folder: str) -> List[str]:
    """Return the names in a folder, sorted; none where it cannot be read."""
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def descendants(root_pid: int, known_processes: Optional[Dict[int, Process]] = None) -> List[int]:
    """Return the living descendants of `root_pid`, parents first, zombies left out."""
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


def start_ticks_of(pid: int) -> int:
    """Return when a process began, in clock ticks since the boot; -1 when it is gone."""
    process = read_process(pid)
    return -1 if process is None or process.state in "ZX" else process.start_ticks


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Return whether the process that began then is there, perhaps a zombie; also if in doubt."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # or another user's by now
        return False
    return start_ticks_of(pid) in (start_ticks, -1)


def is_running(pid: int) -> bool:
    """Return whether a process is there and not a zombie."""
    return start_ticks_of(pid) >= 0


def fd_links(pid: object, root: str = "/") -> Iterator[Tuple[str, str]]:
    """Yield path and target of each open descriptor of a process; none if it is hidden or gone."""
    folder = os.path.join(root, "proc", str(pid), "fd")
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                path = os.path.join(folder, name)
                yield path, os.readlink(path)


def tagged_runs() -> Set[Tuple[str, str]]:
    """Return run id and node of every run that a living process is of, by its environment."""
    found = set()
    for pid, process in table().items():
        if process.alive and pid != os.getpid():
            entries = (entry.partition("=") for entry in _environment(pid, process))
            values = {name: value for name, _, value in entries}
            found.add((values.get("RUNNER_RUN_ID", ""), values.get("RUNNER_NODE", "")))
    return found


def env_tags(run_id: str, node: str) -> Set[str]:
    """Return the entries of the environment by which processes of a run are found."""
    return {f"RUNNER_RUN_ID={run_id}", f"RUNNER_NODE={node}"}


def has_env(pid: int, env_tags: AbstractSet[str], process: Optional[Process] = None) -> bool:
    """Return whether the environment of a process at its last exec has all `env_tags`.

    Of a `process` whose first thread has ended, the environment is read from another thread.
    """
    return env_tags <= set(_environment(pid, process))


def _environment(pid: int, process: Optional[Process]) -> List[str]:
    text = read_text(f"/proc/{pid}/environ")
    if process is not None and process.state in "ZX":
        for thread in list_names(f"/proc/{pid}/task"):
            text = text or read_text(f"/proc/{pid}/task/{thread}/environ")
    return text.split("\0")


def login_name() -> str:
    """Return our login name; the environment has it without asking a directory service."""
    return os.environ.get("LOGNAME") or os.environ.get("USER") or user_name(os.getuid())


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
    """Return the program of a process, and the script of an interpreter; "" when they are hidden.

    The rest of its command line is left out: it may hold secrets.
    """
    folder = os.path.join(root, "proc", str(pid))
    args = read_text(os.path.join(folder, "cmdline")).split("\0")[:-1]
    if not args:
        return read_text(os.path.join(folder, "comm")).strip()
    shown = [os.path.basename(args[0])]
    for word in args[1:] if _INTERPRETER.fullmatch(shown[0]) else ():
        if word in ("-c", "-e"):
            break
        shown.append(word)
        if not word.startswith("-"):
            break
    return " ".join(shown)[:_MAX_COMMAND]


def read_kernel_log(log: str) -> Iterator[Tuple[float, str]]:
    """Yield the monotonic time and the text of each line, as far as the log may be read.

    A record looks like `3,512,1239866964,-;Out of memory: Killed process 7 …`: level, number and
    microseconds, a flag, and the text.
    """
    try:
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return
    try:
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(descriptor, MAX_RECORD_BYTES).decode(errors="replace")
            except BrokenPipeError:  # the kernel overwrote the record
                continue
            except OSError:
                break
            if not record:
                break
            for line in record.splitlines():
                head, _, text = line.partition(";")
                fields = head.split(",")
                if len(fields) > 2 and fields[2].isdigit():
                    yield int(fields[2]) / 1e6, text
    finally:
        os.close(descriptor)


def signal_all(pids: Iterable[int], signum: int) -> Set[int]:
    """Signal every process of `pids` that is still there; return those that were signalled."""
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
    """Set the result of a reaped child (`Popen.wait` would see success); return code or signal."""
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if signum else os.WEXITSTATUS(status)
    process.returncode = -signum if signum else code
    return code, signum


def close_fds_except(kept_fds: AbstractSet[int]) -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in kept_fds:
            with contextlib.suppress(OSError):
                os.close(fd)


def reset_process() -> None:
    """Give a new process what its parent has changed: signals, and the limit of descriptors."""
    for signum in _DEFAULT_SIGNALS:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    resource.setrlimit(resource.RLIMIT_NOFILE, boot.inherited())
