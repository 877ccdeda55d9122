"""Found run: one run that a verb is about, with its record here, from one attempt to the next."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record import run_index
from runner.control.record.metrics_record import record_metrics
from runner.control.record.run_store import RunStore
from runner.control.run.discovery import HostRecord, RunFinder
from runner.control.run.download import pull
from runner.control.run.hosts import leave_on_signal
from runner.control.run.job_run import job_run
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.verdict import Verdict, completed, fold_events
from runner.core.remote_run import current_hosts
from runner.core.results import PullResult
from runner.core.shell import this_program
from runner.core.wire.files import FILE_KINDS

ANNOUNCE_TIMEOUT_S = 15.0  # how long a launch may take to announce another attempt
START_TIMEOUT_S = 30.0  # how long that attempt may take to start, after the last announcement
POLL_S = 0.5
RECONNECT_S = 10.0  # how often to reconnect to hosts without a connection


class FoundRun:
    """One run on the hosts of a cluster, with its record on this machine.

    `plan` is its last attempt, `spec` has the nodes of that and the limits of the run. The record
    on this machine is written only if no other process does, and only what it lacks.
    """

    def __init__(
        self, request: LaunchRequest, finder: RunFinder, *, to_end_it: bool = False
    ) -> None:
        """Find it; to end it, one that is active."""
        if in_job := job_run(request):
            in_job.require_begun()
        self.finder = finder
        self.console = finder.console
        # As its hosts reported it when it was found.
        self.reported = finder.find(request.spec.run_id, prefer_active=to_end_it)
        self.request = request
        self.owns_record = False  # whether this process writes the record
        self.outcome_unknown = False  # another attempt was announced and could not be found
        self._is_being_ended = to_end_it
        self._turn_to(finder.load_record(self.reported))
        self.flags = request.run_flags(self.plan.run_id)  # by which any verb finds it again
        self.store = RunStore(run_index.place_of(self.record.info, request.run_dir.parent))

    def _turn_to(self, record: HostRecord) -> None:
        self.record = record
        self.plan = record.plan
        self.spec = self.finder.retarget_to_run(self.plan)
        names = {node.name for node in self.spec.nodes}
        others = tuple(node for node in self.finder.cluster_nodes if node.name not in names)
        self.request = replace(
            self.request,
            spec=replace(self.spec, spares=others),
            config_yaml=record.config_yaml,
            launched_at=record.info.launched_at,
        )

    @property
    def already_ended(self) -> bool:
        """Whether no host of it was active when it was found."""
        statuses = current_hosts(self.reported.by_host)
        is_complete = all(share.node in statuses for share in self.plan.nodes)
        return is_complete and not any(status.is_active for status in statuses.values())

    @property
    def has_ended(self) -> bool:
        """Whether it cannot be going on, also where no host has answered."""
        return self.reported.has_ended([share.node for share in self.plan.nodes])

    @property
    def all_nodes(self) -> tuple[str, ...]:
        names = [share.node for share in self.plan.nodes]
        for past in self.record.info.past_attempts:
            names += past.nodes
        return tuple(dict.fromkeys(names))

    def show_participants(self) -> None:
        """Show the contacted hosts that are part of the run, and not the others."""
        contacted = {*self.finder.facts, *self.finder.unreachable}
        standby = {*self.record.info.standby_nodes}
        for name in contacted.difference(share.node for share in self.plan.nodes):
            self.console.node_status(name, "spare" if name in standby else "")

    def verdict(self, monitor: AttemptMonitor) -> Verdict:
        info = self.record.info
        seconds = monitor.duration(info.launched_at)
        return fold_events(self.plan, monitor.timed_events, seconds, info.past_attempts)

    def follow(self, follow_attempt: Callable[[], AttemptMonitor]) -> AttemptMonitor:
        """Follow this attempt and those after it; return the monitor of the last one.

        `follow_attempt` returns at the end of an attempt, or when the user leaves it.
        """
        monitor = follow_attempt()
        while not monitor.detached and self.switch_to_next_attempt(monitor):
            monitor = follow_attempt()
        return monitor

    def switch_to_next_attempt(self, monitor: AttemptMonitor) -> bool:
        """Turn to the attempt that follows; return False if there is none, or it is not found."""
        as_found = self.reported
        timeout_s = START_TIMEOUT_S
        self.outcome_unknown = bool(monitor.peer_status.next_attempt_number)
        if not self.outcome_unknown:
            has_failed = 0 < self.verdict(monitor).exit_code < SIGNAL_EXIT_BASE
            may_follow = has_failed and self.reported.info.relaunches_left
            was_over = self.already_ended and not self.reported.relaunch_pending
            is_being_ended = self._is_being_ended or monitor.interrupted
            hosts_decide = monitor.peer_status.hosts_decide
            if not may_follow or hosts_decide or is_being_ended or was_over:
                return False
            timeout_s = ANNOUNCE_TIMEOUT_S
        record = None
        try:
            with self.finder.pool.quietly():
                record = self._wait_for_start(time.monotonic() + timeout_s)
        except Interrupted as error:
            if self.outcome_unknown:  # else the verdict is wanted at once
                message = f"left run {self.plan.run_id}; its next attempt is about to start"
                raise Interrupted(error.exit_code, message) from None
        if record is None:
            self.reported = as_found
            self.finder.retarget_to_run(self.plan)
            return False
        self.outcome_unknown = False
        self._turn_to(record)
        self.store.unlock()
        return True

    def _wait_for_start(self, deadline: float) -> HostRecord | None:
        """Return the record of the next attempt, if possible once all of its hosts have it."""
        record: HostRecord | None = None
        reconnect_at = time.monotonic() if self.outcome_unknown else deadline
        self.console.phase("waiting for a relaunch")
        while time.monotonic() < deadline:
            if record is None and time.monotonic() >= reconnect_at:  # spares had no connection
                self.finder.reconnect_all()
                self.console.phase("waiting for the next attempt")
                reconnect_at = time.monotonic() + RECONNECT_S
            self.finder.pool.poll_for_stop(POLL_S)
            with contextlib.suppress(NotReady):
                self.reported = self.finder.find(self.plan.run_id)
                has_begun = self.reported.info.attempt > self.plan.attempt
                if record is None and has_begun:
                    record = self.finder.load_record(self.reported)
                if record is None and (self.reported.relaunch_pending or has_begun):
                    deadline = time.monotonic() + START_TIMEOUT_S
            if self.reported.relaunch_pending and not self.outcome_unknown:
                who = self.reported.info.launched_by
                self.console.message(f"{who} is about to relaunch the run")
                self.outcome_unknown = True
                reconnect_at = time.monotonic()
            if record is not None:
                hosts = self.reported.by_host.items()
                there = {n for n, run in hosts if run.info.attempt >= record.plan.attempt}
                if there.issuperset(share.node for share in record.plan.nodes):
                    return record
        if record is None and self.outcome_unknown:
            self.console.message("the next attempt did not start in time")
        return record


def pull_run(
    run: FoundRun, kinds: Collection[str] = FILE_KINDS, patterns: Sequence[str] = ()
) -> dict[str, PullResult]:
    """Download what the hosts have of a run; record how it ended, if that is not on record here.

    The `kinds` and `patterns` are those of `download.pull`, and so is what is raised.
    """
    store = run.store
    store.reopen(run.request, run.plan)
    store.unlock()
    try:
        nodes = run.reported.by_host
        pool = run.finder.pool
        pulled = pull(pool, run.plan.run_id, store.folder, kinds, patterns=patterns, nodes=nodes)
    except Interrupted as error:
        pull_command = f"{this_program()} pull {run.flags}"
        message = f"interrupted; what came is kept, and this continues from there: {pull_command}"
        raise Interrupted(error.exit_code, message) from None
    record_end(run)
    if run.has_ended:
        record_metrics(store.folder, run.plan.progress_pattern)
    return pulled


def record_end(run: FoundRun) -> None:
    """Record how a run ended that is over, or what hosts could not prove when it ended.

    Not where all is known, or while another process writes the record.
    """
    store = run.store
    is_unproven = store.has_result and run_index.has_unproven_end(store.folder)
    is_lacking = (is_unproven and run.already_ended) or (not store.has_result and run.has_ended)
    if not is_lacking or not store.reopen(run.request, run.plan):
        return
    try:
        # All of it is over: there is nothing to tell.
        monitor = run.finder.pool.monitor(run.plan, store.append, message=lambda _: None)
        signals: list[int] = []
        leave_on_signal(monitor, signals)
        monitor.attach(ranks=(), read_only=True)
        monitor.run()
        if signals:
            message = "interrupted; the end of the run is not on record"
            raise Interrupted(SIGNAL_EXIT_BASE + signals[0], message)
        plan = run.plan
        verdict = run.verdict(monitor)
        if store.has_result:
            plan, known = store.read_result()
            verdict = completed(known, verdict)
        diagnosis = store.diagnose(plan, verdict)
        store.write_result(plan, verdict, run.record.info.launched_at, diagnosis)
    finally:
        store.unlock()
