"""The guardian: the supervisor's parent, there so that the supervisor's own death ends the run."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import traceback
from typing import Callable, Dict, List, NoReturn, Optional, Set

from runner.core.events import Ended, RankExited, Stopping
from runner.core.layout import RunFolder
from runner.core.order import Order
from runner.core.states import State
from runner.host import proc
from runner.host.doorway import Doorway
from runner.host.ending import kill_all, reap_all
from runner.host.records import Journal, closed, rank_records, read_events
from runner.host.supervisor import Supervisor

READY = b"ready"


def spawn(
    folder: RunFolder, order: Order, environ: Dict[str, str], held: Optional[socket.socket]
) -> int:
    """Start guardian and supervisor, detached from us and from our session.

    Returns:
        A pipe: it says `READY`, or what went wrong, and then ends.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _detached(folder, order, environ, held, _Report(writing))
    os.close(writing)
    os.waitpid(child, 0)
    return reading


def _detached(
    folder: RunFolder,
    order: Order,
    environ: Dict[str, str],
    held: Optional[socket.socket],
    report: _Report,
) -> NoReturn:
    """Leave the session, fork once more, and guard."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        _redirect(folder.log, keep={report.descriptor} | ({held.fileno()} if held else set()))
        doorway = Doorway(order.run_id, order.node)
        doorway.make()
        lock = doorway.lock()
        if lock is None:
            raise RuntimeError("this run has a supervisor here already")
        if closed(folder, order):  # by another link, while ours still copied the code
            raise RuntimeError("this run was ended before its start")
        os.set_inheritable(lock, False)
        _guard(folder, order, environ, doorway, held, report)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the link must hear of it)
        traceback.print_exc()
        report.say(f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _guard(
    folder: RunFolder,
    order: Order,
    environ: Dict[str, str],
    doorway: Doorway,
    held: Optional[socket.socket],
    report: _Report,
) -> NoReturn:
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    proc.become_subreaper()
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            proc.die_with_parent(signal.SIGTERM)
            if os.getppid() == guardian:
                supervisor = Supervisor(folder, order, environ, doorway, held)
                supervisor.run(ready=lambda: report.say(READY))
                os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the guardian ends the run, with this on record)
            traceback.print_exc()
            report.say(f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    os.close(report.descriptor)
    if held is not None:
        held.close()
    status = _wait_for(child)
    if not closed(folder, order):
        how = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
        reason = f"its supervisor ended by {how}"
        close_record(folder, order, reason, lambda: proc.descendants(guardian))
    doorway.remove()
    os._exit(0)


def close_record(
    folder: RunFolder,
    order: Order,
    reason: str,
    alive: Callable[[], List[int]],
    *,
    proven: bool = True,
) -> None:
    """End what a dead supervisor left, and write its last lines in its stead.

    `proven` is whether an empty `alive` means that nothing of the run is left.
    """
    journal = Journal(folder, order)
    journal.append(Stopping(reason))
    killed, survivors = kill_all(alive, reap_all)
    known = {
        event.body.rank
        for event in read_events(folder)
        if isinstance(event.body, RankExited) and event.attempt == order.attempt
    }
    for kind, rank, data in rank_records(folder.attempt(order.attempt), set()):
        if kind == "exit" and rank not in known:
            journal.append_exit(rank, data)
    state = State.STUCK if survivors else State.FAILED
    journal.end(Ended(state, reason, len(killed), survivors, proven))


def _wait_for(child: int) -> int:
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _redirect(log: str, keep: Set[int]) -> None:
    """Keep no descriptor of the session that started us."""
    sys.stdin = open(os.devnull, encoding="ascii")
    null = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    proc.close_all_but(keep)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False, encoding="utf-8")


class _Report:
    """The pipe to the link: one word, once; afterwards its number may be another file's."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._said = False

    def say(self, text: bytes) -> None:
        if self._said:
            return
        self._said = True
        with contextlib.suppress(OSError):
            os.write(self.descriptor, text)
        os.close(self.descriptor)
