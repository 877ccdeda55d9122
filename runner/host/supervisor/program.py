"""Program of an order: the launcher process.

The thread of the files starts it: its logs, folder and program may be on a disk that hangs.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from dataclasses import replace
from typing import Callable, Dict, List, Mapping, Optional, Tuple, Union

from runner.core.wire.container import client_env, container_name
from runner.core.wire.events import ProgramExited, ProgramStarted
from runner.core.wire.order import Order, command_words, environment
from runner.core.wire.paths import PROGRAM_LOG, STREAMS, RunPaths, is_rank_source
from runner.host.container import last_line
from runner.host.process import procfs, subreaper
from runner.host.process.jobs import Submit
from runner.host.process.pid_namespace import ContainerProcesses
from runner.host.storage.run_folder import EventLog

StartResult = Union["subprocess.Popen[bytes]", OSError, None]
ExitStatus = Tuple[Optional[int], Optional[int]]  # code or signal; neither if it never started
ENGINE_CODES = (125, 126, 127, 255)
"""How the clients of engines end that could not start a command: docker, podman; apptainer."""


class LauncherProcess:
    """The program of one attempt."""

    def __init__(
        self,
        folder: RunPaths,
        order: Order,
        environ: Mapping[str, str],
        journal: EventLog,
        submit: Submit,
    ) -> None:
        self.pid = 0
        self.is_starting = False
        self.exit_status: Optional[ExitStatus] = None  # while it has not ended
        self.unrecorded_end: Optional[float] = None
        """When it ended, monotonic, while that waits for the records of its ranks."""

        self._folder = folder
        self._environ = environ
        self._order = order
        self._journal = journal
        self._submit = submit
        self._is_cancelled = False
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._container = ContainerProcesses(procfs.env_tags(order.run_id, order.node))

    @property
    def is_running(self) -> bool:
        return bool(self.pid) and self.exit_status is None

    @property
    def end_recorded(self) -> bool:
        """Whether it has ended, and all that its ranks' shims recorded until then was taken."""
        return self.exit_status is not None and self.unrecorded_end is None

    def start(self, then: Callable[[], object]) -> None:
        """Have the program started, if it was not cancelled; call `then` once it runs or failed."""
        if not self._is_cancelled:
            self.is_starting = True
            self._submit(self._start, functools.partial(self._on_start, then))

    def _environment(self) -> Dict[str, str]:
        """Return the environment of the program, over what it inherits.

        Names that the user takes out are removed by the shim of each rank: torchrun may set them.
        """
        container = self._order.container
        own = environment(self._order)
        if container and container.engine:
            return {**self._environ, **client_env(own)}
        env = {**self._environ, **own}
        folder = self._order.program.path_folder
        if folder:
            env["PATH"] = os.pathsep.join(filter(None, (folder, env.get("PATH"))))
        return env

    def _start(self) -> StartResult:
        """Start it in a session of its own, without input; None if it must not start any more."""
        order = self._order
        # A rank shim passes on what its parent sends, not the kernel; its death ends its rank.
        forwards_term = order.launcher or order.container
        death_signal = signal.SIGTERM if forwards_term else signal.SIGKILL

        def set_up() -> None:
            subreaper.die_with_parent(death_signal)
            procfs.reset_process()

        logs: List[int] = []
        try:
            for stream in STREAMS:
                path = self._folder.stream_log(order.attempt, PROGRAM_LOG, stream)
                logs.append(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
            if self._is_cancelled:
                return None
            out, err = logs
            return subprocess.Popen(
                command(order),
                env=self._environment(),
                cwd=order.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=set_up,  # noqa: PLW1509 (our other thread holds no lock for long)
            )
        except OSError as error:
            return error
        finally:
            for descriptor in logs:
                os.close(descriptor)

    def _on_start(self, then: Callable[[], object], result: StartResult) -> None:
        order = self._order
        self.is_starting = False
        if isinstance(result, OSError):
            problem = f"cannot start {command(order)[0]} in {order.cwd}: {result.strerror}"
            self._journal.append(ProgramExited(error=problem))
        if not isinstance(result, subprocess.Popen):
            self.exit_status = (None, None)
            then()
            return
        self._process = result
        self.pid = result.pid
        self._journal.append(ProgramStarted(self.pid, order.rejoin_count))
        then()

    def on_reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was the program."""
        if self._process is None or pid != self.pid:
            return False
        self.exit_status = procfs.record_exit(self._process, status)
        self.unrecorded_end = time.monotonic()
        return True

    def read_end(self) -> ProgramExited:
        """Return how it ended, and why its container did not start or its client lost that.

        It may wait for a disk.
        """
        order = self._order
        code, signum = self.exit_status or (None, None)
        body = ProgramExited(code, signum)
        if order.container is None or code not in ENGINE_CODES:
            return body
        names = procfs.list_names(self._folder.attempt_folder(order.attempt))
        records = [name for name in names if is_rank_source(name)]
        if any(name.endswith(".exit") for name in records):
            return body
        log = procfs.read_text(self._folder.stream_log(order.attempt, PROGRAM_LOG, "err"))
        said = last_line(log) or "it did not say why"
        if not records:
            return replace(body, error=said, container_failed=True)
        client = order.container.engine or order.container.program[0]
        return replace(body, error=f"lost the client of {client}: {said}")

    def cancel(self) -> None:
        """Never start it, if it has not been started."""
        if not (self.pid or self.is_starting):
            self.exit_status = self.exit_status or (None, None)
        self._is_cancelled = True

    def container_pids(self) -> List[int]:
        """Return the processes in the order's container, children first."""
        return self._container.scan(procfs.table()) if self._order.container else []


def command(order: Order) -> Tuple[str, ...]:
    """Return the words of the launcher process, after those of its container."""
    if order.container is None:
        return command_words(order)
    name = container_name(order.run_id, order.node, order.attempt)
    prefix = order.container.prefix(name=name, cwd=order.cwd, env=environment(order))
    return (*prefix, *command_words(order))
