"""Stall monitor: notices that no rank makes progress, has their stacks dumped, may stop the run.

A rank makes progress when it prints, uses the CPU, or reads or writes files. Each host watches its
own ranks; their peer group knows for how long no rank of the run made any. Ranks that wait for
others use next to nothing. Before a host counts as stalled, its GPUs are sampled: they may work
for a rank that sleeps, or only wait in a collective while the rank's thread is busy.
"""

from __future__ import annotations

import contextlib
import glob
import os
import time
from typing import Callable, Dict, FrozenSet, Mapping, NamedTuple, Optional

from runner.core.model.order import Order
from runner.core.outcome.stacks import MIN_CPU_SHARE, STALL_REASON
from runner.core.protocol.events import ProgressResumed, Stalled
from runner.core.protocol.paths import STACKS_LOG, RunPaths
from runner.host.gpu import activity
from runner.host.process import bounded_child, procfs
from runner.host.process.file_worker import Submit
from runner.host.ranks import stacks
from runner.host.ranks.tracker import RankTracker
from runner.host.sampling import SampleRecorder
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.store_watch import StoreWatch

MAX_INTERVAL_S = 10.0
IO_COUNTERS = ("rchar", "wchar")
MIN_IO_BYTES = 1 << 20
"""Fewer bytes of I/O between two samples are not progress. Mapped files are read by page faults,
not by calls (proc(5))."""

STOP_DELAY_S = 4.0
"""How long after its own dump a host waits before it stops the run: other hosts notice the stall a
heartbeat later, and need time for their dumps."""

