"""Stall monitor of a supervisor: samples of growing files, and the watchdog that they feed.

It has the other observers of the run here with it: of the host's load, and of torch's stores.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Callable, Dict, FrozenSet, Mapping, Optional

from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.host.process.file_worker import Submit
from runner.host.ranks.tracker import RankTracker
from runner.host.ranks.watchdog import Watchdog
from runner.host.storage.run_folder import EventLog
from runner.host.supervisor.program import LauncherProcess
from runner.host.supervisor.sample_recorder import SampleRecorder
from runner.host.supervisor.store_watch import StoreWatch

MAX_INTERVAL_S = 10.0


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
        self._attempt_folder = folder.attempt_folder(order.attempt)
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

        def take_sizes() -> Mapping[str, int]:
            return self._watchdog.progress_sizes(_log_sizes(self._attempt_folder))

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
            self._submit(take_sizes, take_sample)

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


def _log_sizes(folder: str) -> Dict[str, int]:
    """Return the sizes of the logs of an attempt, by file name."""
    sizes: Dict[str, int] = {}
    with contextlib.suppress(OSError):  # a full disk is reported by the journal
        for entry in os.scandir(folder):
            if entry.name.endswith((".out", ".err", ".metrics")):
                sizes[entry.name] = entry.stat().st_size
    return sizes
