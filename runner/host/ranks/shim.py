"""Rank shim: torchrun starts it in place of a rank; it starts the rank and records how it ends.

    PYTHON -I -S rank.py ATTEMPT_FOLDER SITE HIDE[,HIDE...] PROGRAM [ARG...]

It names the rank's files by global rank, removes the variables HIDE, and ends as the rank does.
SITE is a folder to put first on the rank's PYTHONPATH, or "". RUNNER_FORK_SERVER has the socket of
a `fork_server` that forks the rank. Python reads this file: the run folder may be `noexec`.
"""

from __future__ import annotations

# The public `socket` imports what takes as long as the whole shim.
import _socket
import contextlib
import ctypes
import errno
import fcntl
import json
import os
import resource
import signal
import struct
import sys
import time
from typing import Any, Collection, Dict, List, Mapping, NoReturn, Optional, Tuple, Union

PR_SET_PDEATHSIG = 1
PR_SET_PTRACER = 0x59616D61
FORWARDED_SIGNALS = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
)
"""Those that torchrun's `--signals_to_handle`, or a scheduler, may send the ranks."""

AWAITED_SIGNALS = (*FORWARDED_SIGNALS, signal.SIGCHLD, signal.SIGIO)
CGROUP = "/sys/fs/cgroup"  # of a container, in it
MEMORY_FILES = (
    ("memory.events", "memory.max"),
    ("memory/memory.oom_control", "memory/memory.limit_in_bytes"),
)
"""What a cgroup of version 2, and one of version 1, tells of kills for memory, and its limit."""

NO_LIMIT = 1 << 60

DEBUG_RANK = "RUNNER_DEBUG_RANK"  # RANK:PORT
FORK_SERVER = "RUNNER_FORK_SERVER"
FORK_TIMEOUT_S = 120.0  # its imports may come from a cold NFS


def main(argv: List[str]) -> NoReturn:
    folder, site_folder, removed_env, *program = argv
    base = os.path.join(folder, f"rank_{os.environ['RANK']}")
    record_base = free_record_base(base)
    torch_info = membership(os.environ)
    os.environ["RUNNER_METRICS"] = f"{base}.metrics"
    fork_server = os.environ.pop(FORK_SERVER, "")
    debug_rank, _, debug_port = os.environ.pop(DEBUG_RANK, "").partition(":")
    if debug_rank == os.environ["RANK"]:
        program = debugged(program, debug_port)
        fork_server = ""
    for name, torch_name in (("NODE_RANK", "GROUP_RANK"), ("NNODES", "GROUP_WORLD_SIZE")):
        if torch_name in os.environ:
            os.environ[name] = os.environ[torch_name]
    for name in removed_env.split(","):
        os.environ.pop(name, None)
    if site_folder:
        paths = filter(None, (site_folder, os.environ.get("PYTHONPATH")))
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    # They stay blocked, so that none is lost before the rank exists; see `await_end`.
    old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED_SIGNALS)
    kills_before, _ = memory_kills()
    rank: Optional[Rank] = None
    if fork_server:
        rank = request_fork(fork_server, program, base, old_mask, site_folder)
    rank = rank or ExecutedRank(program, base, old_mask, traced=bool(site_folder))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if rank.has_begun:
        namespace = os.stat("/proc/self/ns/pid").st_ino
        pids = {"pid": rank.pid, "shim": os.getpid(), "parent": rank.parent}
        ticks = {"start_ticks": rank.start_ticks, "shim_ticks": start_ticks(os.getpid())}
        begun = {**pids, **ticks, "pid_namespace": namespace, **torch_info}
        write_json(f"{record_base}.start", begun)
    status = await_end(rank)
    signum = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = None if signum else os.WEXITSTATUS(status)
    kills, limit = memory_kills()
    ended = {
        "code": code,
        "signal": signum,
        "oom_kills": kills - kills_before,
        "memory_limit": limit,
        **(look_at_failure(f"{base}.err", program) if status else {}),
    }
    write_json(f"{record_base}.exit", ended)
    if signum:
        if signum != signal.SIGKILL:
            signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signum])
        signal.pause()
    os._exit(code or 0)


def debugged(program: List[str], port: str) -> List[str]:
    """Return a program of Python that waits for a debugger, which sees no frozen modules."""
    python, *rest = program
    options = [each for each in rest[:1] if each == "-u"]
    debugger = ["-X", "frozen_modules=off", "-m", "debugpy", "--listen", f"127.0.0.1:{port}"]
    return [python, *options, *debugger, "--wait-for-client", *rest[len(options) :]]