SETTLE_S = 2.0
"""How long after a dump a rank may still react to its signal: torch prints what a cut wait was."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    """What a process has used so far: CPU in clock ticks, and bytes of I/O."""

    cpu_ticks: int = 0
    io_bytes: int = 0


class Progress:
    """When a process of the run on this host last made progress, by monotonic time.

    `last_io` is the time of the last progress other than CPU use. What happened after the
    `last_sample` is not known: the next one may wait long for a disk.
    """

    def __init__(self, interval_s: float) -> None:
        """Begin now; a sample is expected every `interval_s`."""
        self.last_activity = self.last_io = self.last_sample = time.monotonic()
        self._interval_s = interval_s
        self._sizes: Mapping[str, int] = {}
        self._usage: Dict[int, Usage] = {}

    def mark_progress(self) -> None:
        """Note progress now."""
        self.last_activity = self.last_io = time.monotonic()

    def sample(self, sizes: Mapping[str, int], *root_pids: int, is_disturbed: bool = False) -> None:
        """Compare with the last sample; a much longer interval means that this host was suspended.

        `sizes` are those of files that show progress. What `root_pids` and their descendants use
        counts as well: the launcher process, and processes in a container. Nothing of an interval
        counts that `is_disturbed` by a dump.
        """
        now = time.monotonic()
        table = procfs.table() if root_pids else {}
        found = {pid for root in root_pids for pid in (root, *procfs.descendants(root, table))}
        pids = [pid for pid in found if pid in table]
        usage = {
            pid: Usage(table[pid].cpu_ticks, table[pid].page_faults * _PAGE_BYTES + _io_bytes(pid))
            for pid in pids
        }
        usage_pairs = [(usage[pid], self._usage.get(pid, Usage())) for pid in pids]
        since_s = now - self.last_sample
        min_ticks = MIN_CPU_SHARE * since_s * _TICKS_PER_S
        has_io = sizes != self._sizes or any(
            a.io_bytes - b.io_bytes >= MIN_IO_BYTES for a, b in usage_pairs
        )
        has_computed = any(a.cpu_ticks - b.cpu_ticks >= min_ticks for a, b in usage_pairs)
        if since_s > 2 * self._interval_s + 1 or (has_io and not is_disturbed):
            self.mark_progress()
        elif has_computed and not is_disturbed:
            self.last_activity = now
        self.last_sample = now
        self._sizes = dict(sizes)
        self._usage = usage


def _io_bytes(pid: int) -> int:
    """Return the bytes a process has read and written, 0 where that is hidden."""
    lines = [line.split(": ") for line in procfs.read_text(f"/proc/{pid}/io").splitlines()]
    return sum(int(number) for name, number in lines if name in IO_COUNTERS)


class Watchdog:
    """Detects a stall, has the stacks dumped, and records it."""

    def __init__(self, folder: RunPaths, order: Order, journal: EventLog) -> None:
        self._folder = folder
        self._order = order
        self._journal = journal
        self.interval_s = order.stall_s / 4 if order.stall_s else float("inf")
        self._progress = Progress(min(self.interval_s, 10.0))
        self._gpus_waiting = False
        self._reported_s: Optional[float] = None  # of the stall that is going on
        self._stop_at: Optional[float] = None
        self._disturbed_until = 0.0
        self._children: Dict[str, bounded_child.BoundedChild] = {}

    @property
    def is_dumping(self) -> bool:
        """Whether a stack dump is in progress."""
        return "dump" in self._children

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Its own children, which do not belong to the run."""
        return frozenset(child.pid for child in self._children.values())

    def progress_sizes(self) -> Mapping[str, int]:
        """Return the sizes that show progress: of the metrics files, if the order names any.

        Else they are those of the logs. It may wait for a disk.
        """
        folder = glob.escape(self._folder.attempt_folder(self._order.attempt))
        patterns = [os.path.join(folder, f"*.{kind}") for kind in ("out", "err", "metrics")]
        if self._order.metrics:
            cwd = glob.escape(self._order.cwd)
            patterns = [os.path.join(cwd, pattern) for pattern in self._order.metrics]
        sizes: Dict[str, int] = {}
        for pattern in patterns:
            for path in glob.iglob(pattern, recursive=True):
                with contextlib.suppress(OSError):
                    sizes[path] = os.stat(path).st_size
        sizes.pop(self._folder.stream_log(self._order.attempt, STACKS_LOG, "out"), None)
        return sizes

    def sample(self, sizes: Mapping[str, int], *root_pids: int) -> None:
        """Sample the progress of these processes and their descendants."""
        order = self._order
        progress = self._progress
        if order.stall_s and order.metrics:
            progress.sample(sizes)
        elif order.stall_s:
            progress.sample(sizes, *root_pids, is_disturbed=self._is_disturbed)
            if time.monotonic() - progress.last_io < order.stall_s / 2:
                self._gpus_waiting = False
            elif "gpus" not in self._children:
                child = activity.start(order.program.env.get("CUDA_VISIBLE_DEVICES"))
                self._children.update({"gpus": child} if child else {})

    @property
    def _is_disturbed(self) -> bool:
        """Whether ranks were dumped since the last sample, or could still react to that."""
        return self._progress.last_sample < self._disturbed_until

    @property
    def needs_sample(self) -> bool:
        """Whether ranks have settled after a dump: what they do from now on is progress again."""
        is_settled = self._disturbed_until <= time.monotonic()
        return bool(self._order.stall_s) and self._is_disturbed and is_settled

    @property
    def stalled_s(self) -> float:
        """For how long there had been no progress here at the last sample.

        CPU use does not count while the GPUs only wait, but that is a guess: it is reported, and
        alone stops no run.
        """
        gpus_only_wait = self._gpus_waiting and not self._order.stop_on_stall
        progress = self._progress
        last_progress = progress.last_io if gpus_only_wait else progress.last_activity
        return max(0.0, progress.last_sample - last_progress)

    @property
    def reason(self) -> str:
        """Why the run is to be stopped, "" if there is progress here after all."""
        if self.stalled_s < self._order.stall_s:
            return ""
        return f"{STALL_REASON} {self.stalled_s:.0f} s (watch.stall_s is {self._order.stall_s:g})"

    def check(self, stalled_s: Optional[float]) -> bool:
        """Record a stall of the whole run, or its end; `stalled_s` is None where not known.

        Returns whether the run is to be stopped, unless `reason` is "".
        """
        self._poll_children()
        if stalled_s is None or self.is_dumping:
            return False
        if self._reported_s is not None and stalled_s < self._order.stall_s:
            self._reported_s = None
            self._stop_at = None
            self._journal.append(ProgressResumed())
        elif self._reported_s is None and 0 < self._order.stall_s <= stalled_s:
            self._reported_s = stalled_s
            reason = f"no progress on any rank for {stalled_s:.0f} s"
            self._dump("dump", reason)
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def dump(self, reason: str) -> None:
        """Have the stacks dumped, unless that is under way; nothing is recorded."""
        if "asked" not in self._children:
            self._dump("asked", reason)

    def _dump(self, name: str, reason: str) -> None:
        self._children[name] = stacks.start_dump(self._folder, self._order, reason)
        self._disturbed_until = float("inf")

    def _poll_children(self) -> None:
        for name, child in [*self._children.items()]:
            child.advance()
            if child.code is None:
                continue
            del self._children[name]
            if name != "gpus" and not self._children.keys() & {"dump", "asked"}:
                self._disturbed_until = time.monotonic() + SETTLE_S
            if name == "gpus":
                gpu_activity = activity.result(child)
                self._gpus_waiting = gpu_activity is activity.GpuActivity.WAITING
                if gpu_activity is activity.GpuActivity.WORKING:
                    self._progress.mark_progress()
            elif name == "dump":
                when, problem = stacks.result(child)
                stop = self._order.stop_on_stall
                self._journal.append(Stalled(self._reported_s or 0.0, stop, problem, when))
                if stop:
                    self._stop_at = time.monotonic() + STOP_DELAY_S

    def close(self) -> None:
        """End the children; one that hangs in the kernel stays on our list."""
        for name, child in [*self._children.items()]:
            child.kill()
            if not procfs.is_running(child.pid):
                del self._children[name]


