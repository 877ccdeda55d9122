"""Whether anything of the run still moves, and what is done when nothing does.

A rank moves when it writes a line, uses the CPU, or reads or writes data. Each host sees that of
its own ranks; their circle tells for how long nobody's has moved. To wait for others costs next to
nothing: somebody who computes or loads moves, and so does the run. Before a host counts as still,
its GPUs are looked at: they may work for a rank that sleeps, or keep one busy that only waits.
"""

from __future__ import annotations

import os
import time
from typing import Dict, Mapping, Optional, Tuple

from runner.core.events import Moving, Stalled
from runner.core.layout import STACKS, RunFolder
from runner.core.order import Order
from runner.core.stacks import STALLED
from runner.host import gpu_work, probes, proc, stacks
from runner.host.records import Journal

BUSY = 0.05
"""A process that uses less than this part of a core does no more than look whether it may go on."""

DATA_OF = ("rchar", "wchar", "read_bytes", "write_bytes")
DATA = 1 << 20
"""One that reads and writes fewer bytes between two looks does no more than that either."""

SETTLE_S = 6.0
"""After its own stacks are on record, a host leaves the others this long before it stops the run:
they hear of the stall a beat of the circle later."""

_TICKS = os.sysconf("SC_CLK_TCK")


class Progress:
    """When a process of the run on this host was last seen to move.

    Attributes:
        since: That moment, monotonic.
        told: The last one in which it did more than use the CPU.
    """

    def __init__(self) -> None:
        self.since = self.told = self._looked = time.monotonic()
        self._sizes: Mapping[str, int] = {}
        self._used: Dict[int, Tuple[int, int]] = {}

    def note(self) -> None:
        """Take that something moved now."""
        self.since = self.told = time.monotonic()

    def look(self, sizes: Mapping[str, int], root: int) -> None:
        """Compare with the last look.

        Args:
            sizes: How long each log is.
            root: The process whose descendants are the run's.
        """
        now = time.monotonic()
        table = proc.table()
        used = {pid: (table[pid].cpu, _data(pid)) for pid in proc.descendants(root) if pid in table}
        enough = BUSY * (now - self._looked) * _TICKS
        before = {pid: self._used.get(pid, (0, 0)) for pid in used}
        if sizes != self._sizes or any(used[n][1] - before[n][1] >= DATA for n in used):
            self.note()
        elif any(used[n][0] - before[n][0] >= enough for n in used):
            self.since = now
        self._looked, self._sizes, self._used = now, dict(sizes), used


def _data(pid: int) -> int:
    """Return how many bytes a process has read and written so far, 0 where that is hidden.

    What the storage gave counts by itself: a file that is mapped is read by no call (proc(5)).
    """
    lines = [line.split(": ") for line in proc.read_text(f"/proc/{pid}/io").splitlines()]
    return sum(int(number) for name, number in lines if name in DATA_OF)


class Watchdog:
    """Sees that nothing moves, has the stacks of the ranks written down, and says so."""

    def __init__(self, folder: RunFolder, order: Order, journal: Journal) -> None:
        self._folder, self._order, self._journal = folder, order, journal
        self._progress = Progress()
        self._stalled = False
        self._dump: Optional[probes.Child] = None
        self._stop_at: Optional[float] = None
        self._gpus: Optional[probes.Child] = None
        self._gpus_wait = False

    @property
    def pause_s(self) -> float:
        """How often it wants to look."""
        return self._order.stall_s / 4 if self._order.stall_s else float("inf")

    def look(self, sizes: Mapping[str, int]) -> None:
        """See what moved on this host; what we ask ourselves moves nothing."""
        if not self._order.stall_s or self._dump is not None:
            return
        self._look_at_gpus()
        if self._gpus is None:
            ranks = {name: size for name, size in sizes.items() if name != f"{STACKS}.out"}
            self._progress.look(ranks, os.getpid())

    def _look_at_gpus(self) -> None:
        """Before a host counts as still, see whether its GPUs work; or who uses the CPU waits."""
        if self._gpus is not None:
            self._gpus.advance()
            if self._gpus.code is not None:
                doing, self._gpus = gpu_work.result(self._gpus), None
                self._gpus_wait = doing is gpu_work.Doing.WAIT
                if doing is gpu_work.Doing.WORK:
                    self._progress.note()
        elif time.monotonic() - self._progress.told < self._order.stall_s / 2:
            self._gpus_wait = False
        else:
            self._gpus = gpu_work.start()

    @property
    def still_s(self) -> float:
        """For how long nothing has moved here."""
        progress = self._progress
        return time.monotonic() - (progress.told if self._gpus_wait else progress.since)

    def judge(self, still_s: float) -> str:
        """Act on it that nothing of the run has moved anywhere for so long.

        Returns:
            Why the run is to be stopped, "" to go on.
        """
        if self._dump is not None:
            self._written(still_s)
        elif self._stalled and still_s < self._order.stall_s:
            self._stalled, self._stop_at = False, None
            self._journal.append(Moving())
        elif not self._stalled and 0 < self._order.stall_s <= still_s:
            self._stalled = True
            why = f"nothing of the run has moved for {still_s:.0f} s"
            self._dump = stacks.child(self._folder, self._order, why)
        if self._stop_at is not None and time.monotonic() >= self._stop_at:
            return f"{STALLED} {still_s:.0f} s (watch.stall_s)"
        return ""

    def _written(self, still_s: float) -> None:
        """Say that nothing moves, once the stacks are on record."""
        assert self._dump is not None  # noqa: S101 (the caller looked)
        self._dump.advance()
        if self._dump.code is None:
            return
        _, problem = stacks.outcome(self._dump)
        self._dump = None
        stops = self._order.stall_stops
        self._journal.append(Stalled(still_s, stops, problem or ""))
        if stops:
            self._stop_at = time.monotonic() + SETTLE_S

    def close(self) -> None:
        """Look no more."""
        for child in (self._dump, self._gpus):
            if child is not None:
                child.kill()
