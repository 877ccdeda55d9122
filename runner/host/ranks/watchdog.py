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
from runner.core.outcome.stacks import STALLED
from runner.core.protocol.events import Moving, Stalled
from runner.core.protocol.paths import STACKS, RunFolder
from runner.host.gpu import activity
from runner.host.process import bounded_child, procfs
from runner.host.ranks import stacks
from runner.host.storage.run_folder import Journal

BUSY = 0.05
"""A process that uses less than this part of a core does no more than look whether it may go on."""

DATA_OF = ("rchar", "wchar")
DATA = 1 << 20
"""One that reads and writes fewer bytes between two looks does no more than that either. A file
that is mapped is read by no call, but by page faults (proc(5))."""

SETTLE_S = 4.0
"""Once its own stacks are on record, a host leaves the others this long before it stops the run:
they hear of the stall a beat of the circle later, and finish a dump that they are at."""

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Used(NamedTuple):
    """What a process has used so far: clock ticks of the CPU, and bytes of files."""

    cpu: int = 0
    data: int = 0


class Progress:
    """When a process of the run on this host was last seen to move.

    Attributes:
        since: That moment, monotonic.
        told: The last one in which it did more than use the CPU.
    """

    def __init__(self, pause_s: float) -> None:
        """Begin; somebody looks every `pause_s`."""
        self.since = self.told = self._looked = time.monotonic()
        self._pause_s = pause_s
        self._sizes: Mapping[str, int] = {}
        self._used: Dict[int, Used] = {}

    def note(self) -> None:
        """Take that something moved now."""
        self.since = self.told = time.monotonic()

    def step(self, sizes: Mapping[str, int]) -> None:
        """Compare the files that grow with each step; see `look`."""
        now = time.monotonic()
        if now - self._looked > 2 * self._pause_s + 1 or sizes != self._sizes:
            self.note()
        self._looked, self._sizes = now, dict(sizes)

    def look(self, sizes: Mapping[str, int], root: int) -> None:
        """Compare with the last look; after a longer pause we stood still ourselves (a freeze).

        Args:
            sizes: How long each log is.
            root: The process whose descendants are the run's.
        """
        now, table = time.monotonic(), procfs.table()
        family = [pid for pid in (root, *procfs.descendants(root, table)) if pid in table]
        used = {pid: Used(table[pid].cpu, table[pid].faults * _PAGE + _data(pid)) for pid in family}
        grown = [(used[pid], self._used.get(pid, Used())) for pid in family]
        enough = BUSY * (now - self._looked) * _TICKS
        frozen = now - self._looked > 2 * self._pause_s + 1
        if frozen or sizes != self._sizes or any(a.data - b.data >= DATA for a, b in grown):
            self.note()
        elif any(a.cpu - b.cpu >= enough for a, b in grown):
            self.since = now
        self._looked, self._sizes, self._used = now, dict(sizes), used


def _data(pid: int) -> int:
    """Return how many bytes a process has read and written so far, 0 where that is hidden."""
    lines = [line.split(": ") for line in procfs.read_text(f"/proc/{pid}/io").splitlines()]
    return sum(int(number) for name, number in lines if name in DATA_OF)


def _steps(order: Order) -> Dict[str, int]:
    """Return how long each file is that grows with the steps."""
    found: Dict[str, int] = {}
    for pattern in order.metrics:
        for path in glob.iglob(os.path.join(glob.escape(order.cwd), pattern), recursive=True):
            with contextlib.suppress(OSError):
                found[path] = os.stat(path).st_size
    return found


class Watchdog:
    """Sees that nothing moves, has the stacks of the ranks written down, and says so."""

    def __init__(self, folder: RunFolder, order: Order, journal: Journal) -> None:
        self._folder, self._order, self._journal = folder, order, journal
        self.pause_s = order.stall_s / 4 if order.stall_s else float("inf")
        self._progress = Progress(min(self.pause_s, 10.0))
        self._stalled = False
        self._dump: Optional[bounded_child.Child] = None
        self._stop_at: Optional[float] = None
        self._gpus: Optional[bounded_child.Child] = None
        self._gpus_wait = False

    @property
    def dumping(self) -> bool:
        """Whether it has the stacks written down at this moment."""
        return self._dump is not None

    @property
    def pids(self) -> FrozenSet[int]:
        """Its own children, which are none of the run's."""
        return frozenset(child.pid for child in (self._dump, self._gpus) if child is not None)

    def look(self, sizes: Mapping[str, int], root: int) -> None:
        """See what moved of the program `root` and its descendants."""
        if self._order.stall_s and self._order.metrics:
            self._progress.step(_steps(self._order))
        elif self._order.stall_s:
            ranks = {name: size for name, size in sizes.items() if name != f"{STACKS}.out"}
            self._progress.look(ranks, root)
            silent_s = time.monotonic() - self._progress.told
            if silent_s < self._order.stall_s / 2:
                self._gpus_wait = False
            elif self._gpus is None:
                self._gpus = activity.start(self._order.env.get("CUDA_VISIBLE_DEVICES"))

    @property
    def still_s(self) -> float:
        """For how long nothing has moved here.

        That its GPUs only wait is a guess from outside: it is reported, and no run is stopped for
        it alone.
        """
        guess = self._gpus_wait and not self._order.stall_stops
        return time.monotonic() - (self._progress.told if guess else self._progress.since)

    def judge(self, still_s: Optional[float]) -> bool:
        """Act on it that nothing of the run has moved anywhere for so long; None is not known.

        Returns:
            Whether the run is to be stopped, if one more look finds that nothing moves here.
        """
        self._take_children(still_s or 0.0)
        if still_s is None or self._dump is not None:
            return False
        if self._stalled and still_s < self._order.stall_s:
            self._stalled, self._stop_at = False, None
            self._journal.append(Moving())
        elif not self._stalled and 0 < self._order.stall_s <= still_s:
            self._stalled = True
            why = f"nothing of the run has moved for {still_s:.0f} s"
            self._dump = stacks.child(self._folder, self._order, why, show=False)
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    @property
    def reason(self) -> str:
        """Why the run is to be stopped, "" if something moves here after all."""
        if self.still_s < self._order.stall_s:
            return ""
        return f"{STALLED} {self.still_s:.0f} s (watch.stall_s is {self._order.stall_s:g})"

    def _take_children(self, still_s: float) -> None:
        """See how far our children are: what the GPUs do, and whether the stacks are on record."""
        if self._gpus is not None:
            self._gpus.advance()
            if self._gpus.code is not None:
                doing, self._gpus = activity.result(self._gpus), None
                self._gpus_wait = doing is activity.Doing.WAIT
                if doing is activity.Doing.WORK:
                    self._progress.note()
        if self._dump is not None:
            self._dump.advance()
            if self._dump.code is not None:
                told, problem = stacks.outcome(self._dump)
                self._dump = None
                stops = self._order.stall_stops
                self._journal.append(Stalled(still_s, stops, problem, told.get("when", "")))
                if stops:
                    self._stop_at = time.monotonic() + SETTLE_S

    def close(self) -> None:
        """Look no more."""
        self._dump, self._gpus = (_ended(child) for child in (self._dump, self._gpus))


def _ended(child: Optional[bounded_child.Child]) -> Optional[bounded_child.Child]:
    """Kill a child; return it if it is there all the same: one that hangs in the kernel is."""
    if child is None:
        return None
    child.kill()
    return child if procfs.running(child.pid) else None
