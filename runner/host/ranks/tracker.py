"""Rank tracker: the starts and exits of this host's ranks, from the records of their shims.

Why the kernel killed a rank is in its log; why a shim left no record may be the disk.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from typing import Any, Callable, Dict, Mapping, NamedTuple, Optional, Set, Tuple

from runner.core.codec import decode
from runner.core.model.plan import Order
from runner.core.outcome.known_failures import is_secondary_error
from runner.core.outcome.tracebacks import final_exception, strip_rank_prefix
from runner.core.protocol.events import RankExited, RankStarted
from runner.core.protocol.paths import RunPaths, rank_source
from runner.core.text import describe_exit
from runner.host.process import procfs
from runner.host.storage.run_folder import BALLAST, EventLog, read_rank_records

TAIL_BYTES = 64 << 10  # at the end of a log, in which the final exception is searched
MAX_EXCEPTION_AGE_S = 60.0  # of the end of a log that explains an exit
KILL_TOLERANCE_S = 1.0
"""The most that a kill in the kernel's log may be apart from the recorded end: the pids there may
be those of another namespace."""

OOM_KILL = re.compile(
    r"((?:Memory cgroup out|Out) of memory: Killed process (\d+) \([^)]*\)[^,\n]*)"
)


class RankProcess(NamedTuple):
    """One start of a rank: its own program, and the shim above it."""

    pid: int
    shim_pid: int


class RankTracker:
    """Every start of every rank of an attempt on this host, recorded as it is found.

    `on_failure` is called with a description and the monotonic time of a rank's failure; not where
    torchrun may restart the rank, since it ends by itself if it does not.
    """

    def __init__(
        self,
        folder: RunPaths,
        order: Order,
        journal: EventLog,
        on_failure: Callable[[str, float], None],
    ) -> None:
        self._folder, self._order, self._journal = folder, order, journal
        self._on_failure = on_failure
        self._seen_records: Set[str] = set()
        self._started: Dict[Tuple[int, int], RankProcess] = {}
        self._exited: Set[Tuple[int, int]] = set()
        self._stderr_offset: Dict[int, int] = {}  # size of its stderr when a rank was restarted
        self._first_exception_at: Optional[float] = None
        self._secondary: Set[float] = set()  # when ranks ended because of another's failure
        self._nnodes = 0
        self._terminated: Set[int] = set()
        self._kill_at = float("inf")
        if order.rejoin_count:  # records from before the rejoin are known
            read_rank_records(folder.attempt_folder(order.attempt), self._seen_records)

    @property
    def pids(self) -> Set[int]:
        """The ranks that are running: those without an exit on record."""
        return {process.pid for key, process in self._started.items() if key not in self._exited}

    @property
    def shim_pids(self) -> Set[int]:
        """The shims of all starts."""
        return {process.shim_pid for process in self._started.values()}

    def scan_records(self, *, stopping: bool) -> None:
        """Record new starts and exits; when `stopping`, exits are not classified as failures."""
        attempt_folder = self._folder.attempt_folder(self._order.attempt)
        for kind, rank, data in read_rank_records(attempt_folder, self._seen_records):
            key = (rank, int(data["start"]))
            if kind == "start":
                event = decode(RankStarted, {**data, "rank": rank})
                self._started[key] = RankProcess(event.pid, int(data["shim"]))
                if event.start > 1:  # exceptions from before the restart no longer count
                    self._first_exception_at = None
                    with contextlib.suppress(OSError):
                        self._stderr_offset[rank] = os.path.getsize(self._stderr_path(rank))
                self._nnodes = event.nodes
                self._journal.append(event, mono=float(data["mono"]), wall=float(data["wall"]))
                continue
            self._exited.add(key)
            pid = self._started[key].pid if key in self._started else 0
            error = "" if stopping else kernel_kill_reason(pid, data)
            exception = self._find_exception(rank, float(data["wall"])) if data["code"] != 0 else ""
            self._journal.append_exit(rank, data, error, exception)
            if data["code"] != 0:
                self._classify_failure(exception, data, stopping=stopping)
                description = error or describe_exit(data["code"], data["signal"])
                self._report_failure(rank, description, float(data["mono"]))

    def record_vanished(self) -> None:
        """Record the exit of ranks whose shim is gone without a record."""
        alive = procfs.descendants(os.getpid())
        for (rank, start), process in sorted(self._started.items()):
            if (rank, start) not in self._exited and process.shim_pid not in alive:
                self._exited.add((rank, start))
                error = missing_record_reason(self._folder.root)
                self._journal.append(RankExited(rank, error=error, start=start))
                self._report_failure(rank, "ended unseen", time.monotonic())

    def first_own_failure(self, failed_at: Optional[float]) -> Optional[float]:
        """Return when the first rank failed on its own; `failed_at` is another known failure."""
        failure_times = (self._first_exception_at, failed_at)
        own_failures = [at for at in failure_times if at is not None and at not in self._secondary]
        return min(own_failures, default=None)

    def _stderr_path(self, rank: int) -> str:
        return self._folder.stream_log(self._order.attempt, rank_source(rank), "err")

    def _find_exception(self, rank: int, ended_at: float) -> str:
        try:
            with open(self._stderr_path(rank), "rb") as file:
                file_stat = os.fstat(file.fileno())
                if file_stat.st_mtime < ended_at - MAX_EXCEPTION_AGE_S:
                    return ""
                file.seek(max(self._stderr_offset.get(rank, 0), file_stat.st_size - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode(errors="replace")
        except OSError:
            return ""
        return final_exception(strip_rank_prefix(text.splitlines()))

    def _classify_failure(self, exception: str, data: Dict[str, Any], *, stopping: bool) -> None:
        """Note whether a rank failed on its own or because of another's failure (see `verdict`)."""
        failed_at, signum = float(data["mono"]), data["signal"]
        if is_secondary_error(exception):
            if signum in (None, signal.SIGABRT):
                self._secondary.add(failed_at)
        elif exception and self._first_exception_at is None and (signum or not stopping):
            self._first_exception_at = failed_at

    def _report_failure(self, rank: int, description: str, failed_at: float) -> None:
        if not self._order.restarts_ranks:
            self._on_failure(f"rank {rank} on {self._order.node} {description}", failed_at)

    def terminate_for_restart(self, nnodes: int) -> None:
        """End the ranks of a membership with more than `nnodes` nodes; torch restarts them.

        Otherwise they would wait long for the lost ones. Those of later ones stay.
        """
        if not nnodes or self._nnodes > nnodes:
            self._terminated = procfs.signal_all(self.pids, signal.SIGTERM)
            self._kill_at = time.monotonic() + self._order.grace_s

    def kill_overdue(self) -> None:
        """Kill those that did not end within the grace."""
        if time.monotonic() >= self._kill_at:
            self._kill_at = float("inf")
            procfs.signal_all(self._terminated & self.pids, signal.SIGKILL)


def missing_record_reason(root: str) -> str:
    """Return why a rank's shim could not record its end in the run folder `root`, "" if unknown."""
    try:
        disk = os.statvfs(root)
    except OSError as error:
        return f"ended, and could not record how: {error.strerror}"
    if disk.f_bavail * disk.f_frsize >= BALLAST:
        return ""
    return f"ended, and could not record how: No space left in {root}"


def kernel_kill_reason(pid: int, exit_record: Mapping[str, Any], log: str = procfs.KMSG) -> str:
    """Return why the kernel killed a rank, by the exit record of its shim.

    "" for any end but SIGKILL, and where the kernel's log has no reason or may not be read.
    """
    message = ""
    if exit_record["signal"] == signal.SIGKILL:
        for logged_at, text in procfs.read_kernel_log(log):
            match = OOM_KILL.search(text)
            apart_s = abs(logged_at - float(exit_record["mono"]))  # both times are monotonic
            if match and (int(match[2]) == pid or apart_s < KILL_TOLERANCE_S):
                message = f"was killed by the kernel: {match[1].strip()}"
    return message