def free_record_base(base: str) -> str:
    """Return `base`, with a number from 2 on where this rank was started here before."""
    number = 1
    name = base
    while os.path.exists(f"{name}.start") or os.path.exists(f"{name}.exit"):
        number += 1
        name = f"{base}.{number}"
    return name


def membership(environ: Mapping[str, str]) -> Dict[str, Any]:
    info: Dict[str, Any] = {}
    for key, name in (
        ("world_size", "WORLD_SIZE"),
        ("nodes", "GROUP_WORLD_SIZE"),
        ("restarts", "TORCHELASTIC_RESTART_COUNT"),
        ("max_restarts", "TORCHELASTIC_MAX_RESTARTS"),
    ):
        if environ.get(name, "").isdigit():
            info[key] = int(environ[name])
    if "MASTER_PORT" in environ:
        info["master"] = f"{environ.get('MASTER_ADDR', '')}:{environ['MASTER_PORT']}"
    return info


def start_ticks(pid: int) -> int:
    """Return when a child began, by which it is found from outside of its PID namespace."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def memory_kills() -> Tuple[int, int]:
    """Return how often the kernel killed for memory in a container, and its limit, 0 for none."""
    for events, maximum in MEMORY_FILES:
        try:
            with open(os.path.join(CGROUP, events), encoding="ascii") as file:
                counts = dict(line.split() for line in file)
            with open(os.path.join(CGROUP, maximum), encoding="ascii") as file:
                limit = int(file.read())
            return int(counts["oom_kill"]), limit if limit < NO_LIMIT else 0
        except (OSError, ValueError, KeyError):  # "max", or another version
            continue
    return 0, 0


def await_end(rank: "Rank") -> int:
    """Return the wait status of a rank at its end; until then pass on what our parent sends us.

    TERM it gets once, and alone of its process group: its children serve it while it saves. What
    others send to all processes, as Slurm does, it gets by itself.
    """
    terminated = False
    while True:
        ended = rank.poll()
        if ended is not None:
            return ended
        received = signal.sigwaitinfo(AWAITED_SIGNALS)
        signum = received.si_signo
        is_repeated = signum == signal.SIGTERM and terminated
        if signum in FORWARDED_SIGNALS and received.si_pid == os.getppid() and not is_repeated:
            rank.send(signum)
            terminated = terminated or signum == signal.SIGTERM


def look_at_failure(log: str, program: List[str]) -> Mapping[str, Any]:
    """Return what `rank_facts` finds; {} if the run folder is gone."""
    import runpy  # noqa: PLC0415 - slow, and needed after a failure only

    try:
        functions = runpy.run_path(os.path.join(os.path.dirname(__file__), "rank_facts.py"))
        found: Mapping[str, Any] = functions["look_at_failure"](log, program)
        return found
    except (OSError, MemoryError):
        return {}


class ExecutedRank:
    """A rank as our child; its program may be of any kind."""

    def __init__(
        self, program: List[str], base: str, mask: Collection[int], *, traced: bool
    ) -> None:
        self.parent = os.getpid()
        reader, writer = os.pipe()  # closed by the exec
        self.pid = os.fork()
        if self.pid == 0:
            self._execute(program, base, mask, writer, traced=traced)
        os.close(writer)
        self.start_ticks = start_ticks(self.pid)
        self.has_begun = not os.read(reader, 1)

    def poll(self) -> Optional[int]:
        """Return its wait status, None while it runs."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        return status if pid else None

    def send(self, signum: int) -> None:
        os.kill(self.pid, signum)

    def _execute(
        self, program: List[str], base: str, mask: Collection[int], failed_fd: int, *, traced: bool
    ) -> NoReturn:
        """Execute the program, or write to `failed_fd`; it dies with its shim (prctl(2)).

        If `traced`, py-spy of the same user may read it even where Yama restricts ptrace to
        parents.
        """
        os.setpgid(0, 0)
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if traced:
            prctl(PR_SET_PTRACER, ctypes.c_ulong(-1), 0, 0, 0)
        if os.getppid() != self.parent:
            os._exit(1)
        for signum in FORWARDED_SIGNALS:
            signal.signal(signum, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise_oom_score(os.getpid())
        try:
            for target, descriptor in enumerate(open_streams(base)):
                os.dup2(descriptor, target)
            os.execvp(program[0], program)
        except OSError as error:
            os.write(failed_fd, b"1")
            reason = f"{program[0]}: {error.strerror}\n"
            if error.errno == errno.ENOENT and "/" in program[0] and os.path.exists(program[0]):
                with open(program[0], "rb") as file:
                    reason = f"{program[0]}: bad interpreter: {file.readline(99)!r}\n"
            os.write(2, reason.encode(errors="backslashreplace"))
            os._exit(127 if isinstance(error, FileNotFoundError) else 126)


class ForkedRank:
    """A rank as a child of its keeper, a fork of the server, which ends it without this shim."""

    has_begun = True

    def __init__(self, keeper: "_socket.socket", started: Mapping[str, Any]) -> None:
        self._keeper = keeper
        self.pid = int(started["pid"])
        self.parent = int(started["parent"])
        self.start_ticks = int(started["start_ticks"])
        raise_oom_score(self.pid)
        keeper.setblocking(False)
        fcntl.fcntl(keeper, fcntl.F_SETOWN, os.getpid())
        flags = fcntl.fcntl(keeper, fcntl.F_GETFL)
        fcntl.fcntl(keeper, fcntl.F_SETFL, flags | os.O_ASYNC)  # SIGIO: it has a reply

    def poll(self) -> Optional[int]:
        try:
            return int(read_reply(self._keeper)["status"])
        except BlockingIOError:
            return None
        except (OSError, ValueError):
            return int(signal.SIGKILL)

    def send(self, signum: int) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._keeper.send(bytes([signum]))


Rank = Union[ExecutedRank, ForkedRank]


def read_reply(keeper: "_socket.socket") -> Dict[str, Any]:
    """Return what a keeper says: a short line, which comes at once."""
    line = b""
    while not line.endswith(b"\n"):
        data = keeper.recv(1)
        if not data:
            raise ConnectionError
        line += data
    reply: Dict[str, Any] = json.loads(line)
    return reply


def request_fork(
    server: str, program: List[str], base: str, mask: Collection[int], site: str
) -> Optional[ForkedRank]:
    """Have the server fork the rank; return None if it does not."""
    umask = os.umask(0o077)
    os.umask(umask)
    request = {
        "program": program,
        "environ": dict(os.environ),
        "cwd": os.getcwd(),
        "umask": umask,
        "cores": sorted(os.sched_getaffinity(0)),
        "mask": sorted(mask),
        "site": site,
    }
    body = json.dumps(request).encode()
    streams = open_streams(base)
    fds = b"".join(fd.to_bytes(4, sys.byteorder) for fd in streams)
    keeper = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    keeper.settimeout(FORK_TIMEOUT_S)
    try:
        keeper.connect(b"\0" + server.encode())
        peer = keeper.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
        if struct.unpack("iII", peer)[1] != os.getuid():  # another has taken its name
            raise PermissionError
        ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fds)]
        keeper.sendmsg([len(body).to_bytes(4, "big")], ancillary)
        keeper.sendall(body)
        reply = read_reply(keeper)
    except _socket.timeout:
        reply = {"refused": f"the fork server did not answer for {FORK_TIMEOUT_S:.0f} s"}
    except (OSError, ValueError):
        reply = {"refused": "the fork server has ended"}
    rank = None if "refused" in reply else ForkedRank(keeper, reply)
    if rank is None and os.environ.get("LOCAL_RANK") == "0":  # one line of a node
        line = f"runner: task.preload: each rank imports torch itself: {reply['refused']}\n"
        with contextlib.suppress(OSError):
            os.write(streams[2], line.encode(errors="backslashreplace"))
    if rank is None:
        keeper.close()
    for descriptor in streams:
        os.close(descriptor)
    return rank


