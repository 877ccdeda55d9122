"""Guardian: the supervisor's parent process, which ends the run if the supervisor dies."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from typing import NoReturn, Optional, Set

from runner.core.wire.paths import RunPaths
from runner.host.peers.group import tell_death
from runner.host.peers.state import Phase
from runner.host.process import procfs, subreaper
from runner.host.storage.run_folder import has_ended, read_order
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.recovery import finalise_record
from runner.host.supervisor.supervisor import Supervisor

READY = b"ready"


def open_log(folder: RunPaths) -> int:
    """Open the log of guardian and supervisor; what they do next waits for no disk."""
    return os.open(folder.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def spawn(args: SupervisorArgs, listener: socket.socket, log_fd: int) -> int:
    """Start guardian and supervisor, detached from this process and its session.

    Both hold `listener`, the socket of the run, until they end. The pipe that is returned carries
    `READY` or an error, and then ends.
    """
    read_fd, write_fd = os.pipe()
    child_pid = os.fork()
    if child_pid == 0:
        _run_detached(args, listener, log_fd, StartupPipe(write_fd))
    os.close(write_fd)
    os.waitpid(child_pid, 0)
    return read_fd


def _run_detached(
    args: SupervisorArgs, listener: socket.socket, log_fd: int, startup_pipe: StartupPipe
) -> NoReturn:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        kept_fds = {startup_pipe.descriptor, listener.fileno(), *args.reserved_ports.descriptors}
        _redirect(log_fd, kept_fds)
        _guard(args, listener, startup_pipe)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the agent must report it)
        traceback.print_exc()
        startup_pipe.send(f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _guard(args: SupervisorArgs, listener: socket.socket, startup_pipe: StartupPipe) -> NoReturn:
    folder = args.folder
    order = args.order
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    subreaper.become_subreaper()
    guardian_pid = os.getpid()
    supervisor_pid = os.fork()
    if supervisor_pid == 0:
        try:
            subreaper.die_with_parent(signal.SIGTERM)
            if os.getppid() == guardian_pid:
                next_args: Optional[SupervisorArgs] = args
                while next_args is not None:
                    supervisor = Supervisor(next_args, listener, guardian_pid)
                    supervisor.run(on_ready=lambda: startup_pipe.send(READY))
                    next_args = supervisor.next_start()
                os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the guardian ends the run and records it)
            traceback.print_exc()
            startup_pipe.send(f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    startup_pipe.close()
    args.reserved_ports.close()
    pid = status = 0
    while pid != supervisor_pid:
        pid, status = os.waitpid(-1, 0)
    order = read_order(folder) or order  # of the last attempt
    if not has_ended(folder, order):
        exit_text = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
        reason = f"its supervisor ended by {exit_text}"
        tell_death(order, args.token, reason)
        verified = finalise_record(
            folder,
            order,
            reason,
            subreaper.own_descendants,
            reap=subreaper.reap_all,
            all_gone=subreaper.no_children_left,
            environ=args.environ,
        )
        if verified and order.relaunches_left:  # nobody need wait for it
            tell_death(order, args.token, reason, Phase.ENDED)
    os._exit(0)


def _redirect(log_fd: int, keep_fds: Set[int]) -> None:
    """Redirect the standard streams, and close every other descriptor of the session."""
    sys.stdin = open(os.devnull, encoding="ascii")
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    procfs.close_fds_except(keep_fds)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")


class StartupPipe:
    """The pipe to the agent: one message, once; later its number may be another file's."""

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
        """Close this process's end, and leave the message to the other process."""
        self._closed = True
        os.close(self.descriptor)
