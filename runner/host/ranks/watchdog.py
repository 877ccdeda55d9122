"""Whether anything of the run still moves, and what is done when nothing does.

A rank moves when it prints, uses the CPU, or reads or writes files. Each host sees that of its own
ranks; their circle tells for how long nobody's has moved. To wait for others costs next to
nothing: somebody who computes or loads moves, and so does the run. Before a host counts as still,
its GPUs are looked at: they may work for a rank that sleeps, or keep one busy that only waits.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Dict, FrozenSet, Mapping, NamedTuple, Optional

from runner.core.model.order import Order
from runner.core.outcome.stacks import STALL_REASON
from runner.core.protocol.events import ProgressResumed, Stalled
from runner.core.protocol.paths import STACKS_LOG, RunPaths
from runner.host.gpu import activity
from runner.host.process import bounded_child, procfs
from runner.host.ranks import stacks
from runner.host.storage.journal import EventLog

MIN_CPU_SHARE = 0.05
"""A process that uses less than this part of a core does no more than look whether it may go on."""

IO_COUNTERS = ("rchar", "wchar")
MIN_IO_BYTES = 1 << 20
"""One that reads and writes fewer bytes between two looks does no more than that either. A file
that is mapped is read by no call, but by page faults (proc(5))."""

STOP_DELAY_S = 4.0
"""Once its own stacks are on record, a host leaves the others this long before it stops the run:
they hear of the stall a beat of the circle later, and finish a dump that they are at."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What a process has used so far: clock ticks of the CPU, and bytes of files."""

    cpu_ticks: int = 0
    io_bytes: int = 0


class Progress:
    """When a process of the run on this host was last seen to move.

    Attributes:
        last_activity: That moment, monotonic.
        last_io: The last one in which it did more than use the CPU.
    """

    def __init__(self, interval_s: float) -> None:
        """Begin; somebody looks every `interval_s`."""
        self.last_activity = self.last_io = self._last_sample = time.monotonic()
        self._interval_s = interval_s
        self._sizes: Mapping[str, int] = {}
        self._usage: Dict[int, Usage] = {}

    def mark_progress(self) -> None:
        """Take that something moved now."""
        self.last_activity = self.last_io = time.monotonic()

    def sample_metrics(self, sizes: Mapping[str, int]) -> None:
        """Compare the files that grow with each step; see `sample`."""
        now = time.monotonic()
        if now - self._last_sample > 2 * self._interval_s + 1 or sizes != self._sizes:
            self.mark_progress()
        self._last_sample, self._sizes = now, dict(sizes)

    def sample(self, sizes: Mapping[str, int], root_pid: int) -> None:
        """Compare with the last look; after a longer pause we stood still ourselves (a freeze).

        Args:
            sizes: How long each log is.
            root_pid: The process whose descendants are the run's.
        """
        now, table = time.monotonic(), procfs.table()
        pids = [pid for pid in (root_pid, *procfs.descendants(root_pid, table)) if pid in table]
        usage = {
            pid: Usage(table[pid].cpu_ticks, table[pid].page_faults * _PAGE_BYTES + _io_bytes(pid))
            for pid in pids
        }
        usage_pairs = [(usage[pid], self._usage.get(pid, Usage())) for pid in pids]
        min_ticks = MIN_CPU_SHARE * (now - self._last_sample) * _TICKS_PER_S
        frozen = now - self._last_sample > 2 * self._interval_s + 1
        if (
            frozen
            or sizes != self._sizes
            or any(a.io_bytes - b.io_bytes >= MIN_IO_BYTES for a, b in usage_pairs)
        ):
            self.mark_progress()
        elif any(a.cpu_ticks - b.cpu_ticks >= min_ticks for a, b in usage_pairs):
            self.last_activity = now
        self._last_sample, self._sizes, self._usage = now, dict(sizes), usage


def _io_bytes(pid: int) -> int:
    """Return how many bytes a process has read and written so far, 0 where that is hidden."""
    lines = [line.split(": ") for line in procfs.read_text(f"/proc/{pid}/io").splitlines()]
    return sum(int(number) for name, number in lines if name in IO_COUNTERS)


def _metric_sizes(order: Order) -> Dict[str, int]:
    """Return how long each file is that grows with the steps."""
    sizes: Dict[str, int] = {}
    for pattern in order.metrics:
        for path in glob.iglob(os.path.join(glob.escape(order.cwd), pattern), recursive=True):
            with contextlib.suppress(OSError):
                sizes[path] = os.stat(path).st_size
    return sizes


