"""Exec requests: a command of the user on this host, its output, and the end of all it started."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import time
from typing import Any, Dict, List, Optional

from runner.core.wire.codec import Frame
from runner.core.wire.timing import KILL_TIMEOUT_S
from runner.host.agent.server import RequestHandler
from runner.host.agent.stream import Credit, Send
from runner.host.facts import setup
from runner.host.process import procfs, subreaper
from runner.host.process.bounded_child import BoundedChild, find_program, report_facts
from runner.host.process.jobs import POLL_S, in_loop
from runner.host.process.subreaper import kill_until_gone, reap_all
from runner.host.storage import environment

READ_BYTES = 64 << 10
NO_CREDIT_POLL_S = 0.005
LEFTOVER_GRACE_S = 0.5  # how long processes that the command left may go on after its end
KILL_MARGIN_S = 10.0  # beyond the time to kill, for our process above the command


class CommandRun:
    """A command below a process of ours that ends all of it, also when the agent is killed."""

    def __init__(self, argv: List[str], environ: Dict[str, str], limit_s: float) -> None:
        """Start it in the user's home; its standard input is empty."""
        self._streams: Dict[int, str] = {}  # by the descriptors of their pipes
        written: List[int] = []
        for stream in ("out", "err"):
            read_fd, write_fd = os.pipe()
            os.set_blocking(read_fd, False)
            self._streams[read_fd] = stream
            written.append(write_fd)
        body = functools.partial(
            _supervise, argv, environ, time.monotonic() + limit_s, os.getpid(), *written
        )
        end_s = KILL_TIMEOUT_S + KILL_MARGIN_S
        self._supervisor = BoundedChild(body, limit_s + end_s, kept_fds={*written})
        for write_fd in written:
            os.close(write_fd)

    def pass_on(self, credit: Credit, send: Send) -> Dict[str, Any]:
        """Send its output as far as there is credit, full pipes hold it up; return the report."""
        while self._supervisor.code is None:
            room = credit.take(READ_BYTES, wait_s=0)
            try:
                fds = [*self._streams, *self._supervisor.pipes] if room else self._supervisor.pipes
                timeout_s = POLL_S if room else NO_CREDIT_POLL_S
                ready, _, _ = select.select(fds, [], [], timeout_s)
                for fd in [fd for fd in self._streams if fd in ready]:
                    if room:
                        room -= self._read(fd, room, send)
            finally:
                credit.grant(room)
            self._supervisor.advance()
        for fd in [*self._streams]:  # the rest of the output, at most what pipes hold
            while self._read(fd, READ_BYTES, send):
                pass
        for fd in self._streams:  # others still hold the other end
            os.close(fd)
        self._streams.clear()
        if not self._supervisor.pid:
            return {"refused": self._supervisor.text}
        killed = "its supervising process was killed; parts of it may be left"
        return self._supervisor.report() or {"error": self._supervisor.text or killed}

    def kill(self) -> None:
        if self._supervisor.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor.pid, signal.SIGTERM)

    def _read(self, fd: int, most: int, send: Send) -> int:
        """Pass on what is in a pipe; return how many bytes that was."""
        try:
            data = os.read(fd, most)
        except BlockingIOError:
            return 0
        if data:
            send("data", data, file=self._streams[fd], offset=0)
        else:
            del self._streams[fd]
            os.close(fd)
        return len(data)


def _supervise(
    argv: List[str],
    environ: Dict[str, str],
    deadline: float,
    agent_pid: int,
    out_fd: int,
    err_fd: int,
) -> None:
    """Run the command, end what is left of it, and report; in a process of its own."""
    signals = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    subreaper.become_subreaper()
    try:
        command = subprocess.Popen(
            argv,
            env=environ,
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=out_fd,
            stderr=err_fd,
            start_new_session=True,
            preexec_fn=procfs.reset_process,  # noqa: PLW1509 (this process has one thread)
        )
    except OSError as error:
        report_facts(refused=f"{argv[0]}: {error.strerror}")
        return
    os.close(out_fd)
    os.close(err_fd)
    code: Optional[int] = None
    is_told = False
    try:
        while not is_told and time.monotonic() < deadline and os.getppid() == agent_pid:
            for pid, status in reap_all():
                if pid == command.pid:
                    is_signal = os.WIFSIGNALED(status)
                    code = -os.WTERMSIG(status) if is_signal else os.WEXITSTATUS(status)
                    deadline = min(deadline, time.monotonic() + LEFTOVER_GRACE_S)
            if code is not None and not subreaper.own_descendants():
                break
            received = signal.sigtimedwait(signals, POLL_S if code is None else 0.005)
            is_told = received is not None and received.si_signo == signal.SIGTERM
        timed_out = code is None and not is_told and time.monotonic() >= deadline
    finally:
        _, survivors, _ = kill_until_gone(subreaper.own_descendants, reap_all)
    if code is None:
        code = -signal.SIGKILL
    report_facts(code=code, timed_out=timed_out, survivors=list(survivors))


class Handler(RequestHandler):
    """One command at a time, in the environment that the setup lines left."""

    at_once = frozenset({"kill"})
    _command: Optional[CommandRun] = None

    def on_exec(self, frame: Frame) -> None:
        self._run(frame, list(frame.data["argv"]), self.agent.require_facts().environ)

    def on_prepare(self, frame: Frame) -> None:
        """Make the environment that the facts named, unless it is made by then."""
        result = self.agent.require_facts()
        prepare = result.prepare
        folder = result.facts.environment
        if prepare is None:
            raise ValueError("no environment was asked for with the facts")
        with environment.locked(self.agent.workdir, folder, float(frame.data["limit_s"])):
            if environment.is_made(folder):
                self.agent.answer(frame, "exited", code=0)
                return
            environment.lay_out(folder, frame.data["files"], frame.payload)
            environ = {**result.environ, **frame.data["secrets"], environment.VARIABLE: folder}
            if "/" in prepare.python:
                environ["UV_PYTHON"] = os.path.expanduser(prepare.python)
            bash = find_program("bash", environ) or "bash"
            self._run(frame, setup.make_command(folder, bash, prepare.lines), environ)

    def _run(self, frame: Frame, argv: List[str], environ: Dict[str, str]) -> None:
        def begin() -> CommandRun:
            self._command = CommandRun(argv, environ, float(frame.data["limit_s"]))
            self.agent.cache_code()
            return self._command

        command = in_loop(begin)
        answer = functools.partial(self.agent.answer, frame)
        try:
            report = command.pass_on(self.agent.credit, answer)
        except BaseException:  # the controller has left
            command.kill()
            command.pass_on(Credit(), lambda *_, **__: None)
            raise
        if "refused" in report:
            raise ValueError(report["refused"])
        answer("exited", **report)

    def on_kill(self, _: Frame) -> None:
        """End the command early, or have none begin."""
        if self._command is not None:
            self._command.kill()
        else:
            self.agent.cancel_all(ValueError("interrupted"))
