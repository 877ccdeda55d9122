"""One command of the user's on this host, its output as it comes, and the end of all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Any, Callable, Dict, List, Optional, Tuple

from runner.host import proc
from runner.host.ending import kill_all, reap_all

CHUNK = 64 << 10
LINGER_S = 0.5
"""How long output may still come after the command's own end, from what it left behind."""

Reply = Callable[[str, Dict[str, Any], bytes], None]


class Execution:
    """A command in a session of its own; nothing of it outlives the link."""

    def __init__(
        self, number: int, argv: List[str], environ: Dict[str, str], limit_s: float, reply: Reply
    ) -> None:
        """Start it, in the user's home, with nothing on its standard input.

        Raises:
            OSError: It cannot be started.
        """
        proc.become_subreaper()
        self._number = number
        self._reply = reply
        self._end_at = time.monotonic() + limit_s
        self._ended: Optional[int] = None
        self._ended_at = 0.0
        self._late = False
        self.over = False
        self._process = subprocess.Popen(
            argv,
            env=environ,
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=_before_exec,  # noqa: PLW1509 (this process has one thread)
        )
        self._streams: Dict[int, str] = {}
        for name, pipe in (("out", self._process.stdout), ("err", self._process.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._streams[pipe.fileno()] = name

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What to wait for."""
        return tuple(self._streams)

    def advance(self) -> None:
        """Pass on what it wrote; see whether it ended, or whether its time is up."""
        if self.over:
            return
        for descriptor in self.pipes:
            self._pass_on(descriptor)
        for pid, status in reap_all():
            if pid == self._process.pid:
                self._ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else status >> 8
                self._process.returncode = self._ended
                self._ended_at = time.monotonic()
        now = time.monotonic()
        if self._ended is None and now > self._end_at:
            self._late = True
            self.end()
        elif self._ended is not None and (not self.pipes or now > self._ended_at + LINGER_S):
            self.end()

    def end(self) -> None:
        """Kill what is left of it, and say how it ended."""
        if self.over:
            return
        self.over = True
        _, survivors = kill_all(lambda: proc.descendants(os.getpid()), reap_all)
        for descriptor in self.pipes:
            self._pass_on(descriptor)
        code = self._ended if self._ended is not None else -signal.SIGKILL
        data = {"code": code, "late": self._late, "survivors": list(survivors)}
        self._reply("exited", {"id": self._number, **data}, b"")

    def _pass_on(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return
        if data:
            self._reply("output", {"id": self._number, "stream": self._streams[descriptor]}, data)
        else:
            del self._streams[descriptor]


def _before_exec() -> None:
    proc.die_with_parent(signal.SIGKILL)
    for signum in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(signum, signal.SIG_DFL)
