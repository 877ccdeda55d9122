"""Programs of an order: the launcher process, and the sidecar that all of a run may need.

The thread of the files starts them: their logs, folders and programs may be on a disk that hangs.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import time
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from runner.core.model.plan import Order, Sidecar
from runner.core.outcome.first_failure import START_REFUSED
from runner.core.protocol.events import ProgramExited, ProgramStarted
from runner.core.protocol.paths import CONTAINER_MARK, PROGRAM_LOG, STREAMS, RunPaths
from runner.core.text import describe_exit
from runner.host.facts import ports
from runner.host.peers.dialler import RetryingDialler
from runner.host.process import cgroup, procfs, subreaper
from runner.host.process.container_processes import ContainerProcesses
from runner.host.process.file_worker import Submit
from runner.host.storage.run_folder import EventLog

StartResult = Union["subprocess.Popen[bytes]", OSError, None]
ExitStatus = Tuple[Optional[int], Optional[int]]  # code or signal; neither if it never started
READY_TIMEOUT_S = 60.0  # for the sidecar to listen: its host may start much later than others
CONNECT_TIMEOUT_S, RETRY_PAUSE_S = 3.5, 0.25  # for one attempt to connect, and before the next
INHERITED_ENV = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "TMPDIR", "TZ")
"""What the sidecar inherits of the environment of the task's programs."""

MAX_REASON = 300  # characters of an engine's own words
STOP_TIMEOUT_S = 3.0  # how long the sidecar may take to end after TERM


class LauncherProcess:
    """The program of one attempt; its `cgroup` has no path if none could be made."""

    def __init__(self, folder: RunPaths, order: Order, journal: EventLog, submit: Submit) -> None:
        self.pid = 0
        self.is_starting = self.is_on_record = False  # before that it must not start
        self.exit_status: Optional[ExitStatus] = None  # while it has not ended
        self.cgroup = cgroup.Cgroup()
        self.unrecorded_end: Optional[float] = None
        """When it ended, monotonic, while that waits for the records of its ranks."""

        self._folder, self._order, self._journal = folder, order, journal
        self._submit, self._is_cancelled = submit, False
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._container = ContainerProcesses(procfs.env_tags(order.run_id, order.node))

    @property
    def may_start(self) -> bool:
        """Whether its run is on record, and its start was neither begun nor cancelled."""
        return self.is_on_record and self._is_untouched

    @property
    def _is_untouched(self) -> bool:
        return not (self.pid or self.is_starting or self._is_cancelled)

    @property
    def is_running(self) -> bool:
        """Whether it runs."""
        return bool(self.pid) and self.exit_status is None

    @property
    def end_recorded(self) -> bool:
        """Whether it has ended, and all that its ranks' shims recorded until then was taken."""
        return self.exit_status is not None and self.unrecorded_end is None

    def create_cgroup(self) -> None:
        """Create the cgroup for the program and what its node runs beside it."""
        if not self._order.is_standby:
            order = self._order
            self.cgroup = cgroup.create(order.run_id, order.node, order.attempt)

    def start(self, environ: Dict[str, str], then: Callable[[], object]) -> None:
        """Have the program started; call `then` once it runs or that failed."""
        self.is_starting = True
        start = functools.partial(self._start, environment(self._order, environ))
        self._submit(start, functools.partial(self._on_start, then))

    def _start(self, environ: Dict[str, str]) -> StartResult:
        order = self._order
        # A rank shim ignores TERM; its own death ends its rank.
        forwards_term = order.launcher or order.container
        death_signal = signal.SIGTERM if forwards_term else signal.SIGKILL
        preexec_fn = functools.partial(child_setup, self.cgroup, death_signal)
        logs = [self._folder.stream_log(order.attempt, PROGRAM_LOG, name) for name in STREAMS]
        command = (order.argv, environ, order.cwd, logs, preexec_fn)
        return _start(*command, lambda: self._is_cancelled)

    def _on_start(self, then: Callable[[], object], result: StartResult) -> None:
        order = self._order
        self.is_starting = False
        if isinstance(result, OSError):
            problem = f"cannot start {order.argv[0]} in {order.cwd}: {result.strerror}"
            self._journal.append(ProgramExited(error=problem))
        if not isinstance(result, subprocess.Popen):
            self.exit_status = (None, None)
            then()
            return
        self._process, self.pid = result, result.pid
        if not self.cgroup.contains(self.pid):
            self.cgroup.remove()
            self.cgroup = cgroup.Cgroup()
        self._journal.append(ProgramStarted(self.pid, self.cgroup.path, order.rejoin_count))
        then()

    def on_reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was the program."""
        if self._process is None or pid != self.pid:
            return False
        self.exit_status = procfs.record_exit(self._process, status)
        self.unrecorded_end = time.monotonic()
        return True

    def find_start_problem(self) -> str:
        """Return why its engine could not start the container of an order that failed, else "".

        It may wait for a disk.
        """
        container, attempt = self._order.container, self._order.attempt
        mark = os.path.join(self._folder.attempt_folder(attempt), CONTAINER_MARK)
        if container is None or self.exit_status == (0, None) or os.path.exists(mark):
            return ""
        log = procfs.read_text(self._folder.stream_log(attempt, PROGRAM_LOG, "err"))
        last_line = (log.strip().splitlines() or [f"{container.engine} did not say why"])[-1]
        return f"{START_REFUSED}: {last_line[:MAX_REASON]}"

    def cancel(self) -> None:
        """Never start it, if it has not been started."""
        if self._is_untouched:
            self.exit_status = (None, None)
        self._is_cancelled = True

    def term_targets(self) -> List[int]:
        """Return the processes that get TERM.

        These are a launcher alone, since it forwards TERM; else the program's session, and the rank
        if that has its own.
        """
        if self._order.launcher:
            return [self.pid]
        session = [pid for pid, process in procfs.table().items() if process.session == self.pid]
        return sorted({*session, *self.rank_pids()})

    def container_pids(self) -> List[int]:
        """Return the processes in the order's container, children first."""
        return self._container.scan(procfs.table()) if self._order.container else []

    def rank_pids(self) -> List[int]:
        """Return the running rank of a program without a launcher: the child of its shim."""
        if self._order.launcher or not self.is_running:
            return []
        if self._order.container:
            return self.container_pids()
        return [pid for pid, process in procfs.table().items() if process.ppid == self.pid]