def open_streams(base: str) -> List[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    null = os.open(os.devnull, os.O_RDONLY)
    return [null, open_own(f"{base}.out", flags), open_own(f"{base}.err", flags)]


def raise_oom_score(pid: int) -> None:
    """Let the kernel kill a rank before its shim and supervisor when memory runs out."""
    path = f"/proc/{pid}/oom_score_adj"
    with contextlib.suppress(OSError, ValueError), open(path, "r+", encoding="ascii") as file:
        score = min(1000, int(file.read()) + 300)
        file.seek(0)
        file.write(str(score))


def open_own(path: str, flags: int) -> int:
    """Open a file of the run for its owner: the user of a container's image may be root."""
    descriptor = os.open(path, flags, 0o600)
    owner = os.stat(os.path.dirname(path))
    if os.getuid() == 0 and owner.st_uid != 0:
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def write_json(path: str, data: Dict[str, Any]) -> None:
    """Write one small JSON file, completely or not at all."""
    clocks = {"mono": time.monotonic(), "wall": time.time()}
    try:
        descriptor = open_own(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(descriptor, "w", encoding="ascii") as file:
            json.dump({**data, **clocks}, file)
        os.rename(f"{path}.new", path)
    except OSError as error:  # a full disk must not change how the rank ends
        sys.stderr.write(f"{path}: {error}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
