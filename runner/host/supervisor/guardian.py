"""Guardian: the supervisor's parent process, which ends the run if the supervisor dies.

It is started once the run has its folder, with its copy of the code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from dataclasses import replace
from typing import Callable, NoReturn, Optional, Set

from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.peers.fold import Phase
from runner.host.peers.group import tell_death
from runner.host.process import procfs, subreaper
from runner.host.storage.keep import link_kept
from runner.host.storage.permissions import remove_tree
from runner.host.storage.pool import check_out
from runner.host.storage.run_folder import (
    create_run_folder,
    has_ended,
    read_order,
    write_atomic,
)
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.recovery import finalise_record, recover_unfinished
from runner.host.supervisor.supervisor import Supervisor

READY = b"ready"


def prepare(args: SupervisorArgs, spawn: Callable[[int], int]) -> int:
    """Make the run's folder, with its copy of the code, and start the supervisor.

    `spawn` does so, with the descriptor of its log, and what it returns is returned. A later
    attempt, and a node that rejoins, continue in the folder of an earlier one if there is one.
    """
    folder = args.folder
    order = args.order
    is_later = bool(order.attempt or order.rejoin_count)
    existed = os.path.lexists(folder.root)
    if existed and not is_later:
        raise ValueError(f"there is a run {order.run_id} in {order.workdir} already")
    if is_later:
        recover_unfinished(folder)
    if os.path.lexists(folder.stop_marker):
        raise ValueError("a stop of the run was requested")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(folder.relaunch_marker)
    has_work = os.path.lexists(folder.work)
    try:
        create_run_folder(folder, order, args.programs, args.record)
        if order.release and not has_work:
            check_out(order.workdir, order.release, folder.work)
            write_atomic(folder.checked_out, "")
        link_kept(order)
        return spawn(open_log(folder))
    except BaseException:
        made = (folder.work, folder.attempt_folder(order.attempt))
        for path in made if existed else (folder.root,):  # nothing was started
            if not has_work:
                remove_tree(path)
        with contextlib.suppress(OSError):  # another node has a part of the run there
            os.rmdir(os.path.dirname(folder.root))
        raise


def with_numeric_hub(order: Order) -> Order:
    """Look up the hub's name here: the supervisor must never wait for a resolver."""
    if order.hub is None:
        return order
    try:
        addresses = socket.getaddrinfo(order.hub.addr, order.hub.port, type=socket.SOCK_STREAM)
    except OSError:
        return order  # the supervisor will say that it cannot reach it
    return replace(order, hub=replace(order.hub, addr=str(addresses[0][4][0])))


def open_log(folder: RunPaths) -> int:
    """Open the log of guardian and supervisor; what they do next waits for no disk."""
    return os.open(folder.supervisor_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def spawn(args: SupervisorArgs, listener: socket.socket, log_fd: int) -> int:
    """Start guardian and supervisor, detached from this process and its session.

    Both hold `listener`, the socket of the run, until they end. The pipe that is returned carries
    `READY` or an error, or ends.
    """
    read_fd, write_fd = os.pipe()
    child_pid = os.fork()
    if child_pid == 0:
        _run_detached(args, listener, log_fd, write_fd)
    os.close(write_fd)
    os.waitpid(child_pid, 0)
    return read_fd


def _run_detached(
    args: SupervisorArgs, listener: socket.socket, log_fd: int, report_fd: int
) -> NoReturn:
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        kept = [listener, *args.reserved_ports.sockets]
        _redirect(log_fd, {report_fd, *(sock.fileno() for sock in kept)})
        _guard(args, listener, report_fd)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the agent must report it)
        traceback.print_exc()
        _report(report_fd, f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _report(report_fd: int, message: bytes) -> None:
    """Tell the agent, which reads the first message alone."""
    with contextlib.suppress(OSError):
        os.write(report_fd, message)


def _guard(args: SupervisorArgs, listener: socket.socket, report_fd: int) -> NoReturn:
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
                    supervisor = Supervisor(next_args, guardian_pid)
                    supervisor.run(listener, on_ready=lambda: _report(report_fd, READY))
                    next_args = supervisor.next_start()
                os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the guardian ends the run and records it)
            traceback.print_exc()
            _report(report_fd, f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.dup2(0, report_fd)  # the supervisor alone reports from here on
    args.reserved_ports.close()
    pid = status = 0
    while pid != supervisor_pid:
        pid, status = os.waitpid(-1, 0)
    order = read_order(folder) or order  # of the last attempt
    if not has_ended(folder, order):
        exit_text = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
        reason = f"its supervisor ended by {exit_text}"
        tell_death(order, args.token, reason)
        verified = finalise_record(folder, order, reason, environ=args.environ)
        if verified and order.relaunches_left:  # nobody need wait for it
            tell_death(order, args.token, reason, Phase.ENDED)
    os._exit(0)


def _redirect(log_fd: int, keep_fds: Set[int]) -> None:
    sys.stdin = open(os.devnull, encoding="ascii")
    null_fd = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null_fd, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    procfs.close_fds_except(keep_fds)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")
