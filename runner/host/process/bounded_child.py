"""Bounded child: a forked process with a deadline, for whatever may hang on a host.

`subprocess` would wait until a program on a dead disk is executed; here the parent reads pipes.
"""

from __future__ import annotations

import functools
import json
import os
import select
import signal
import time
from contextlib import suppress
from typing import AbstractSet, Any, Callable, Dict, List, Optional, Sequence, Tuple

from runner.host.process import procfs
from runner.host.process.jobs import checkpoint, in_loop

REPORT_FD = 100  # the descriptor on which a child reports, apart from what it or others print
MAX_OUTPUT = 8 << 10  # bytes of a child's output that are kept, from its end
_READ_BYTES = 64 << 10
_PIPE_BYTES = 1 << 20
_POLL_MS = 20
_EXIT_FAILED = 126
_KILL_S = 0.1

_statuses: Dict[int, Optional[int]] = {}  # wait statuses of children, whoever reaps them


class BoundedChild:
    """A process of ours in a session of its own; its standard input is empty or `input_fd`.

    Attributes:
        output: The end of its output, at most `MAX_OUTPUT` bytes.
        code: Its exit code, or minus the signal that ended it; None while it runs.
        pid: Its process, and its group; 0 if it could not be started.
        pipes: The descriptors to read from; fewer once it has closed its ends.
    """

    def __init__(
        self,
        body: Callable[[], object],
        limit_s: float,
        input_fd: int = -1,
        kept_fds: AbstractSet[int] = frozenset(),
    ) -> None:
        """Run `body` in a child; it may also replace itself by a program (exec).

        Import before what it needs: it would wait for ever for a module that another thread was
        importing at the fork.
        """
        self.output = b""
        self.raw_report = b""
        self.code: Optional[int] = None
        self.timed_out = False
        self.limit_s = limit_s
        self._deadline = time.monotonic() + limit_s
        self.pipes: Tuple[int, ...] = ()
        self.pid = 0
        ends: List[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            written = (ends[1], ends[3])
            self.pid = in_loop(functools.partial(_fork, body, limit_s, input_fd, written, kept_fds))
        except BaseException as error:
            for end in ends:
                os.close(end)
            if not isinstance(error, OSError):
                raise
            self.output = f"cannot start a process: {error.strerror}".encode()
            self.code = _EXIT_FAILED
            return
        for end in written:
            os.close(end)
        self.pipes = (ends[0], ends[2])
        for pipe in self.pipes:
            os.set_blocking(pipe, False)
        self._output_fd = ends[0]

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").strip()

    def report(self) -> Dict[str, Any]:
        """Return what it reported with `report_facts`; the last value of each key counts."""
        merged: Dict[str, Any] = {}
        for line in self.raw_report.split(b"\n")[:-1]:
            merged.update(json.loads(line))
        return merged

    def kill(self) -> None:
        """End it and its process group, soon: if it hangs in the kernel, it is not waited for."""
        if self.code is not None:
            return
        gives_up_at = time.monotonic() + _KILL_S
        code = self._exit_code()
        while code is None and time.monotonic() < gives_up_at:  # its number is not another's
            for send in (os.killpg, os.kill):  # before its setsid the group does not exist
                with suppress(OSError):
                    send(self.pid, signal.SIGKILL)
            time.sleep(0.005)
            code = self._exit_code()
        self._close(-signal.SIGKILL if code is None else code)

    def _exit_code(self) -> Optional[int]:
        """Return, once, its exit code or minus its signal; None while it runs."""
        status = _statuses[self.pid]
        if status is None:
            ended_pid, status = os.waitpid(self.pid, os.WNOHANG)
            if not ended_pid:
                return None
        del _statuses[self.pid]
        return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def advance(self) -> None:
        """Read its output, notice its end, and kill it if its time is up."""
        if self.code is not None:
            return
        for pipe in self.pipes:
            self._read(pipe)
        code = self._exit_code()
        if code is not None:
            for pipe in self.pipes * (_PIPE_BYTES // _READ_BYTES):  # the rest of their content
                self._read(pipe)
            self._close(code)
        elif time.monotonic() > self._deadline:
            self.timed_out = True
            self.kill()

    def _read(self, pipe: int) -> None:
        if pipe not in self.pipes:
            return
        try:
            chunk = os.read(pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if pipe == self._output_fd:
            self.output = (self.output + chunk)[-MAX_OUTPUT:]
        else:
            self.raw_report += chunk
        if not chunk:
            os.close(pipe)
            self.pipes = tuple(other for other in self.pipes if other != pipe)

    def _close(self, code: int) -> None:
        for pipe in self.pipes:
            os.close(pipe)
        self.pipes = ()
        self.code = code


def wait_all(children: Sequence[BoundedChild], also_read: Sequence[BoundedChild] = ()) -> None:
    """Wait until all `children` have ended; `also_read` are read from meanwhile.

    The kernel tells that a child has ended, not its pipes: processes that it left in the
    background may hold them open.
    """
    while any(child.code is None for child in children):
        running = [child for child in (*children, *also_read) if child.code is None]
        poll = select.poll()
        pipes = [pipe for child in running for pipe in child.pipes]
        for pipe in pipes:
            poll.register(pipe, select.POLLIN)
        poll.poll(_POLL_MS if all(child.pipes for child in running) else 1)
        for child in running:
            child.advance()
        checkpoint()


def report_facts(**facts: Any) -> None:
    """Report `facts` from within a child; they are known even if the child hangs later."""
    os.write(REPORT_FD, json.dumps(facts).encode() + b"\n")


def find_program(program: str, environ: Dict[str, str]) -> str:
    """Return the path of `program` on the PATH of `environ`, "" when it is not there."""
    for folder in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.access(path, os.X_OK) and not os.path.isdir(path):
            return path
    return ""  # `shutil.which` would load eight modules, on hosts that may have them on slow NFS


def chdir_if_exists(folder: str) -> None:
    with suppress(OSError):
        os.chdir(folder)


def on_reaped(pid: int, status: int) -> None:
    """Note how a child of this process ended, if it is a bounded one."""
    if pid in _statuses:
        _statuses[pid] = status


def _fork(
    body: Callable[[], object],
    limit_s: float,
    input_fd: int,
    written: Tuple[int, int],
    kept_fds: AbstractSet[int],
) -> int:
    pid = os.fork()
    if pid:
        _statuses[pid] = None
        return pid
    code = _EXIT_FAILED
    output_fd, report_fd = written
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY) if input_fd < 0 else input_fd, 0)
        os.dup2(output_fd, 1)
        os.dup2(output_fd, 2)
        os.dup2(report_fd, REPORT_FD)
        for fd in (1, 2, REPORT_FD):  # dup2 did not, if a pipe had this number from the start
            os.set_inheritable(fd, True)
        os.setsid()
        procfs.close_fds_except({REPORT_FD, *kept_fds})  # a hung child keeps no connection open
        procfs.reset_process()
        # An alarm survives exec: if the parent is killed, the child still ends in time.
        signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
        body()
        code = 0
    except BaseException as error:  # noqa: BLE001 - nothing may reach the parent's code
        os.write(2, str(error).encode(errors="replace"))
    finally:
        os._exit(code)