class SidecarProcess:
    """A server that the programs need: one supervisor starts it, all wait for it.

    `problem` is why the program must not start or continue; `pid` is 0 unless it runs here.
    """

    def __init__(self, folder: RunPaths, order: Order, submit: Submit) -> None:
        self._order, self._sidecar, self._folder = order, order.sidecar, folder
        self._submit, self.is_starting = submit, False
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._stopping = False
        self._ready_deadline = time.monotonic() + READY_TIMEOUT_S
        self._dialler: Optional[RetryingDialler] = None  # until it listens
        if order.sidecar is not None:
            addr, port = order.sidecar.addr, order.sidecar.port
            self._dialler = RetryingDialler(addr, port, RETRY_PAUSE_S, RETRY_PAUSE_S)
        self.problem = ""
        self.pid = 0

    def start(self, environ: Dict[str, str], preexec_fn: Callable[[], None]) -> None:
        """Have the sidecar started if it is this node's; it inherits no secrets of the ranks."""
        order, sidecar = self._order, self._sidecar
        if sidecar is None or sidecar.node != order.node:
            return
        inherited = {name: environ[name] for name in INHERITED_ENV if name in environ}
        env = {**inherited, "RUNNER_RUN_ID": order.run_id, "RUNNER_NODE": order.node}
        self.is_starting = True
        self._submit(functools.partial(self._start, sidecar, env, preexec_fn), self._on_start)

    def _start(
        self, sidecar: Sidecar, env: Dict[str, str], preexec_fn: Callable[[], None]
    ) -> StartResult:
        data_dir = self._folder.sidecar_folder(sidecar.name)
        logs = [self._log_path(stream) for stream in STREAMS]
        try:
            os.makedirs(data_dir, mode=0o700, exist_ok=True)
        except OSError as error:
            return error
        return _start(sidecar.argv, env, data_dir, logs, preexec_fn, lambda: self._stopping)

    def _on_start(self, result: StartResult) -> None:
        self.is_starting = False
        if isinstance(result, subprocess.Popen):
            self._process, self.pid = result, result.pid
        elif result is not None and self._sidecar is not None:
            self.problem = f"cannot start {self._sidecar.argv[0]}: {result.strerror}"

    def is_ready(self) -> bool:
        """Return whether it listens, without waiting; set `problem` after too long."""
        sidecar = self._sidecar
        if self._dialler is None or sidecar is None:
            return True
        if self.problem:
            return False
        try:
            connection = self._dialler.poll(CONNECT_TIMEOUT_S)
        except OSError:
            self._dialler.pause()
        else:
            if connection is not None:
                connection.close()
                self._dialler = None
                return True
        if time.monotonic() > self._ready_deadline:
            self.problem = (
                f"the {sidecar.name} of the run, at {sidecar.addr}:{sidecar.port} on "
                f"{sidecar.node}, could not be reached from here within {READY_TIMEOUT_S:g} s"
            )
        return False

    def on_reaped(self, pid: int, status: int) -> bool:
        """Note the end of a child; return whether it was the sidecar."""
        if self._process is None or self._sidecar is None or pid != self.pid:
            return False
        code, signum = procfs.record_exit(self._process, status)
        self.pid = 0
        if not self._stopping:
            problem = f"the {self._sidecar.name} of the run {describe_exit(code, signum)}"
            read = functools.partial(procfs.read_text, self._log_path("err"))
            self._submit(read, functools.partial(self._on_failure, problem))
        return True

    def _on_failure(self, problem: str, stderr: str) -> None:
        last_line = stderr.strip().splitlines()[-1:]
        self.problem = problem + "".join(f": {line[:300]}" for line in last_line)

    @property
    def has_clients(self) -> bool:
        """Whether programs of other hosts are still connected to it."""
        if not self.pid or self._sidecar is None:
            return False
        # It is also connected to itself.
        addresses = ports.connection_addresses(self._sidecar.port)
        return any(local != remote for local, remote in addresses)

    def stop(self, reap: Callable[[], object]) -> None:
        """End the sidecar; return when it has ended, or has taken too long."""
        self._stopping = True
        if self._dialler is not None:
            self._dialler.close()
        if self.pid:
            procfs.signal_all([self.pid], signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while self.pid and time.monotonic() < deadline:
            reap()
            time.sleep(0.005)

    def _log_path(self, stream: str) -> str:
        name = self._sidecar.name if self._sidecar is not None else ""
        return self._folder.stream_log(self._order.attempt, name, stream)


def environment(order: Order, inherited: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of the program of an order, over what it inherits.

    Names that the user takes out are removed by the shim of each rank: torchrun may set them.
    """
    if order.container:  # it has its own; the client is to be found by these
        return {**inherited, "RUNNER_RUN_ID": order.run_id, "RUNNER_NODE": order.node}
    env = {**inherited, **order.env}
    if order.path_folder:
        env["PATH"] = os.pathsep.join(filter(None, (order.path_folder, env.get("PATH"))))
    return env


def _start(
    argv: Sequence[str],
    env: Dict[str, str],
    cwd: str,
    log_paths: Sequence[str],
    preexec_fn: Callable[[], None],
    is_cancelled: Callable[[], bool],
) -> StartResult:
    """Start a program in a session of its own, with no input, and the logs as its output.

    Return None if it must not start any more, and what went wrong.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    opened: List[int] = []
    try:
        opened += [os.open(path, flags, 0o600) for path in log_paths]
        out, err = opened
        if is_cancelled():
            return None
        return subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            preexec_fn=preexec_fn,  # noqa: PLW1509 (our other thread holds no lock for long)
        )
    except OSError as error:
        return error
    finally:
        for descriptor in opened:
            os.close(descriptor)


def child_setup(program_cgroup: cgroup.Cgroup, death_signal: signal.Signals) -> None:
    """Prepare a new process: in the cgroup, dying with the supervisor, with default signals."""
    program_cgroup.enter()
    subreaper.die_with_parent(death_signal)
    procfs.reset_process()
