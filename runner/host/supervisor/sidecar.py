"""The server that a run's programs need: started by one supervisor, waited for by all."""

from __future__ import annotations

import errno
import os
import select
import shutil
import signal
import socket
import subprocess
import time
from typing import Callable, Dict, Optional

from runner.core.model.order import Order, Service
from runner.core.outcome.exits import describe_exit
from runner.core.protocol.paths import RunFolder
from runner.host.facts import ports
from runner.host.process import procfs

OPEN_S = 60.0
"""How long it may take until it listens: its host may start much later than others."""

TRY_S, AGAIN_S = 3.5, 0.25
"""How long one try to connect may take, and the pause before the next."""

PASSED = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""What it gets of the environment in which the task's programs run."""

END_S = 3.0
"""How long it may take to end by itself, once nobody needs it."""


class Serving:
    """What a supervisor has to do with its order's service; nothing where there is none.

    Attributes:
        problem: Why the program must not start, or not go on.
        pid: Its process, if it runs here; 0 for none.
    """

    def __init__(self, folder: RunFolder, order: Order) -> None:
        self._order, self._service, self._folder = order, order.service, folder
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._ending = False
        self._open = order.service is None
        self._until = time.monotonic() + OPEN_S
        self._next_try = 0.0
        self._trying: Optional[socket.socket] = None
        self.problem = ""
        self.pid = 0

    def start(self, environ: Dict[str, str], before_exec: Callable[[], None]) -> None:
        """Start it, if it is this node's to run."""
        service = self._service
        if service is None or service.node != self._order.node:
            return
        place = self._folder.service(service.name)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
            out, err = (
                os.open(self._log(stream), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for stream in ("out", "err")
            )
            self._process = subprocess.Popen(
                service.argv,
                env=self._environ(environ),
                cwd=place,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=before_exec,  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            self.problem = f"cannot start {service.argv[0]}: {error.strerror}"
            return
        os.close(out)
        os.close(err)
        self.pid = self._process.pid

    def _environ(self, environ: Dict[str, str]) -> Dict[str, str]:
        """Return its environment: none of the ranks' secrets, nor options of its own; our mark."""
        own = {name: environ[name] for name in PASSED if name in environ}
        marks = {"RUNNER_RUN_ID": self._order.run_id, "RUNNER_NODE": self._order.node}
        return {**own, **marks}

    def open(self) -> bool:
        """Whether it listens; never waits. After too long there is a `problem`."""
        if self._open or self.problem or self._service is None:
            return self._open
        now = time.monotonic()
        if self._trying is None and now >= self._next_try:
            self._try(self._service, now)
        elif self._trying is not None:
            self._open = self._listens(self._trying, now)
        if not self._open and now > self._until:
            where = f"{self._service.addr}:{self._service.port}"
            what = f"the {self._service.name} of the run, at {where} on {self._service.node}"
            self.problem = f"{what}, could not be reached from here within {OPEN_S:g} s"
        return self._open

    def _try(self, service: Service, now: float) -> None:
        self._next_try = now + TRY_S
        family = socket.AF_INET6 if ":" in service.addr else socket.AF_INET
        self._trying = socket.socket(family, socket.SOCK_STREAM)
        self._trying.setblocking(False)
        error = self._trying.connect_ex((service.addr, service.port))
        if error not in (0, errno.EINPROGRESS):
            self._give_up(now)

    def _listens(self, trying: socket.socket, now: float) -> bool:
        connected = bool(select.select([], [trying], [], 0)[1])
        listens = connected and trying.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
        if connected or now >= self._next_try:
            self._give_up(now)
        return listens

    def _give_up(self, now: float) -> None:
        """Try anew, if it has to be, in a moment."""
        if self._trying is not None:
            self._trying.close()
        self._trying = None
        self._next_try = now + AGAIN_S

    def took(self, pid: int, status: int) -> bool:
        """Take note of the end of a child; whether it was the service."""
        if self._process is None or pid != self.pid:
            return False
        code, signum = procfs.note_end(self._process, status)
        self.pid = 0
        if not self._ending and self._service is not None:
            how = describe_exit(code, signum)
            self.problem = f"the {self._service.name} of the run {how}{self._last_words()}"
        return True

    def _last_words(self) -> str:
        lines = procfs.read_text(self._log("err")).strip().splitlines()[-1:]
        return "".join(f": {line[:300]}" for line in lines)

    @property
    def needed(self) -> bool:
        """Whether programs of other hosts are still connected to it."""
        if not self.pid or self._service is None:
            return False
        # It is also connected to itself.
        return any(here != there for here, there in ports.peers(self._service.port))

    def end(self, reap: Callable[[], object]) -> None:
        """End it; returns when it has ended, or has taken too long."""
        self._ending = True
        self._give_up(time.monotonic())
        if self.pid:
            procfs.send([self.pid], signal.SIGTERM)
        until = time.monotonic() + END_S
        while self.pid and time.monotonic() < until:
            reap()
            time.sleep(0.005)

    def clean(self) -> None:
        """Remove what it kept on the disk."""
        remove_data(self._folder, self._order)

    def _log(self, stream: str) -> str:
        name = self._service.name if self._service is not None else ""
        return self._folder.stream(self._order.attempt, name, stream)


def remove_data(folder: RunFolder, order: Order) -> None:
    """Remove what the service of an order kept on the disk of its node."""
    if order.service is not None and order.service.node == order.node:
        shutil.rmtree(folder.service(order.service.name), ignore_errors=True)
