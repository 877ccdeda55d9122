"""Rank tracker: the starts and exits of this host's ranks, from the records of their shims.

Why the kernel killed a rank is in its log; why a shim left no record may be the disk.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Set, Tuple

from runner.core.wire.codec import decode
from runner.core.wire.events import RankExited, RanksSignalled, RankStarted
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths, rank_source
from runner.core.wire.states import Reason
from runner.core.wire.text import describe_exit, format_size
from runner.core.wire.tracebacks import final_exception, strip_rank_prefix
from runner.host.process import procfs
from runner.host.process.jobs import Submit
from runner.host.process.pid_namespace import INITIAL, ContainerProcesses, namespace_of
from runner.host.storage.run_folder import BALLAST, EventLog, read_rank_records

TAIL_BYTES = 64 << 10  # at the end of a log, in which the final exception is searched
MAX_EXCEPTION_AGE_S = 60.0  # of the end of a log that explains an exit
SCAN_INTERVAL_S = 0.05
KILL_TOLERANCE_S = 1.0
SAME_PID_S = 3600.0
"""The most that a kill in the kernel's log may be apart from the recorded end. The log has a clock
of its own; where its pids are those of another namespace, time is all there is."""

OOM_KILL = re.compile(
    r"((?:Memory cgroup out|Out) of memory: Killed process (\d+) \([^)]*\)[^,\n]*)"
)


@dataclass
class RankStart:
    """One start of a rank: its own program, and the shim above it."""

    rank: int
    number: int
    pid: int
    shim_pid: int
    shim_ticks: int  # when the shim began; -1 where its pid is not one of ours: in a container
    parent_pid: int  # the shim, or a fork server
    nodes: int  # how many the membership has that it was started for
    began_at: float  # monotonic
    has_ended: bool = False

    @property
    def shim_is_gone(self) -> bool:
        ticks = self.shim_ticks
        return ticks >= 0 and not procfs.is_same_process(self.shim_pid, ticks)


class RankRecord(NamedTuple):
    """What a shim recorded, with what else the files tell about a failure."""

    kind: str  # "start" or "exit"
    rank: int
    data: Dict[str, Any]
    exception: str = ""  # the last one on its stderr
    raised_s: float = 0.0  # how long before the end that was last written to
    reason: str = ""  # that the kernel killed it, or that its disk is full

    @property
    def key(self) -> Tuple[int, int]:
        return self.rank, int(self.data["start"])


class RankRecordReader:
    """Reads the shims' records and the ends of the ranks' logs; all that may wait for a disk."""

    def __init__(self, folder: RunPaths, order: Order) -> None:
        self._folder = folder
        self._order = order
        self._seen_records: Set[str] = set()
        self._pids: Dict[Tuple[int, int], int] = {}
        self._stderr_offset: Dict[int, int] = {}  # size of its stderr when a rank was restarted

    def skip_known(self) -> None:
        """Pass over the records from before a rejoin, which were read then."""
        if self._order.rejoin_count:
            attempt_folder = self._folder.attempt_folder(self._order.attempt)
            read_rank_records(attempt_folder, self._seen_records)

    def read(self) -> List[RankRecord]:
        attempt_folder = self._folder.attempt_folder(self._order.attempt)
        records = read_rank_records(attempt_folder, self._seen_records)
        return [self._explain(RankRecord(*record)) for record in records]

    def _explain(self, record: RankRecord) -> RankRecord:
        rank = record.rank
        data = record.data
        if record.kind == "start":
            self._pids[record.key] = int(data["pid"])
            if data["start"] > 1:
                with contextlib.suppress(OSError):
                    self._stderr_offset[rank] = os.path.getsize(self._stderr_path(rank))
        elif data["code"] != 0:
            reason = container_kill_reason(data) if self._order.container else ""
            if reason:
                data["facts"] = {**data.get("facts", {}), "memory_limit": "reached"}
            reason = reason or kernel_kill_reason(self._pids.get(record.key, 0), data)
            exception, raised_s = self._find_exception(rank, float(data["written_at"]))
            if not (reason or exception) and (problem := disk_problem(self._folder.root)):
                reason = f"{describe_exit(data['code'], data['signal'])}: {problem}"
            return record._replace(exception=exception, raised_s=raised_s, reason=reason)
        return record

    def _stderr_path(self, rank: int) -> str:
        return self._folder.stream_log(self._order.attempt, rank_source(rank), "err")

    def _find_exception(self, rank: int, ended_at: float) -> Tuple[str, float]:
        """Return the exception that ended a rank, and how long before its end it was there."""
        try:
            with open(self._stderr_path(rank), "rb") as file:
                file_stat = os.fstat(file.fileno())
                raised_s = max(0.0, ended_at - file_stat.st_mtime)
                if raised_s > MAX_EXCEPTION_AGE_S:
                    return "", 0.0
                file.seek(max(self._stderr_offset.get(rank, 0), file_stat.st_size - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return "", 0.0
        exception = final_exception(strip_rank_prefix(text.splitlines()))
        return exception, raised_s if exception else 0.0


class RankTracker:
    """Every start of every rank of an attempt on this host, recorded as it is found.

    `on_failure` is called with the reason and the monotonic time of a rank's failure; not where
    torchrun may restart the rank, since it ends by itself if it does not. What ended since
    `stopped_at`, when the attempt began to stop, did not fail.
    """

    def __init__(
        self,
        folder: RunPaths,
        order: Order,
        journal: EventLog,
        on_failure: Callable[[Reason, float], None],
        submit: Submit,
        stopped_at: Callable[[], float],
    ) -> None:
        self._order = order
        self._journal = journal
        self._submit = submit
        self._stopped_at = stopped_at
        self._on_failure = on_failure
        self._root = folder.root
        self._reader = RankRecordReader(folder, order)
        submit(self._reader.skip_known)
        self._next_scan = 0.0  # inf while a scan goes on
        self._starts: Dict[Tuple[int, int], RankStart] = {}
        self._groups_to_end: Set[int] = set()  # of ranks that have ended
        self._terminated: Set[int] = set()
        self._launcher_ended_at = float("inf")
        self._kill_at = float("inf")

    @property
    def shim_pids(self) -> Set[int]:
        """The shims of all starts, and the fork servers that tell them how their ranks end."""
        starts = self._starts.values()
        return {pid for start in starts for pid in (start.shim_pid, start.parent_pid)}

    @property
    def running_shims(self) -> Set[int]:
        """The shims of the running ranks, as far as they can be seen."""
        return {start.shim_pid for start in self._running} - {0}

    @property
    def _running(self) -> List[RankStart]:
        starts = (self._starts[key] for key in sorted(self._starts))
        return [start for start in starts if not start.has_ended]

    def signal(self, signum: int) -> None:
        """Send a signal to the running ranks alone: torchrun would end by it."""
        reached = procfs.signal_all({start.pid for start in self._running} - {0}, signum)
        self._journal.append(RanksSignalled(signum, len(reached)))

    def running_with_ancestors(self) -> Set[int]:
        """Return the programs of the running ranks, and the processes above them."""
        processes = procfs.table()
        found = {start.pid for start in self._running} & processes.keys()
        pending = [*found]
        while pending:
            parent = processes[pending.pop()].ppid
            if parent in processes and parent not in found:
                found.add(parent)
                pending.append(parent)
        return found

    def take_left_behind(self) -> List[int]:
        """Return what ranks, stopped or failed since the last call, left in their groups."""
        groups = self._groups_to_end - {0}
        self._groups_to_end = set()
        if not groups:
            return []
        processes = procfs.table()
        return [pid for pid in self._own_processes(processes) if processes[pid].group in groups]

    def tick(self) -> None:
        """Look for new records, and for shims that are gone; kill what outlived its grace."""
        now = time.monotonic()
        if now >= self._next_scan:
            gone = [start for start in self._running if start.shim_is_gone]
            self.scan_records(lambda: self._record_vanished(gone))
        if now >= self._kill_at:
            self._kill_at = float("inf")
            procfs.signal_all(self._terminated & self._own_ranks().keys(), signal.SIGKILL)

    def scan_records(self, then: Callable[[], object]) -> None:
        self._next_scan = float("inf")

        def take(records: List[RankRecord]) -> None:
            self._next_scan = time.monotonic() + SCAN_INTERVAL_S
            for record in records:
                self._take(record)
            then()

        self._submit(self._reader.read, take)

    def record_vanished(self, launcher_ended_at: Optional[float] = None) -> None:
        """Record the exit of ranks whose shim is gone without a record: before their launcher."""
        if launcher_ended_at is not None:
            self._launcher_ended_at = launcher_ended_at
        alive = procfs.descendants(os.getpid())
        self._record_vanished([start for start in self._running if start.shim_pid not in alive])

    def _record_vanished(self, starts: List[RankStart]) -> None:
        vanished = [start for start in starts if not start.has_ended]
        for start in vanished:
            start.has_ended = True
            self._groups_to_end.add(start.pid)
        if vanished:
            report = functools.partial(self._report_vanished, vanished, time.monotonic())
            self._submit(lambda: disk_problem(self._root), report)

    def _report_vanished(self, starts: List[RankStart], noticed_at: float, problem: str) -> None:
        error = problem and f"ended, and could not record how: {problem}"
        ended_at = min(noticed_at, self._launcher_ended_at) if error else noticed_at
        for start in starts:
            body = RankExited(start.rank, error=error, start=start.number)
            self._journal.append(body, mono=ended_at)
            self._report_failure(body, ended_at)

    def _take(self, record: RankRecord) -> None:
        rank = record.rank
        data = record.data
        if record.kind == "start":
            self._take_start(record)
            return
        start = self._starts.get(record.key)
        ended_at = float(data["mono"])
        was_stopped = ended_at >= self._stopped_at()
        error = "" if was_stopped else record.reason
        found = {"exception": record.exception, "raised_s": record.raised_s}
        body = self._journal.append_exit(rank, data, error=error, **found)
        if start is not None:
            start.has_ended = True
            if was_stopped or data["code"] != 0:
                self._groups_to_end.add(start.pid)
        if data["code"] != 0:
            self._report_failure(body, ended_at)

    def _take_start(self, record: RankRecord) -> None:
        data = record.data
        origin = {"rank": record.rank, "forked": data["parent"] != data["shim"]}
        event = decode(RankStarted, {**data, **origin})
        shim_pid = int(data["shim"])
        is_ours = shim_pid in procfs.descendants(os.getpid())
        ticks = procfs.start_ticks_of(shim_pid) if is_ours else -1
        began_at = float(data["mono"])
        self._starts[record.key] = RankStart(
            *record.key, event.pid, shim_pid, ticks, int(data["parent"]), event.nodes, began_at
        )
        self._journal.append(event, mono=began_at, wall=float(data["wall"]))

    def _report_failure(self, body: RankExited, failed_at: float) -> None:
        if not self._order.restarts_ranks:
            self._on_failure(body.reason(self._order.node), failed_at)

    def _own_ranks(self) -> Dict[int, RankStart]:
        """Return the running ranks whose shims descend from us or are in our container.

        A number in a record may be that of another process meanwhile, or of another namespace.
        """
        processes = procfs.table()
        ours = self._own_processes(processes)
        return {
            start.pid: start
            for start in self._running
            if start.pid in ours and processes[start.pid].ppid == start.parent_pid
        }

    def _own_processes(self, processes: Dict[int, procfs.Process]) -> Set[int]:
        order = self._order
        ours = {*procfs.descendants(os.getpid(), processes)}
        if order.container:
            tags = procfs.env_tags(order.run_id, order.node)
            ours.update(ContainerProcesses(tags).scan(processes))
        return ours

    def terminate_for_restart(self, nnodes: int, departed_at: float) -> None:
        """End the ranks of a membership with more than `nnodes` nodes; torch restarts them.

        Otherwise they would wait long for the lost ones. Those of later ones stay: where the number
        is not known (0), what began since the departure.
        """
        pids = {
            pid
            for pid, start in self._own_ranks().items()
            if (start.nodes > nnodes if nnodes else start.began_at < departed_at)
        }
        if pids - self._terminated:
            self._terminated |= procfs.signal_all(pids - self._terminated, signal.SIGTERM)
            self._kill_at = time.monotonic() + self._order.grace_s


def disk_problem(root: str) -> str:
    """Return why nothing can be written in the run folder `root`, "" where something can."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return error.strerror or str(error)
    if disk.f_bavail * disk.f_frsize > 2 * BALLAST:  # both may have been freed for a record
        return ""
    return f"No space left in {root}"