class StallMonitor:
    """The progress of the ranks here; where they are stalled, `fail` is called with the reason."""

    def __init__(
        self,
        folder: RunPaths,
        order: Order,
        journal: EventLog,
        launcher: LauncherProcess,
        ranks: RankTracker,
        submit: Submit,
        fail: Callable[[str], None],
    ) -> None:
        self._watchdog = Watchdog(folder, order, journal)
        self._interval_s = min(MAX_INTERVAL_S, self._watchdog.interval_s)
        self._next_at = time.monotonic()
        self._samples = SampleRecorder(folder, order, submit)
        self.stores = StoreWatch(order)
        self._launcher = launcher
        self._ranks = ranks
        self._submit = submit
        self._fail = fail
        self._is_standby = order.is_standby
        self._is_sampling = self._is_closed = False
        self._has_container = order.container is not None

    @property
    def is_dumping(self) -> bool:
        """Whether a stack dump is in progress."""
        return self._watchdog.is_dumping

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helpers, which do not belong to the run."""
        return self._watchdog.child_pids | self._samples.child_pids

    @property
    def stalled_s(self) -> float:
        """For how long no rank has made progress here; where none is left, the others decide."""
        has_ranks = not self._is_standby and self._launcher.exit_status is None
        return self._watchdog.stalled_s if has_ranks else float("inf")

    def is_due(self) -> bool:
        """Return whether the interval between two samples is over; another one begins then."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self._interval_s
        return True

    def sample(self, then: Callable[[], object] = int) -> None:
        """Take a sample of the logs and of the progress, unless one is being taken."""

        def take_sample(sizes: Mapping[str, int]) -> None:
            self._is_sampling = False
            launcher = self._launcher
            if launcher.is_running:
                # In a container, ranks are not below it; if they run as root, only they are seen.
                shims = self._ranks.running_shims if self._has_container else ()
                inside = {*launcher.container_pids(), *shims}
                self._watchdog.sample(sizes, launcher.pid, *inside)
            then()

        if not self._is_sampling:
            self._is_sampling = True
            self._submit(self._watchdog.progress_sizes, take_sample)

    def check(self, stalled_s: Optional[float], *, is_stopping: bool) -> None:
        """Have the watchdog act on the stall of the whole run, unless the end is near anyhow."""
        self._samples.tick(is_running=self._launcher.is_running)
        if self._launcher.is_running:
            self.stores.tick(self._launcher.container_pids)
        is_ending = is_stopping or self._launcher.exit_status is not None
        must_stop = self._watchdog.check(None if is_ending else stalled_s)
        if is_ending:
            return
        if self._watchdog.needs_sample:
            self.sample()
        elif must_stop:
            self.sample(self._fail_if_stalled)

    def dump(self, reason: str) -> None:
        """Have the stacks dumped, of no rank where all have ended, after a sample without that."""
        if self._is_sampling:
            self._watchdog.dump(reason)
        elif not self._is_closed:
            self.sample(lambda: self._watchdog.dump(reason))

    def _fail_if_stalled(self) -> None:
        if self._watchdog.reason:
            self._fail(self._watchdog.reason)

    def close(self) -> None:
        """End our helpers, and begin no more."""
        self._is_closed = True
        self._watchdog.close()
        self._samples.close()
