"""Run follower: the thread that keeps the record here of one run up to date while it is on.

It polls the hosts, so that a host or a laptop that was away for hours is no special case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection
from pathlib import Path

from runner.control.record.run_store import RunStore
from runner.core.errors import NotReady
from runner.core.model.run_info import BROKEN, aggregate_state
from runner.core.model.spec import LaunchRequest
from runner.core.protocol.remote_files import LOG, RECORD, SAMPLES
from runner.ui.console.plain import Console
from runner.ui.layout import fold_names
from runner.workflows.host_pool import HostPool
from runner.workflows.live.document import Status
from runner.workflows.live.polling import PollingThread, are_certain, missing_nodes, reason_text
from runner.workflows.live.record_updates import RecordUpdates
from runner.workflows.pull import pull_run
from runner.workflows.runs.discovery import RunFinder
from runner.workflows.runs.found_run import FoundRun

POLL_S = 2.0
TICK_S = 1.0
MAX_DUTY = 0.2  # the share of time that polls may take
RETRY_S, MAX_RETRY_S = 4.0, 60.0
"""The pause before hosts are contacted again, at first and at most."""


class RunFollower(PollingThread):
    """Follows one run until it has ended; `folder` is its record here, once there is one."""

    def __init__(
        self, request: LaunchRequest, console: Console, report: Callable[[Status], None]
    ) -> None:
        super().__init__(f"follow {request.spec.run_id}", request, console, report)
        self._reconnect_at, self._retry_s = 0.0, RETRY_S
        self._store = _recorded(request)
        if self._store:
            self._begin()

    @property
    def folder(self) -> Path | None:
        """The record here, None while there is none."""
        return self._store.folder if self._store else None

    def _poll(self) -> None:
        is_over = self._is_whole()
        while not is_over and not self._closed.is_set():
            is_over = self._try_to_follow()
        if is_over:
            self._tell_end()

    def _try_to_follow(self) -> bool:
        """Follow the run as long as hosts answer; return whether it is over."""
        try:
            self._follow()
        except NotReady as error:
            if self._store and self._store.has_result:
                return True
            self._tell(f"not up to date; trying again: {reason_text(error)}")
            self._begin(error)
            self._closed.wait(self._retry_s)
            self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s)
            return False
        finally:
            if self._store:
                self._store.unlock()
        return True

    def _is_whole(self) -> bool:
        """Return whether all that can be known of the run is on record."""
        store = self._store
        if store is None or not store.has_result or store.has_unproven_end:
            return False
        try:
            verdict = store.read_result()[1]
        except NotReady:
            return False
        return not verdict.has_begun or store.has_logs_of(verdict.nodes_that_ran)

    def _tell_end(self) -> None:
        end = "nobody knows how"
        if self._store and self._store.has_result:
            with contextlib.suppress(NotReady):
                end = self._store.read_result()[1].state
        self._tell(end, ended=True)

    def _follow(self) -> None:
        """Follow it until it has ended; raise NotReady if nothing more is heard of it."""
        with self._open_pool() as pool:
            finder = RunFinder(pool, self._request.selector)
            is_on = True
            while is_on:
                run = FoundRun(self._request, finder)
                self._store = run.store
                self._begin()
                is_on = self._follow_attempt(run)

    def _follow_attempt(self, run: FoundRun) -> bool:
        """Add to the record while this attempt is on; return whether another has followed it."""
        updates, owns_record = RecordUpdates(), False
        while True:
            began = time.monotonic()
            owns_record = owns_record or run.store.reopen(run.request, run.plan)
            fetched = updates.fetch(run, owns_record=owns_record)
            self._note(run, {node for node, each in fetched.items() if each.is_finished})
            if run.store.has_result and not owns_record:
                return False
            has_ended = run.has_ended_where_known and not run.relaunch_pending
            if has_ended and owns_record:
                self._conclude(run)
                return False
            took_s = time.monotonic() - began
            _wait(run.finder.pool, max(POLL_S, took_s * (1 / MAX_DUTY - 1)))
            self._reconnect(run)
            with contextlib.suppress(NotReady):  # nobody answers
                run.reported = run.finder.find(run.plan.run_id)
            if run.reported.info.attempt > run.plan.attempt:
                run.store.unlock()
                return True

    def _conclude(self, run: FoundRun) -> None:
        """Bring the record to the end of the run."""
        run.store.unlock()
        pull_run(run, (RECORD, LOG, SAMPLES))

    def _note(self, run: FoundRun, heard: set[str]) -> None:
        """Tell how up to date the record is, now that these nodes were heard."""
        missing = [share.node for share in run.plan.nodes if share.node not in heard]
        if heard:
            self._fresh_at = time.time()
        if not missing:
            self._retry_s = RETRY_S
        if missing:
            self._tell_missing(missing)
            return
        text = ""
        if aggregate_state(run.reported.by_host) == BROKEN:
            text = "the run is broken: its supervisors are gone; `ps` says what closes it"
        self._tell(text)

    def _tell_missing(self, nodes: Collection[str]) -> None:
        self._tell(f"not heard of {fold_names(nodes)}; trying again")

    def _reconnect(self, run: FoundRun) -> None:
        """Connect again to nodes of the run that are not heard, not too often."""
        pool = run.finder.pool
        missing = missing_nodes(pool, (share.node for share in run.plan.nodes))
        if not missing or time.monotonic() < self._reconnect_at:
            return
        self._tell_missing(missing)
        if not are_certain(pool):
            return
        run.finder.reconnect_all()
        run.finder.retarget_to_run(run.plan)
        self._reconnect_at = time.monotonic() + self._retry_s
        self._retry_s = min(MAX_RETRY_S, 2 * self._retry_s)


def _wait(pool: HostPool, seconds: float) -> None:
    """Wait, and hear of every host meanwhile: each wait begins with a ping."""
    deadline = time.monotonic() + seconds
    while (left_s := deadline - time.monotonic()) > 0:
        pool.poll_for_stop(min(TICK_S, left_s))


def _recorded(request: LaunchRequest) -> RunStore | None:
    """Return the record of a run, if there is one here."""
    is_here = request.spec.run_id and (request.run_dir / "logs").is_dir()
    return RunStore(request.run_dir) if is_here else None
