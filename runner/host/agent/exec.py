"""Exec requests: a command of the user on this host, its output, and the end of all it started."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import time
import traceback
from typing import Any, Dict, List, NoReturn, Optional

from runner.core.wire.codec import Frame
from runner.host.agent.server import RequestHandler
from runner.host.agent.stream import Credit, Send
from runner.host.facts import setup
from runner.host.process import bounded_child, procfs, subreaper
from runner.host.process.event_loop import EventLoop
from runner.host.process.jobs import POLL_S, in_loop
from runner.host.process.kill import kill_until_gone
from runner.host.process.subreaper import reap_all
from runner.host.storage import environment

READ_BYTES = 64 << 10
POLL_INTERVAL_S = 0.05
NO_CREDIT_POLL_S = 0.005
LEFTOVER_GRACE_S = 0.5  # how long processes that the command left may go on after its end


class CommandRun:
    """A command below a process of ours that ends all of it, also when the agent is killed."""

    def __init__(self, argv: List[str], environ: Dict[str, str], limit_s: float) -> None:
        """Start it in the user's home, or raise OSError; its standard input is empty."""
        self._offsets = {"out": 0, "err": 0}
        self._report = b""
        self._ended = False
        pipes = {name: os.pipe() for name in ("out", "err", "report")}
        self._supervisor_pid = os.fork()
        if self._supervisor_pid == 0:
            child_fds = {name: ends[1] for name, ends in pipes.items()}
            _supervise(argv, environ, time.monotonic() + limit_s, child_fds)
        self._fds: Dict[str, int] = {}
        for name, (read_fd, write_fd) in pipes.items():
            os.close(write_fd)
            os.set_blocking(read_fd, False)
            self._fds[name] = read_fd

    def pass_on(self, credit: Credit, send: Send) -> Dict[str, Any]:
        """Send its output as far as there is credit, full pipes hold it up; return the report."""
        while "report" in self._fds:
            room = credit.take(READ_BYTES, wait_s=0)
            sent = 0
            try:
                names = [name for name in self._fds if room or name == "report"]
                timeout_s = POLL_S if room else NO_CREDIT_POLL_S
                ready, _, _ = select.select([self._fds[name] for name in names], [], [], timeout_s)
                for name in names:
                    if self._fds[name] in ready and (name == "report" or sent < room):
                        sent += self._read(name, room - sent, send)
            finally:
                credit.grant(room - sent)
        for name in [*self._fds]:  # the rest of the output, at most what pipes hold
            while name in self._fds and self._read(name, READ_BYTES, send):
                pass
        self._ended = True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._supervisor_pid, 0)
        try:
            report: Dict[str, Any] = json.loads(self._report)
        except ValueError:
            return {"error": "its supervising process was killed; parts of it may be left"}
        return report

    def kill(self) -> None:
        """End all of it now; the report follows."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._supervisor_pid, signal.SIGTERM)

    def _read(self, name: str, most: int, send: Send) -> int:
        """Take what is in a pipe; return how many bytes of output that was."""
        try:
            data = os.read(self._fds[name], READ_BYTES if name == "report" else most)
        except BlockingIOError:
            return 0
        if not data:
            os.close(self._fds.pop(name))
        elif name == "report":
            self._report += data
        else:
            send("data", data, file=name, offset=self._offsets[name])
            self._offsets[name] += len(data)
            return len(data)
        return 0


def _supervise(
    argv: List[str], environ: Dict[str, str], deadline: float, pipes: Dict[str, int]
) -> NoReturn:
    """Run the command, end what is left of it, report and exit; in a process of its own."""
    agent_pid = os.getppid()
    report: Dict[str, Any] = {}
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        procfs.close_fds_except({null, *pipes.values()})  # the agent's connection ends with it
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        loop = EventLoop()
        loop.open()
        subreaper.become_subreaper()
        report = _run(argv, environ, pipes, loop, agent_pid, deadline)
    except OSError as error:
        report = {"error": f"cannot start {argv[0]}: {error.strerror}"}
    except BaseException:  # noqa: BLE001 (the controller must hear of it, whatever it is)
        report = {"error": traceback.format_exc()}
    try:
        gone = subreaper.no_children_left
        _, survivors = kill_until_gone(subreaper.own_descendants, reap_all, all_gone=gone)
        os.write(pipes["report"], json.dumps({**report, "survivors": list(survivors)}).encode())
    finally:
        os._exit(0)


def _run(
    argv: List[str],
    environ: Dict[str, str],
    pipes: Dict[str, int],
    loop: EventLoop,
    agent_pid: int,
    deadline: float,
) -> Dict[str, Any]:
    command = subprocess.Popen(
        argv,
        env=environ,
        cwd=os.path.expanduser("~"),
        stdin=subprocess.DEVNULL,
        stdout=pipes["out"],
        stderr=pipes["err"],
        start_new_session=True,
        preexec_fn=procfs.reset_process,  # noqa: PLW1509 (this process has one thread)
    )
    for name in ("out", "err"):
        os.close(pipes[name])
    while True:
        for pid, status in reap_all():
            if pid == command.pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
                command.returncode = code
                deadline = min(deadline, time.monotonic() + LEFTOVER_GRACE_S)
        if command.returncode is not None and not subreaper.own_descendants():
            return {"code": command.returncode, "timed_out": False}
        timed_out = time.monotonic() > deadline
        if timed_out or loop.term_received or os.getppid() != agent_pid:
            ended = command.returncode is not None
            code = command.returncode if ended else -signal.SIGKILL
            return {"code": code, "timed_out": timed_out and not ended}
        loop.wait(POLL_INTERVAL_S if command.returncode is None else 0.005)


class Handler(RequestHandler):
    """One command at a time, in the environment that the setup lines left."""

    at_once = frozenset({"exec", "kill"})
    _command: Optional[CommandRun] = None

    def on_exec(self, frame: Frame) -> None:
        """Start the command."""
        argv = list(frame.data["argv"])
        environ = self.context.require_facts().environ
        command = CommandRun(argv, environ, float(frame.data["limit_s"]))
        self._command = command
        self.context.start(frame, functools.partial(self._pass_on, command))
        self.context.cache_code()

    def on_prepare(self, frame: Frame) -> None:
        """Make the environment that the facts named, unless it is made by then."""
        result = self.context.require_facts()
        prepare = self.context.facts_request.prepare
        folder = result.facts.environment
        if prepare is None:
            raise ValueError("no environment was asked for with the facts")
        limit_s = float(frame.data["limit_s"])
        with environment.locked(self.context.workdir, folder, limit_s):
            if environment.is_made(folder):
                self.context.answer(frame, "exited", code=0)
                return
            environment.lay_out(folder, frame.data["files"], frame.payload)
            lines = (f"{setup.UNDEFINED}; {prepare.lines[0]}", *prepare.lines[1:])
            environ = {**result.environ, **frame.data["secrets"], environment.VARIABLE: folder}
            if "/" in prepare.python:
                environ["UV_PYTHON"] = os.path.expanduser(prepare.python)
            bash = bounded_child.find_program("bash", environ) or "bash"
            argv = environment.make_command(folder, bash, lines)
            self._command = in_loop(lambda: CommandRun(argv, environ, limit_s))
            self._pass_on(self._command, frame)

    def _pass_on(self, command: CommandRun, frame: Frame) -> None:
        answer = functools.partial(self.context.answer, frame)
        try:
            report = command.pass_on(self.context.credit, answer)
        except BaseException:  # the controller has left
            command.kill()
            command.pass_on(Credit(), lambda *_, **__: None)
            raise
        answer("exited", **report)

    def on_kill(self, _: Frame) -> None:
        """End the command early."""
        if self._command is not None:
            self._command.kill()
