"""Run found on the hosts of a cluster: its plan and record, as the verbs about a run use them."""

from __future__ import annotations

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.attempt.observer import RunObserver
from runner.control.record.run_store import RunStore
from runner.core.errors import SIGNAL_EXIT_BASE
from runner.core.model.launch_request import LaunchRequest
from runner.core.model.run_info import current_hosts
from runner.core.outcome.verdict import Verdict, fold_events
from runner.workflows.discovery import RunFinder, RunRecord
from runner.workflows.next_attempt import NextAttemptFinder
from runner.workflows.observer import console_observer


class FoundRun:
    """One run on the hosts of a cluster, with its record on this machine.

    The record is written only if no other process does, and only what it lacks.

    Attributes:
        finder: The hosts of the cluster.
        console: The console.
        cluster_selector: The words by which a verb finds the hosts again.
        reported: The run as its hosts reported it last.
        record: What a host has on record of it.
        plan: Its last attempt.
        spec: The nodes of that attempt, with the run's limits.
        store: The record on this machine.
        outcome_unknown: Whether another attempt was announced and could not be found.
    """

    def __init__(self, request: LaunchRequest, finder: RunFinder, run_id: str) -> None:
        self.finder, self.console = finder, finder.console
        self.cluster_selector = request.cluster_selector
        self.reported = finder.find(run_id)
        self.record: RunRecord = finder.load_record(self.reported)
        self.store = RunStore(request.run_dir.parent / self.record.plan.run_id)
        self.outcome_unknown = False
        self._load_attempt()

    def _load_attempt(self) -> None:
        self.plan = self.record.plan
        self.spec = self.finder.retarget_to_run(self.plan)

    @property
    def already_ended(self) -> bool:
        """Whether no host of it was active when it was found."""
        statuses = current_hosts(self.reported.by_host)
        is_complete = all(share.node in statuses for share in self.plan.nodes)
        return is_complete and not any(status.is_active for status in statuses.values())

    @property
    def relaunch_pending(self) -> bool:
        """Whether its launch was about to relaunch it when it was found."""
        statuses = current_hosts(self.reported.by_host)
        return any(status.relaunch_pending for status in statuses.values())

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The nodes of this attempt and of those before it."""
        shares = (share.node for share in self.plan.nodes)
        return tuple(dict.fromkeys((*shares, *self.record.info.past_nodes)))

    def monitor(self, observer: RunObserver | None = None) -> AttemptMonitor:
        """Return a monitor of the attempt; without an observer it shows states only."""
        return self.finder.pool.monitor(self.plan, observer or console_observer(self.console))

    def show_participants(self) -> None:
        """Show the contacted hosts that are part of the run, and not the others."""
        contacted = {*self.finder.facts, *self.finder.unreachable}
        standby = {*self.record.info.standby_nodes}
        for name in contacted.difference(share.node for share in self.plan.nodes):
            self.console.node_status(name, "spare" if name in standby else "")

    def verdict(self, monitor: AttemptMonitor) -> Verdict:
        """Return how the run ended, as far as the monitor has seen."""
        info = self.record.info
        seconds = monitor.duration(info.launched_at)
        return fold_events(self.plan, monitor.timed_events, seconds, info.past_attempts)

    def switch_to_next_attempt(self, monitor: AttemptMonitor) -> bool:
        """Turn to the attempt that follows; return False if there is none, or it is not found.

        Raises:
            Interrupted: By a signal.
        """
        search = NextAttemptFinder(self.finder, self.reported, self.plan)
        code = self.verdict(monitor).exit_code
        already_ended = self.already_ended and not self.relaunch_pending
        record = search.find(
            monitor, failed=0 < code < SIGNAL_EXIT_BASE, already_ended=already_ended
        )
        if record is None:
            self.finder.retarget_to_run(self.plan)
            self.outcome_unknown = search.announced
            return False
        self.reported, self.record = search.run, record
        self._load_attempt()
        return True
