"""One command of the user's on this host, its output as it comes, and the end of all it started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Set, Tuple

from runner.host.process import procfs
from runner.host.process.kill import KILL_S, kill_all, reap_all

CHUNK = 64 << 10
TICK_S = 0.05
LINGER_S = 0.5
"""How long what the command left behind may go on after its own end."""

Reply = Callable[[str, Dict[str, Any], bytes], None]


class Execution:
    """A command with a keeper: a process of ours that ends all of it, also when we are killed."""

    def __init__(
        self, number: int, argv: List[str], environ: Dict[str, str], limit_s: float, reply: Reply
    ) -> None:
        """Start it, in the user's home, with nothing on its standard input.

        Raises:
            OSError: There can be no process.
        """
        self._number = number
        self._reply = reply
        self._report = b""
        self.over = False
        pipes = {name: os.pipe() for name in ("out", "err", "report")}
        self._keeper = os.fork()
        if self._keeper == 0:
            writing = {name: ends[1] for name, ends in pipes.items()}
            _keep(argv, environ, time.monotonic() + limit_s, writing)
        self._streams: Dict[int, str] = {}
        for name, (reading, writing_end) in pipes.items():
            os.close(writing_end)
            os.set_blocking(reading, False)
            self._streams[reading] = name

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What to wait for."""
        return tuple(self._streams)

    def advance(self) -> None:
        """Pass on what it wrote; see whether the keeper is done."""
        if self.over:
            return
        for descriptor in self.pipes:
            self._pass_on(descriptor)
        if "report" not in self._streams.values():
            for descriptor in self.pipes:  # what was written before the end
                while descriptor in self._streams and self._pass_on(descriptor):
                    pass
            self._finish()

    def kill(self) -> None:
        """Have the keeper end all of it now; its report follows."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._keeper, signal.SIGTERM)

    def end(self) -> None:
        """Return when nothing of it is left, or could not be killed."""
        self.kill()
        deadline = time.monotonic() + KILL_S + 1
        while not self.over and time.monotonic() < deadline:
            self.advance()
            time.sleep(0.005)

    def _pass_on(self, descriptor: int) -> bool:
        """Pass on a piece; False when there is none."""
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return False
        stream = self._streams[descriptor]
        if not data:
            os.close(descriptor)
            del self._streams[descriptor]
        elif stream == "report":
            self._report += data
        else:
            self._reply("output", {"id": self._number, "stream": stream}, data)
        return bool(data)

    def _finish(self) -> None:
        self.over = True
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._keeper, 0)
        try:
            told = json.loads(self._report)
        except ValueError:
            told = {"error": "what kept it was killed; parts of it may be left"}
        self._reply("exited", {"id": self._number, **told}, b"")


def _keep(
    argv: List[str], environ: Dict[str, str], deadline: float, pipes: Dict[str, int]
) -> NoReturn:
    """Run the command, end what is left of it, report, and be gone; in a process of its own."""
    link = os.getppid()
    told: Dict[str, Any] = {}
    try:
        os.setsid()
        _let_go(set(pipes.values()))
        stopped: List[int] = []
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        for signum in (signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
        procfs.become_subreaper()
        told = _run(argv, environ, pipes, lambda: bool(stopped) or os.getppid() != link, deadline)
    except OSError as error:
        told = {"error": f"cannot start {argv[0]}: {error.strerror}"}
    except BaseException:  # noqa: BLE001 (whatever it is, the controller must hear of it)
        told = {"error": traceback.format_exc()}
    try:
        _, survivors = kill_all(
            lambda: procfs.descendants(os.getpid()), reap_all, gone=procfs.childless
        )
        os.write(pipes["report"], json.dumps({**told, "survivors": list(survivors)}).encode())
    finally:
        os._exit(0)


def _run(
    argv: List[str],
    environ: Dict[str, str],
    pipes: Dict[str, int],
    told_to_stop: Callable[[], bool],
    deadline: float,
) -> Dict[str, Any]:
    """Return how the command ended: its code or minus its signal, and whether it was late."""
    command = subprocess.Popen(
        argv,
        env=environ,
        cwd=os.path.expanduser("~"),
        stdin=subprocess.DEVNULL,
        stdout=pipes["out"],
        stderr=pipes["err"],
        start_new_session=True,
        preexec_fn=_before_exec,  # noqa: PLW1509 (this process has one thread)
    )
    for name in ("out", "err"):
        os.close(pipes[name])
    while True:
        for pid, status in reap_all():
            if pid == command.pid:
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
                command.returncode = code
                deadline = min(deadline, time.monotonic() + LINGER_S)
        if command.returncode is not None and not procfs.descendants(os.getpid()):
            return {"code": command.returncode, "late": False}
        late = time.monotonic() > deadline
        if late or told_to_stop():
            ended = command.returncode is not None
            code = command.returncode if ended else -signal.SIGKILL
            return {"code": code, "late": late and not ended}
        time.sleep(TICK_S if command.returncode is None else 0.005)


def _let_go(keep: Set[int]) -> None:
    """Keep no descriptor of the link: its channel ends when it does."""
    null = os.open(os.devnull, os.O_RDWR)
    procfs.close_all_but(keep | {null})
    for number in (0, 1, 2):
        os.dup2(null, number)


def _before_exec() -> None:
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