def container_kill_reason(exit_record: Mapping[str, Any]) -> str:
    """Return that the memory limit of its container ended a rank, by the counts of its shim.

    The kernel may have killed a child of it; "" for any other end.
    """
    kills, limit = (int(exit_record.get(name, 0)) for name in ("oom_kills", "memory_limit"))
    if kills <= 0 or not limit:
        return ""
    text = f"the memory limit of its container ({format_size(limit)}) was reached"
    if exit_record["signal"] == signal.SIGKILL:
        return f"was killed by the kernel: {text}"
    outcome = describe_exit(exit_record["code"], exit_record["signal"])
    return f"{outcome} after the kernel had killed a process: {text}"


def kernel_kill_reason(pid: int, exit_record: Mapping[str, Any], log: str = procfs.KMSG) -> str:
    """Return why the kernel killed a rank, by the exit record of its shim.

    "" for any end but SIGKILL, and where the kernel's log has no reason or may not be read.
    """
    message = ""
    if exit_record["signal"] == signal.SIGKILL:
        for logged_at, text in procfs.read_kernel_log(log):
            match = OOM_KILL.search(text)
            apart_s = abs(logged_at - float(exit_record["mono"]))  # both times are monotonic
            if not match:
                continue
            if namespace_of() == INITIAL:
                is_it = int(match[2]) == pid and apart_s < SAME_PID_S
            else:
                is_it = apart_s < KILL_TOLERANCE_S
            if is_it:
                message = f"was killed by the kernel: {match[1].strip()}"
    return message