class Watchdog:
    """Sees that nothing moves, has the stacks of the ranks written down, and says so."""

    def __init__(self, folder: RunPaths, order: Order, journal: EventLog) -> None:
        self._folder, self._order, self._journal = folder, order, journal
        self.interval_s = order.stall_s / 4 if order.stall_s else float("inf")
        self._progress = Progress(min(self.interval_s, 10.0))
        self._stalled = False
        self._dump_child: Optional[bounded_child.BoundedChild] = None
        self._stop_at: Optional[float] = None
        self._gpu_child: Optional[bounded_child.BoundedChild] = None
        self._gpus_waiting = False

    @property
    def is_dumping(self) -> bool:
        """Whether it has the stacks written down at this moment."""
        return self._dump_child is not None

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Its own children, which are none of the run's."""
        return frozenset(
            child.pid for child in (self._dump_child, self._gpu_child) if child is not None
        )

    def sample(self, sizes: Mapping[str, int], root_pid: int) -> None:
        """See what moved of the program `root_pid` and its descendants."""
        if self._order.stall_s and self._order.metrics:
            self._progress.sample_metrics(_metric_sizes(self._order))
        elif self._order.stall_s:
            rank_sizes = {name: size for name, size in sizes.items() if name != f"{STACKS_LOG}.out"}
            self._progress.sample(rank_sizes, root_pid)
            no_io_s = time.monotonic() - self._progress.last_io
            if no_io_s < self._order.stall_s / 2:
                self._gpus_waiting = False
            elif self._gpu_child is None:
                self._gpu_child = activity.start(self._order.env.get("CUDA_VISIBLE_DEVICES"))

    @property
    def stalled_s(self) -> float:
        """For how long nothing has moved here.

        That its GPUs only wait is a guess from outside: it is reported, and no run is stopped for
        it alone.
        """
        gpus_only_wait = self._gpus_waiting and not self._order.stop_on_stall
        return time.monotonic() - (
            self._progress.last_io if gpus_only_wait else self._progress.last_activity
        )

    def check(self, stalled_s: Optional[float]) -> bool:
        """Act on it that nothing of the run has moved anywhere for so long; None is not known.

        Returns:
            Whether the run is to be stopped, if one more look finds that nothing moves here.
        """
        self._poll_children(stalled_s or 0.0)
        if stalled_s is None or self._dump_child is not None:
            return False
        if self._stalled and stalled_s < self._order.stall_s:
            self._stalled, self._stop_at = False, None
            self._journal.append(ProgressResumed())
        elif not self._stalled and 0 < self._order.stall_s <= stalled_s:
            self._stalled = True
            reason = f"nothing of the run has moved for {stalled_s:.0f} s"
            self._dump_child = stacks.start_dump(
                self._folder, self._order, reason, include_text=False
            )
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    @property
    def reason(self) -> str:
        """Why the run is to be stopped, "" if something moves here after all."""
        if self.stalled_s < self._order.stall_s:
            return ""
        return f"{STALL_REASON} {self.stalled_s:.0f} s (watch.stall_s is {self._order.stall_s:g})"

    def _poll_children(self, stalled_s: float) -> None:
        """See how far our children are: what the GPUs do, and whether the stacks are on record."""
        if self._gpu_child is not None:
            self._gpu_child.advance()
            if self._gpu_child.code is not None:
                gpu_activity, self._gpu_child = activity.result(self._gpu_child), None
                self._gpus_waiting = gpu_activity is activity.GpuActivity.WAITING
                if gpu_activity is activity.GpuActivity.WORKING:
                    self._progress.mark_progress()
        if self._dump_child is not None:
            self._dump_child.advance()
            if self._dump_child.code is not None:
                report, problem = stacks.result(self._dump_child)
                self._dump_child = None
                stop = self._order.stop_on_stall
                self._journal.append(Stalled(stalled_s, stop, problem, report.get("when", "")))
                if stop:
                    self._stop_at = time.monotonic() + STOP_DELAY_S

    def close(self) -> None:
        """Look no more."""
        self._dump_child, self._gpu_child = (
            _kill_child(child) for child in (self._dump_child, self._gpu_child)
        )


def _kill_child(
    child: Optional[bounded_child.BoundedChild],
) -> Optional[bounded_child.BoundedChild]:
    """Kill a child; return it if it is there all the same: one that hangs in the kernel is."""
    if child is None:
        return None
    child.kill()
    return child if procfs.is_running(child.pid) else None
