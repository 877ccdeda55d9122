"""Worker process: a forked child that answers one question after the other, for what may hang.

It is forked once. A question is one byte, an answer is one line; the parent never waits for it.
It ends with its parent: by the kernel's signal, at the end of the pipe, and by an alarm while it
works on an answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import Callable, FrozenSet, NoReturn, Optional

from runner.host.process import bounded_child, procfs, subreaper

MAX_ANSWER = 1 << 20  # bytes
_READ_BYTES = 64 << 10
_ASK = b"?"
_KILL_TRIES, _KILL_PAUSE_S = 20, 0.005


class WorkerProcess:
    """The process, while it lasts; `problem` says why it is of no more use.

    Attributes:
        pid: The process; 0 if it could not be started.
        problem: "" while it answers in time.
        is_late: Whether it did not, which is its problem.
    """

    def __init__(self, answer: Callable[[], bytes], limit_s: float) -> None:
        """Fork a process that calls `answer` whenever it is asked; it has `limit_s` for each."""
        self.pid = 0
        self.problem = ""
        self.is_late = False
        self._limit_s = limit_s
        self._asked_at = 0.0
        self._code: Optional[int] = None
        self._received: Optional[bytes] = None  # None unless an answer is awaited
        self._ask_fd = self._answer_fd = -1
        try:
            self._fork(answer)
        except OSError as error:
            self.problem = f"cannot be started: {error.strerror}"

    @property
    def is_asked(self) -> bool:
        """Whether an answer is awaited."""
        return self._received is not None

    @property
    def running_pids(self) -> FrozenSet[int]:
        """Its process, as long as that is there: one that hangs in the kernel outlives SIGKILL."""
        if self.pid and not self._is_gone():
            return frozenset((self.pid,))
        return frozenset()

    def ask(self) -> None:
        """Ask, unless an answer is awaited."""
        if self.problem or self.is_asked:
            return
        self._received = b""
        self._asked_at = time.monotonic()
        try:
            os.write(self._ask_fd, _ASK)
        except OSError:  # it has ended
            self._give_up("")

    def poll(self) -> Optional[bytes]:
        """Return the answer once it is there; without one in time, the child is given up."""
        while self._received is not None:
            try:
                chunk = os.read(self._answer_fd, _READ_BYTES)
            except BlockingIOError:
                self.is_late = time.monotonic() - self._asked_at > self._limit_s
                if self.is_late:
                    self._give_up(f"did not answer within {self._limit_s:g} s")
                return None
            self._received += chunk
            if not chunk:
                self._give_up("")
            elif len(self._received) > MAX_ANSWER:
                self._give_up("answered at too great length")
            elif self._received.endswith(b"\n"):
                answer, self._received = self._received, None
                return answer
        return None

    def close(self) -> None:
        """End it; one that hangs in the kernel is not waited for."""
        if self._ask_fd >= 0:
            self._give_up("was ended")

    def _give_up(self, reason: str) -> None:
        """Kill it, and note why: with its exit status unless there is a `reason`."""
        self._received = None
        for descriptor in (self._ask_fd, self._answer_fd):
            os.close(descriptor)
        self._ask_fd = self._answer_fd = -1
        if not self._is_gone():  # else its number may be another's
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
        for _ in range(_KILL_TRIES):
            if self._is_gone():
                break
            time.sleep(_KILL_PAUSE_S)
        ended = f"was ended by signal {-self._code}" if self._code else "ended"
        self.problem = reason or ended

    def _is_gone(self) -> bool:
        if self.pid:
            self._code = subreaper.exit_code(self.pid)
            if self._code is not None:
                self.pid = 0
        return not self.pid

    def _fork(self, answer: Callable[[], bytes]) -> None:
        parent_pid = os.getpid()
        ask_read_fd, ask_fd = os.pipe()
        theirs, ours = [ask_read_fd], [ask_fd]
        try:
            answer_fd, answer_write_fd = os.pipe()
            theirs, ours = [*theirs, answer_write_fd], [*ours, answer_fd]
            self.pid = subreaper.fork()
            if self.pid == 0:
                _run_child(answer, ask_read_fd, answer_write_fd, parent_pid, self._limit_s)
        except OSError:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        for descriptor in ours:
            os.set_blocking(descriptor, False)
        self._ask_fd = ask_fd
        self._answer_fd = answer_fd


def _run_child(
    answer: Callable[[], bytes], ask_fd: int, answer_fd: int, parent_pid: int, limit_s: float
) -> NoReturn:
    try:
        subreaper.die_with_parent(signal.SIGKILL)
        os.setsid()
        null_fd = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):  # a log on a disk that hangs, or a channel of an agent
            os.dup2(null_fd, stream)
        bounded_child.close_inherited({ask_fd, answer_fd})
        procfs.reset_process()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        while os.getppid() == parent_pid and os.read(ask_fd, 1):
            signal.setitimer(signal.ITIMER_REAL, limit_s + 1)
            line = answer()
            signal.setitimer(signal.ITIMER_REAL, 0)
            while line:
                line = line[os.write(answer_fd, line) :]
    finally:
        os._exit(0)  # nothing may reach the parent's code
