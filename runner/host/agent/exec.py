"""Exec requests: a command of the user on this host, its output, and the end of all it started."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import time
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from runner.core.wire.codec import Frame
from runner.core.wire.timing import KILL_TIMEOUT_S
from runner.host.agent.server import RequestHandler
from runner.host.process import procfs, subreaper
from runner.host.process.event_loop import EventLoop
from runner.host.process.kill import kill_until_gone
from runner.host.process.subreaper import reap_all

READ_BYTES = 64 << 10
POLL_INTERVAL_S = 0.05
LEFTOVER_GRACE_S = 0.5  # how long processes that the command left may go on after its end
Reply = Callable[[str, Dict[str, Any], bytes], None]


class CommandRun:
    """A command below a process of ours that ends all of it, also when the agent is killed."""

    def __init__(
        self,
        request_id: int,
        argv: List[str],
        environ: Dict[str, str],
        limit_s: float,
        reply: Reply,
    ) -> None:
        """Start it in the user's home, or raise OSError; its standard input is empty."""
        self.request_id = request_id
        self._reply = reply
        self._report = b""
        self.ended = False
        self.window = 0.0  # bytes of output that the controller has room for
        pipes = {name: os.pipe() for name in ("out", "err", "report")}
        self._supervisor_pid = os.fork()
        if self._supervisor_pid == 0:
            child_fds = {name: ends[1] for name, ends in pipes.items()}
            _supervise(argv, environ, time.monotonic() + limit_s, child_fds)
        self._streams: Dict[int, str] = {}
        for name, (read_fd, write_fd) in pipes.items():
            os.close(write_fd)
            os.set_blocking(read_fd, False)
            self._streams[read_fd] = name

    @property
    def pipes(self) -> Tuple[int, ...]:
        """The descriptors to wait for; where there is no room, full pipes hold up the command."""
        return tuple(
            fd for fd, stream in self._streams.items() if self.window or stream == "report"
        )

    def advance(self) -> None:
        """Pass on its output, and notice its end."""
        if self.ended:
            return
        for descriptor in self.pipes:
            self._pass_on(descriptor)
        if "report" not in self._streams.values():
            self.window = math.inf
            for descriptor in self.pipes:  # the rest of the output, at most what pipes hold
                while descriptor in self._streams and self._pass_on(descriptor):
                    pass
            self._finish()

    def kill(self) -> None:
        """End all of it now; the report follows."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._supervisor_pid, signal.SIGTERM)

    def kill_and_wait(self) -> None:
        """Return when nothing of it is left, or what is left cannot be killed."""
        self.kill()
        deadline = time.monotonic() + KILL_TIMEOUT_S + 1
        while not self.ended and time.monotonic() < deadline:
            self.advance()
            time.sleep(0.005)

    def _pass_on(self, descriptor: int) -> bool:
        """Pass on one chunk; return False when there is none."""
        stream = self._streams[descriptor]
        try:
            data = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            os.close(descriptor)
            del self._streams[descriptor]
        elif stream == "report":
            self._report += data
        else:
            self.window = max(0, self.window - len(data))
            self._reply("output", {"id": self.request_id, "stream": stream}, data)
        return bool(data)

    def _finish(self) -> None:
        self.ended = True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._supervisor_pid, 0)
        try:
            report = json.loads(self._report)
        except ValueError:
            report = {"error": "its supervising process was killed; parts of it may be left"}
        self._reply("exited", {"id": self.request_id, **report}, b"")


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

    def on_exec(self, frame: Frame) -> None:
        """Start the command; `window` is how many bytes of its output may be sent at first."""
        argv = list(frame.data["argv"])
        limit_s = float(frame.data["limit_s"])
        environ = self.context.require_facts().environ
        reply = self.context.reply
        command = CommandRun(frame.data["id"], argv, environ, limit_s, reply)
        command.window = int(frame.data["window"])
        self.children["command"] = command
        self.context.cache_code()

    def on_more_output(self, frame: Frame) -> None:
        """Let it send so many more bytes, which the controller has shown."""
        for command in self.children.values():
            command.window += int(frame.data["bytes"])

    def on_kill(self, _: Frame) -> None:
        """End the command early."""
        for command in self.children.values():
            command.kill()

    def advance(self) -> None:
        """Pass on its output, while the controller takes it."""
        for command in self.children.values():
            if self.context.can_send():
                command.advance()

    def close(self) -> None:
        """End the command."""
        for command in self.children.values():
            command.kill_and_wait()
