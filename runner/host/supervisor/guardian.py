"""The guardian: the supervisor's parent, there so that the supervisor's own death ends the run."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import time
import traceback
from typing import Callable, List, NoReturn, Optional, Set, Tuple

from runner.core.model.order import Order
from runner.core.protocol.events import Ended, ProgramStarted, RankExited, Stopping
from runner.core.protocol.paths import RunPaths
from runner.core.protocol.states import State
from runner.host.process import cgroup, procfs
from runner.host.process.kill import cgroup_empty, kill_until_gone, reap_all
from runner.host.process.orphans import RunProcesses
from runner.host.storage import run_owner
from runner.host.storage.run_folder import (
    EventLog,
    has_ended,
    read_events,
    read_order,
    read_rank_records,
    sample_log_sizes,
)
from runner.host.storage.run_lock import RunLock
from runner.host.supervisor.sidecar import remove_sidecar_data
from runner.host.supervisor.supervisor import Supervisor, SupervisorArgs

READY = b"ready"


def spawn(args: SupervisorArgs, lock_fd: Optional[int]) -> int:
    """Start guardian and supervisor, detached from us and from our session.

    `lock_fd` is that of the run's doorway, which they hold for life.

    Returns:
        A pipe: it says `READY`, or what went wrong, and then ends.
    """
    read_fd, write_fd = os.pipe()
    child_pid = os.fork()
    if child_pid == 0:
        _run_detached(args, lock_fd, StartupPipe(write_fd))
    os.close(write_fd)
    os.waitpid(child_pid, 0)
    return read_fd


def _run_detached(
    args: SupervisorArgs, lock_fd: Optional[int], startup_pipe: StartupPipe
) -> NoReturn:
    """Leave the session, fork once more, and guard."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        if lock_fd is None:
            raise RuntimeError("this run has a supervisor here already")
        _redirect(
            args.folder.supervisor_log,
            keep_fds={startup_pipe.descriptor, lock_fd} | args.reserved_ports.descriptors,
        )
        _guard(args, startup_pipe)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the link must hear of it)
        traceback.print_exc()
        startup_pipe.send(f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _guard(args: SupervisorArgs, startup_pipe: StartupPipe) -> NoReturn:
    folder, order = args.folder, args.order
    run_lock = RunLock(order.run_id, order.node)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    procfs.become_subreaper()
    guardian_pid = os.getpid()
    supervisor_pid = os.fork()
    if supervisor_pid == 0:
        try:
            run_owner.record(folder, [guardian_pid, os.getpid()])
            procfs.die_with_parent(signal.SIGTERM)
            if os.getppid() == guardian_pid:
                supervisor = Supervisor(args, run_lock, guardian_pid)
                supervisor.run(on_ready=lambda: startup_pipe.send(READY))
                next_args = supervisor.next_start()
                while next_args is not None:
                    supervisor = Supervisor(next_args, run_lock, guardian_pid)
                    supervisor.run(on_ready=lambda: None)
                    next_args = supervisor.next_start()
                os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the guardian ends the run, with this on record)
            traceback.print_exc()
            startup_pipe.send(f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    startup_pipe.close()
    args.reserved_ports.close()
    status = _wait_for(supervisor_pid)
    order = read_order(folder) or order  # that of its last attempt
    if not has_ended(folder, order):
        exit_text = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
        reason = f"its supervisor ended by {exit_text}"
        list_alive = functools.partial(procfs.descendants, guardian_pid)
        finalise_record(folder, order, reason, list_alive, all_gone=procfs.no_children_left)
    run_lock.remove_files()
    os._exit(0)


def finalise_record(
    folder: RunPaths,
    order: Order,
    reason: str,
    list_alive: Callable[[], List[int]],
    *,
    verified: bool = True,
    all_gone: Callable[[], bool] = lambda: True,
) -> None:
    """End what a dead supervisor left, and write its last lines in its stead.

    `verified` is whether an empty `list_alive` means that nothing of the run is left; an empty
    cgroup, where the program had one, means it as well. `all_gone` is that of `ending.kill_all`.
    """
    stop_time = {"mono": time.monotonic(), "wall": time.time()}
    program_start = _last_program_start(folder, order)
    program_cgroup = cgroup.from_record(
        program_start.cgroup, order.run_id, order.node, order.attempt
    )
    killed, survivors = kill_until_gone(
        list_alive, reap_all, cgroup=program_cgroup, all_gone=all_gone
    )
    sample_log_sizes(folder, order.attempt, {})
    journal = EventLog(folder, order)
    journal.reopen()
    journal.append(Stopping(reason), **stop_time)
    recorded_exits = {
        (event.body.rank, event.body.start)
        for event in read_events(folder)
        if isinstance(event.body, RankExited) and event.attempt == order.attempt
    }
    for kind, rank, data in read_rank_records(folder.attempt_folder(order.attempt), set()):
        if kind == "exit" and (rank, data["start"]) not in recorded_exits:
            journal.append_exit(rank, data)
    state = State.STUCK if survivors else State.FAILED
    verified = (verified or bool(program_cgroup.path)) and cgroup_empty(program_cgroup, survivors)
    remove_sidecar_data(folder, order)
    journal.finalise(Ended(state, reason, len(killed), survivors, verified))
    program_cgroup.remove()


def recover_unfinished(folder: RunPaths) -> None:
    """Write down the end of what nobody keeps here any more, where a power cut left none."""
    order = read_order(folder)
    if order is not None and not has_ended(folder, order):
        recover_orphaned(folder, order)


def recover_orphaned(folder: RunPaths, order: Order) -> None:
    """End what is left when supervisor and guardian are both gone.

    Without a cgroup only its mark in the environment tells what belonged to the run, and a process
    can clear that and leave its family.
    """
    processes = run_processes(folder, order)
    processes.freeze()
    reason = "its supervisor and its guardian died; what was left of it was killed"
    if not read_events(folder):
        reason = "its start was cut off"
    finalise_record(folder, order, reason, processes.scan, verified=False)


def run_processes(folder: RunPaths, order: Order) -> RunProcesses:
    """Return the processes of a run that nobody keeps any more."""
    env_tags = _env_tags(order.run_id, order.node)
    records = read_rank_records(folder.attempt_folder(order.attempt), set())
    session_leaders = {int(data["shim"]) for kind, _, data in records if kind == "start"}
    return RunProcesses(env_tags, session_leaders | {_last_program_start(folder, order).pid})


def _env_tags(run_id: str, node: str) -> Set[str]:
    return {f"RUNNER_RUN_ID={run_id}", f"RUNNER_NODE={node}"}


def find_leftovers(
    folder: RunPaths, run_id: str, node: str
) -> Tuple[Callable[[], List[int]], cgroup.Cgroup]:
    """Return what finds the processes of a run that nobody keeps any more, and its last cgroup.

    Also those that outlived SIGKILL before, and of a run whose order never arrived.
    """
    order = read_order(folder)
    if order is None:
        return RunProcesses(_env_tags(run_id, node), set()).scan, cgroup.Cgroup()
    processes = run_processes(folder, order)
    last_cgroup = cgroup.from_record(
        _last_program_start(folder, order).cgroup, run_id, node, order.attempt
    )
    stuck = _unkillable(folder) if run_owner.is_from_this_boot(folder) else []

    def list_pids() -> List[int]:
        return [
            *processes.scan(),
            *(pid for pid, start in stuck if procfs.start_ticks_of(pid) == start),
        ]

    return list_pids, last_cgroup


def _unkillable(folder: RunPaths) -> List[Tuple[int, int]]:
    """Return those that an end has on record as not to be killed, and when each began."""
    suspended_s = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    processes = []
    for event in read_events(folder):
        if isinstance(event.body, Ended):
            for pid in event.body.survivors:
                start = procfs.start_ticks_of(pid)
                if 0 <= start / os.sysconf("SC_CLK_TCK") <= event.mono + suspended_s:
                    processes.append((pid, start))
    return processes


def _last_program_start(folder: RunPaths, order: Order) -> ProgramStarted:
    """Return what is on record of the program's last start."""
    for event in reversed(read_events(folder)):
        if isinstance(event.body, ProgramStarted) and event.attempt == order.attempt:
            return event.body
    return ProgramStarted(0)


def _wait_for(child_pid: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child_pid:
            return status


def _redirect(log_path: str, keep_fds: Set[int]) -> None:
    """Keep no descriptor of the session that started us."""
    sys.stdin = open(os.devnull, encoding="ascii")
    null_fd = os.open(os.devnull, os.O_RDONLY)
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    procfs.close_fds_except(keep_fds)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")


class StartupPipe:
    """The pipe to the link: one word, once; afterwards its number may be another file's."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._closed = False

    def send(self, message: bytes) -> None:
        """Send the one message; later ones are dropped."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            os.write(self.descriptor, message)
        os.close(self.descriptor)

    def close(self) -> None:
        """Leave the word to the other who has it."""
        self._closed = True
        os.close(self.descriptor)
