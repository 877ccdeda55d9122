"""Stall monitor: notices that no rank makes progress, has their stacks dumped, may stop the run.

A rank makes progress when it prints, uses the CPU, or reads or writes files; those that wait for
others use next to nothing. A GPU may work for a rank that sleeps, or only wait: NCCL's kernels
poll, which keeps the GPU at 100 % and the rank's thread busy, but accesses no memory.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import time
from typing import Callable, Dict, FrozenSet, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from runner.core.wire.events import ProgressResumed, Stalled
from runner.core.wire.order import Order
from runner.core.wire.paths import STACKS_LOG, RunPaths
from runner.core.wire.run_info import GpuSample
from runner.core.wire.states import Reason, ReasonKind
from runner.host.process import bounded_child, procfs
from runner.host.process.jobs import Submit
from runner.host.ranks import stacks
from runner.host.ranks.tracker import RankTracker
from runner.host.sampling import SampleRecorder
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.store_watch import StoreWatch

MAX_INTERVAL_S = 10.0
MIN_CPU_SHARE = 0.05
"""A process that uses less than this part of a core is only polling."""

IO_COUNTERS = ("rchar", "wchar")
MIN_IO_BYTES = 1 << 20
"""Fewer bytes of I/O between two samples are not progress. Mapped files are read by page faults,
not by calls (proc(5))."""

STOP_DELAY_S = 4.0
"""How long after its own dump a host waits before it stops the run: other hosts notice the stall a
heartbeat later, and need time for their dumps."""

MAX_WANTED = 2  # dumps: the one under way, and the one after it
SETTLE_S = 2.0
"""How long after a dump a rank may still react to its signal: torch prints what a cut wait was."""

BUSY_PERCENT = 90
IDLE_PERCENT = 5
"""Percent of the time in which a kernel ran (nvmlUtilization_t)."""

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class Usage(NamedTuple):
    cpu_ticks: int = 0
    io_bytes: int = 0


class Progress:
    """When a process of the run on this host last made progress, by monotonic time.

    `last_io` is the time of the last progress other than CPU use. What happened after the
    `last_sample` is not known: the next one may wait long for a disk. If it `trusts_gpus`, CPU use
    does not count while the GPUs only wait: a guess, which alone is to stop no run.
    """

    def __init__(self, stall_s: float, *, trusts_gpus: bool) -> None:
        self._trusts_gpus = trusts_gpus
        self.mark()
        self.last_sample = self.last_io
        self.gpus_seen_at = -math.inf
        self.gpus_wait_since = math.inf  # at each look since then, all of them only waited
        self.disturbed_until = 0.0  # by a dump
        self.interval_s = min(MAX_INTERVAL_S, stall_s / 4 or MAX_INTERVAL_S)
        self._next_at = self.last_sample
        self._sizes: Mapping[str, int] = {}
        self._usage: Dict[int, Usage] = {}

    @property
    def is_disturbed(self) -> bool:
        """Whether ranks were dumped since the last sample, or could still react to that."""
        return self.last_sample < self.disturbed_until

    @property
    def standstill_s(self) -> float:
        """For how long there had been no progress at the last sample."""
        last_progress = self.last_activity
        if self._trusts_gpus and self.gpus_wait_since < math.inf:
            last_progress = min(last_progress, max(self.last_io, self.gpus_wait_since))
        return max(0.0, self.last_sample - last_progress)

    def mark(self) -> None:
        self.last_io = time.monotonic()
        self.last_activity = self.last_io

    def is_due(self) -> bool:
        """Return whether the interval between two samples is over; another one begins then."""
        now = time.monotonic()
        if now < self._next_at:
            return False
        self._next_at = now + self.interval_s
        return True

    def look_at_gpus(self, gpus: Iterable[GpuSample]) -> None:
        self.gpus_seen_at = time.monotonic()
        do_work = gpus_work(gpus)
        if do_work:
            self.mark()
        wait_since = min(self.gpus_wait_since, self.gpus_seen_at)
        self.gpus_wait_since = wait_since if do_work is False else math.inf

    def sample(self, sizes: Mapping[str, int], *root_pids: int) -> None:
        """Compare with the last sample; a much longer interval means that this host was suspended.

        `sizes` are those of the ranks' files. What `root_pids` and their descendants use counts as
        well: the launcher process, and processes in a container. Nothing of an interval counts in
        which a dump disturbed them.
        """
        now = time.monotonic()
        table = procfs.table()
        found = {pid for root in root_pids for pid in (root, *procfs.descendants(root, table))}
        usage = {
            pid: Usage(table[pid].cpu_ticks, table[pid].page_faults * _PAGE_BYTES + _io_bytes(pid))
            for pid in found
            if pid in table
        }
        since_s = now - self.last_sample
        min_ticks = MIN_CPU_SHARE * since_s * _TICKS_PER_S
        has_io = sizes != self._sizes
        has_computed = False
        for pid, used in usage.items():
            before = self._usage.get(pid, Usage())
            has_io = has_io or used.io_bytes - before.io_bytes >= MIN_IO_BYTES
            has_computed = has_computed or used.cpu_ticks - before.cpu_ticks >= min_ticks
        if since_s > 2 * self.interval_s + 1 or (has_io and not self.is_disturbed):
            self.mark()
        elif has_computed and not self.is_disturbed:
            self.last_activity = now
        self.last_sample = now
        self._sizes = sizes
        self._usage = usage


def _io_bytes(pid: int) -> int:
    """Return the bytes a process has read and written, 0 where that is hidden."""
    lines = [line.split(": ") for line in procfs.read_text(f"/proc/{pid}/io").splitlines()]
    return sum(int(number) for name, number in lines if name in IO_COUNTERS)


def gpus_work(gpus: Iterable[GpuSample]) -> Optional[bool]:
    """Return whether GPUs work, or only wait; None if some are idle, or none of them answers."""
    known = [
        (gpu.utilization, gpu.memory_busy)
        for gpu in gpus
        if gpu.utilization is not None and gpu.memory_busy is not None
    ]
    if any(busy > IDLE_PERCENT and used for busy, used in known):
        return True
    return False if known and all(busy >= BUSY_PERCENT for busy, _ in known) else None


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
        fail: Callable[[Reason], None],
    ) -> None:
        self._folder = folder
        self._order = order
        self._journal = journal
        self._launcher = launcher
        self._ranks = ranks
        self._submit = submit
        self._fail = fail
        self.progress = Progress(order.stall_s, trusts_gpus=not order.stop_on_stall)
        self._reported_s: Optional[float] = None  # of the stall that is going on
        self._stop_at = math.inf
        self._wanted: List[Tuple[str, bool]] = []  # why dumps are, and whether a stall is why
        self._dump: Optional[bounded_child.BoundedChild] = None  # for the first of them
        self._is_sampling = False
        self._recorder = SampleRecorder(folder, order, submit)
        self.stores = StoreWatch(order)

    @property
    def is_dumping(self) -> bool:
        """Whether the stacks of a stall are being dumped."""
        return any(is_of_stall for _, is_of_stall in self._wanted)

    @property
    def child_pids(self) -> FrozenSet[int]:
        """Our own helpers, which do not belong to the run."""
        own = frozenset((self._dump.pid,)) if self._dump else frozenset()
        return own | self._recorder.sampler.gpus.pids

    @property
    def stalled_s(self) -> float:
        """For how long no rank has made progress here; where none is left, the others decide."""
        has_ranks = not self._order.is_standby and self._launcher.exit_status is None
        return self.progress.standstill_s if has_ranks else float("inf")

    def sample(self, then: Callable[[], object] = int) -> None:
        """Take a sample of the progress, and call `then`, unless one is being taken."""
        if not self._is_sampling:
            self._is_sampling = True
            self._submit(self.log_sizes, functools.partial(self._on_sizes, then))

    def log_sizes(self) -> Mapping[str, int]:
        """Return the sizes of what ranks write, but for their stacks, which we do."""
        folder = self._folder.attempt_folder(self._order.attempt)
        sizes: Dict[str, int] = {}
        for name in procfs.list_names(folder):
            if name.endswith((".out", ".err", ".metrics")) and name != f"{STACKS_LOG}.out":
                with contextlib.suppress(OSError):
                    sizes[name] = os.stat(os.path.join(folder, name)).st_size
        return sizes

    def _on_sizes(self, then: Callable[[], object], sizes: Mapping[str, int]) -> None:
        self._is_sampling = False
        if self._order.stall_s and self._launcher.is_running:
            # In a container, ranks are not below it; if they run as root, only their shims are.
            shims = self._ranks.running_shims if self._order.container else ()
            pids = (self._launcher.pid, *self._launcher.container_pids(), *shims)
            self.progress.sample(sizes, *pids)
        then()

    def _look_at_gpus(self) -> None:
        progress = self.progress
        is_due = time.monotonic() - progress.gpus_seen_at >= progress.interval_s
        answer = self._recorder.sampler.gpus.poll() if is_due else None
        if answer is None:
            return
        gpus = answer.gpus
        visible = self._order.program.env.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:  # other GPUs do not count
            indices = {word.strip() for word in visible.split(",")}
            gpus = tuple(gpu for gpu in gpus if str(gpu.index) in indices)
        progress.look_at_gpus(gpus)

    def check(self, stalled_s: Optional[float], *, is_stopping: bool) -> None:
        """Record a stall of the whole run, or its end, unless the end of the run is near anyhow.

        `stalled_s` is None where it is not known.
        """
        now = time.monotonic()
        if self._launcher.is_running:
            self._recorder.tick()
            if self._order.stall_s:
                self._look_at_gpus()
            self.stores.tick(self._launcher.container_pids)
        self._poll_dump()
        if is_stopping or self._launcher.exit_status is not None:
            return
        limit_s = self._order.stall_s
        if stalled_s is not None and not self.is_dumping:
            if self._reported_s is not None and stalled_s < limit_s:
                self._reported_s = None
                self._stop_at = math.inf
                self._journal.append(ProgressResumed())
            elif self._reported_s is None and 0 < limit_s <= stalled_s:
                self._reported_s = stalled_s
                self._wanted.append((f"no progress on any rank for {stalled_s:.0f} s", True))
        progress = self.progress
        if limit_s and progress.is_disturbed and progress.disturbed_until <= now:
            self.sample()  # ranks have settled after a dump: what they do from now on is progress
        elif stalled_s is not None and now >= self._stop_at:
            self.sample(self._fail_if_stalled)

    def _fail_if_stalled(self) -> None:
        stalled_s = self.progress.standstill_s
        limit_s = self._order.stall_s
        if stalled_s >= limit_s:
            detail = f"{stalled_s:.0f} s (watch.stall_s is {limit_s:g})"
            self._fail(Reason(ReasonKind.STALL, self._order.node, detail=detail))

    def dump(self, reason: str) -> None:
        """Have the stacks dumped, after a sample without that; a dump that waits will do, too."""

        def want() -> None:
            if len(self._wanted) < MAX_WANTED:
                self._wanted.append((reason, False))

        if self._is_sampling:
            want()
        else:
            self.sample(want)

    def _poll_dump(self) -> None:
        child = self._dump
        if child is not None:
            child.advance()
            if child.code is None:
                return
            self._dump = None
            self.progress.disturbed_until = time.monotonic() + SETTLE_S
            _, is_of_stall = self._wanted.pop(0)
            if is_of_stall:
                when, problem = stacks.result(child)
                stop = self._order.stop_on_stall
                self._journal.append(Stalled(self._reported_s or 0.0, stop, problem, when))
                if stop:
                    self._stop_at = time.monotonic() + STOP_DELAY_S
        if self._wanted:
            self._dump = stacks.start_dump(self._folder, self._order, self._wanted[0][0])
            self.progress.disturbed_until = float("inf")

    def close(self) -> None:
        """End our helpers; one that hangs in the kernel stays on our list."""
        if self._dump is not None:
            self._dump.kill()
            if not procfs.is_running(self._dump.pid):
                self._dump = None
        self._recorder.sampler.gpus.close()
