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
from runner.core.protocol.paths import RunFolder
from runner.core.protocol.states import State
from runner.host.process import cgroup, procfs
from runner.host.process.kill import confirmed, kill_all, reap_all
from runner.host.process.orphans import Family
from runner.host.storage import run_owner
from runner.host.storage.run_folder import (
    Journal,
    closed,
    rank_records,
    read_events,
    read_order,
    record_sizes,
)
from runner.host.storage.run_lock import Doorway
from runner.host.supervisor.sidecar import remove_data
from runner.host.supervisor.supervisor import Start, Supervisor

READY = b"ready"


def spawn(start: Start, lock: Optional[int]) -> int:
    """Start guardian and supervisor, detached from us and from our session.

    `lock` is that of the run's doorway, which they hold for life.

    Returns:
        A pipe: it says `READY`, or what went wrong, and then ends.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _detached(start, lock, _Report(writing))
    os.close(writing)
    os.waitpid(child, 0)
    return reading


def _detached(start: Start, lock: Optional[int], report: _Report) -> NoReturn:
    """Leave the session, fork once more, and guard."""
    try:
        os.setsid()
        if os.fork():
            os._exit(0)
        if lock is None:
            raise RuntimeError("this run has a supervisor here already")
        _redirect(start.folder.log, keep={report.descriptor, lock} | start.held.descriptors)
        _guard(start, report)
    except BaseException as error:  # noqa: BLE001 (whatever it is, the link must hear of it)
        traceback.print_exc()
        report.say(f"{type(error).__name__}: {error}".encode())
    os._exit(1)


def _guard(start: Start, report: _Report) -> NoReturn:
    folder, order = start.folder, start.order
    doorway = Doorway(order.run_id, order.node)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    procfs.become_subreaper()
    guardian = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            run_owner.note(folder, [guardian, os.getpid()])
            procfs.die_with_parent(signal.SIGTERM)
            if os.getppid() == guardian:
                supervisor = Supervisor(start, doorway, guardian)
                supervisor.run(ready=lambda: report.say(READY))
                onward = supervisor.onward()
                while onward is not None:
                    supervisor = Supervisor(onward, doorway, guardian)
                    supervisor.run(ready=lambda: None)
                    onward = supervisor.onward()
                os._exit(0)
        except BaseException as error:  # noqa: BLE001 (the guardian ends the run, with this on record)
            traceback.print_exc()
            report.say(f"{type(error).__name__}: {error}".encode())
        os._exit(1)
    report.drop()
    start.held.close()
    status = _wait_for(child)
    order = read_order(folder) or order  # that of its last attempt
    if not closed(folder, order):
        how = f"signal {status & 0x7F}" if status & 0x7F else f"exit code {status >> 8}"
        reason = f"its supervisor ended by {how}"
        alive = functools.partial(procfs.descendants, guardian)
        close_record(folder, order, reason, alive, gone=procfs.childless)
    doorway.remove()
    os._exit(0)


def close_record(
    folder: RunFolder,
    order: Order,
    reason: str,
    alive: Callable[[], List[int]],
    *,
    proven: bool = True,
    gone: Callable[[], bool] = lambda: True,
) -> None:
    """End what a dead supervisor left, and write its last lines in its stead.

    `proven` is whether an empty `alive` means that nothing of the run is left; an empty cgroup,
    where the program had one, means it as well. `gone` is that of `ending.kill_all`.
    """
    when = {"mono": time.monotonic(), "wall": time.time()}
    began = _beginning(folder, order)
    home = cgroup.recorded(began.cgroup, order.run_id, order.node, order.attempt)
    killed, survivors = kill_all(alive, reap_all, cgroup=home, gone=gone)
    record_sizes(folder, order.attempt, {})
    journal = Journal(folder, order)
    journal.reopen()
    journal.append(Stopping(reason), **when)
    known = {
        (event.body.rank, event.body.start)
        for event in read_events(folder)
        if isinstance(event.body, RankExited) and event.attempt == order.attempt
    }
    for kind, rank, data in rank_records(folder.attempt(order.attempt), set()):
        if kind == "exit" and (rank, data["start"]) not in known:
            journal.append_exit(rank, data)
    state = State.STUCK if survivors else State.FAILED
    proven = (proven or bool(home.path)) and confirmed(home, survivors)
    remove_data(folder, order)
    journal.end(Ended(state, reason, len(killed), survivors, proven))
    home.remove()


def close_unended(folder: RunFolder) -> None:
    """Write down the end of what nobody keeps here any more, where a power cut left none."""
    order = read_order(folder)
    if order is not None and not closed(folder, order):
        close_after_both(folder, order)


def close_after_both(folder: RunFolder, order: Order) -> None:
    """End what is left when supervisor and guardian are both gone.

    Without a cgroup only its mark in the environment tells what belonged to the run, and a process
    can clear that and leave its family.
    """
    family = family_of(folder, order)
    family.hold()
    reason = "its supervisor and its guardian died; what was left of it was killed"
    if not read_events(folder):
        reason = "its start was cut off"
    close_record(folder, order, reason, family.look, proven=False)


def family_of(folder: RunFolder, order: Order) -> Family:
    """Return the processes of a run that nobody keeps any more."""
    marks = _marks(order.run_id, order.node)
    starts = rank_records(folder.attempt(order.attempt), set())
    leaders = {int(data["shim"]) for kind, _, data in starts if kind == "start"}
    return Family(marks, leaders | {_beginning(folder, order).pid})


def _marks(run_id: str, node: str) -> Set[str]:
    return {f"RUNNER_RUN_ID={run_id}", f"RUNNER_NODE={node}"}


def leftovers(
    folder: RunFolder, run_id: str, node: str
) -> Tuple[Callable[[], List[int]], cgroup.Cgroup]:
    """Return what finds the processes of a run that nobody keeps any more, and its last cgroup.

    Also those that outlived SIGKILL before, and of a run whose order never arrived.
    """
    order = read_order(folder)
    if order is None:
        return Family(_marks(run_id, node), set()).look, cgroup.Cgroup()
    family = family_of(folder, order)
    home = cgroup.recorded(_beginning(folder, order).cgroup, run_id, node, order.attempt)
    stuck = _stuck(folder) if run_owner.this_boot(folder) else []

    def look() -> List[int]:
        return [*family.look(), *(pid for pid, start in stuck if procfs.start_of(pid) == start)]

    return look, home


def _stuck(folder: RunFolder) -> List[Tuple[int, int]]:
    """Return those that an end has on record as not to be killed, and when each began."""
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()
    found = []
    for event in read_events(folder):
        if isinstance(event.body, Ended):
            for pid in event.body.survivors:
                start = procfs.start_of(pid)
                if 0 <= start / os.sysconf("SC_CLK_TCK") <= event.mono + asleep:
                    found.append((pid, start))
    return found


def _beginning(folder: RunFolder, order: Order) -> ProgramStarted:
    """Return what is on record of the program's last start."""
    for event in reversed(read_events(folder)):
        if isinstance(event.body, ProgramStarted) and event.attempt == order.attempt:
            return event.body
    return ProgramStarted(0)


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
    procfs.close_all_but(keep)
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

    def drop(self) -> None:
        """Leave the word to the other who has it."""
        self._said = True
        os.close(self.descriptor)
