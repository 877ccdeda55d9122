"""Observer of relaunches: finds the next attempt, for a controller that attached."""

from __future__ import annotations

import contextlib
import time

from runner.control.attempt.monitor import AttemptMonitor
from runner.core.errors import Interrupted, NotReady
from runner.core.model.plan import Plan
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import current_hosts
from runner.workflows.discovery import RunFinder, RunRecord

ANNOUNCE_TIMEOUT_S = 15.0
"""How long a launch may take to announce another attempt."""

START_TIMEOUT_S = 30.0
"""How long that attempt may take to start, after the last announcement."""

POLL_S = 0.5
RECONNECT_S = 10.0
"""How often to reconnect to hosts without a connection."""


class NextAttemptFinder:
    """The search for the attempt after one.

    Attributes:
        run: The run as its hosts reported it last.
        announced: Whether another attempt was announced.
    """

    def __init__(self, finder: RunFinder, run: RemoteRun, plan: Plan) -> None:
        self.run = run
        self.announced = False
        self._finder, self._plan = finder, plan
        self._console = finder.console

    @property
    def relaunch_pending(self) -> bool:
        """Whether the controller that launched the run is about to relaunch it."""
        return any(status.relaunch_pending for status in current_hosts(self.run.by_host).values())

    def find(
        self, monitor: AttemptMonitor, *, failed: bool, already_ended: bool
    ) -> RunRecord | None:
        """Return the record of the attempt that follows; None if none does.

        Args:
            monitor: The monitor of the attempt.
            failed: Whether the attempt failed.
            already_ended: Whether it had ended before it was watched.

        Raises:
            Interrupted: A signal came after another attempt was announced.
        """
        self.announced = bool(monitor.peer_status.next_attempt_number)
        settled = self.announced or monitor.peer_status.hosts_decide or monitor.interrupted
        if failed and not settled:
            with contextlib.suppress(Interrupted):  # then the verdict is wanted at once
                self._wait_for_announcement(0.0 if already_ended else ANNOUNCE_TIMEOUT_S)
        if not self.announced:
            return None
        try:
            with self._finder.without_status():
                return self._wait_for_start()
        except Interrupted as error:
            message = f"left run {self.run.run_id}; its next attempt is about to start"
            raise Interrupted(error.exit_code, message) from None

    def _wait_for_announcement(self, timeout_s: float) -> None:
        if not self.run.info.relaunches_left:
            return
        deadline = time.monotonic() + timeout_s
        self._console.phase("waiting for a relaunch")
        with self._finder.without_status():
            while not self.relaunch_pending and self.run.info.attempt == self._plan.attempt:
                if time.monotonic() >= deadline:
                    return
                self._refresh()
        self.announced = True
        if self.relaunch_pending:
            self._console.message(f"{self.run.info.launched_by} is about to relaunch the run")

    def _refresh(self) -> None:
        self._finder.pool.poll_for_stop(POLL_S)
        with contextlib.suppress(NotReady):
            self.run = self._finder.find(self.run.run_id)

    def _wait_for_start(self) -> RunRecord | None:
        reconnect_at = time.monotonic()  # at once: spares had no connection so far
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if time.monotonic() >= reconnect_at:
                self._finder.reconnect_all()
                self._console.phase("waiting for the next attempt")
                reconnect_at = time.monotonic() + RECONNECT_S
            self._refresh()
            if self.run.info.attempt > self._plan.attempt:
                with contextlib.suppress(NotReady):
                    record = self._finder.load_record(self.run)
                    self._wait_for_all_hosts(record.plan, deadline)
                    return record
            elif self.relaunch_pending:
                deadline = time.monotonic() + START_TIMEOUT_S
        self._console.message("the next attempt did not start in time")
        return None

    def _wait_for_all_hosts(self, plan: Plan, deadline: float) -> None:
        """Wait until every host of the attempt has its record."""
        expected = {share.node for share in plan.nodes}
        while time.monotonic() < deadline:
            hosts = self.run.by_host.items()
            if expected <= {name for name, run in hosts if run.info.attempt >= plan.attempt}:
                return
            self._refresh()
