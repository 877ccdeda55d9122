"""Sidecar: a server that the run's programs need; one supervisor starts it, all wait for it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from typing import Callable, Dict, Optional

from runner.core.model.order import Order
from runner.core.outcome.exits import describe_exit
from runner.core.protocol.paths import RunPaths
from runner.host.facts import ports
from runner.host.peers.dialler import RetryingDialler
from runner.host.process import procfs
from runner.host.storage.run_folder import remove_sidecar_data

READY_TIMEOUT_S = 60.0
"""How long to wait until it listens: its host may start much later than others."""

CONNECT_TIMEOUT_S, RETRY_PAUSE_S = 3.5, 0.25
"""How long one attempt to connect may take, and the pause before the next."""

INHERITED_ENV = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""What the sidecar inherits of the environment of the task's programs."""

STOP_TIMEOUT_S = 3.0
"""How long it may take to end after TERM."""


class SidecarProcess:
    """The sidecar of an order, as one supervisor sees it; without one it is ready at once.

    Attributes:
        problem: Why the program must not start, or not continue; "" for no reason.
        pid: The sidecar's process, if it runs here; 0 for none.
    """

    def __init__(self, folder: RunPaths, order: Order) -> None:
        self._order, self._sidecar, self._folder = order, order.sidecar, folder
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._stopping = False
        self._ready = order.sidecar is None
        self._ready_deadline = time.monotonic() + READY_TIMEOUT_S
        addr, port = (order.sidecar.addr, order.sidecar.port) if order.sidecar else ("", 0)
        self._dialler = RetryingDialler(addr, port, RETRY_PAUSE_S, RETRY_PAUSE_S)
        self.problem = ""
        self.pid = 0

    def start(self, environ: Dict[str, str], preexec_fn: Callable[[], None]) -> None:
        """Start the sidecar, if this node is to run it."""
        sidecar = self._sidecar
        if sidecar is None or sidecar.node != self._order.node:
            return
        data_dir = self._folder.sidecar_folder(sidecar.name)
        try:
            os.makedirs(data_dir, mode=0o700, exist_ok=True)
            out, err = (
                os.open(self._log_path(stream), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                for stream in ("out", "err")
            )
            self._process = subprocess.Popen(
                sidecar.argv,
                env=self._build_env(environ),
                cwd=data_dir,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=preexec_fn,  # noqa: PLW1509 (this process has one thread)
            )
        except OSError as error:
            self.problem = f"cannot start {sidecar.argv[0]}: {error.strerror}"
            return
        os.close(out)
        os.close(err)
        self.pid = self._process.pid

    def _build_env(self, environ: Dict[str, str]) -> Dict[str, str]:
        """Return its environment: the tags of the run, none of the ranks' secrets."""
        inherited = {name: environ[name] for name in INHERITED_ENV if name in environ}
        env_tags = {"RUNNER_RUN_ID": self._order.run_id, "RUNNER_NODE": self._order.node}
        return {**inherited, **env_tags}

    def is_ready(self) -> bool:
        """Return whether it listens, without waiting; set `problem` after too long."""
        if self._ready or self.problem or self._sidecar is None:
            return self._ready
        try:
            connection = self._dialler.poll(CONNECT_TIMEOUT_S)
        except OSError:
            self._dialler.pause()
        else:
            if connection is not None:
                connection.close()
                self._ready = True
        if not self._ready and time.monotonic() > self._ready_deadline:
            sidecar = self._sidecar
            self.problem = (
                f"the {sidecar.name} of the run, at {sidecar.addr}:{sidecar.port} on "
                f"{sidecar.node}, could not be reached from here within {READY_TIMEOUT_S:g} s"
            )
        return self._ready

    def on_reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was the sidecar."""
        if self._process is None or pid != self.pid:
            return False
        code, signum = procfs.record_exit(self._process, status)
        self.pid = 0
        if not self._stopping and self._sidecar is not None:
            outcome = describe_exit(code, signum)
            stderr = self._last_stderr_line()
            self.problem = f"the {self._sidecar.name} of the run {outcome}{stderr}"
        return True

    def _last_stderr_line(self) -> str:
        lines = procfs.read_text(self._log_path("err")).strip().splitlines()[-1:]
        return "".join(f": {line[:300]}" for line in lines)

    @property
    def has_clients(self) -> bool:
        """Whether programs of other hosts are still connected to it."""
        if not self.pid or self._sidecar is None:
            return False
        # It is also connected to itself.
        return any(
            local != remote for local, remote in ports.connection_addresses(self._sidecar.port)
        )

    def stop(self, reap: Callable[[], object]) -> None:
        """End the sidecar; return when it has ended, or has taken too long."""
        self._stopping = True
        self._dialler.close()
        if self.pid:
            procfs.signal_all([self.pid], signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.pid and time.monotonic() < deadline:
            reap()
            time.sleep(0.005)

    def clean(self) -> None:
        """Remove the sidecar's data from the disk."""
        remove_sidecar_data(self._folder, self._order)

    def _log_path(self, stream: str) -> str:
        name = self._sidecar.name if self._sidecar is not None else ""
        return self._folder.stream_log(self._order.attempt, name, stream)
