"""What follows an attempt that failed, for somebody who only joined the run."""

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
"""How long a launch may take to say that another attempt follows one that failed."""

START_TIMEOUT_S = 30.0
"""How long that attempt may take to begin, from the last word of it."""

POLL_S = 0.5
RECONNECT_S = 10.0
"""So often hosts without a connection are tried again."""


class NextAttemptFinder:
    """The search for the attempt after one.

    Attributes:
        run: The run as its hosts told of it last.
        announced: Whether another attempt was announced.
    """

    def __init__(self, finder: RunFinder, run: RemoteRun, plan: Plan) -> None:
        self.run = run
        self.announced = False
        self._finder, self._plan = finder, plan
        self._console = finder.pool.console

    @property
    def relaunch_pending(self) -> bool:
        """Whether its launch is about to start it once more."""
        return any(status.relaunch_pending for status in current_hosts(self.run.by_host).values())

    def find(
        self, monitor: AttemptMonitor, *, failed: bool, already_ended: bool
    ) -> RunRecord | None:
        """Return what is on record of the attempt that follows; None for none.

        Args:
            monitor: That over the attempt.
            failed: Whether it did.
            already_ended: Whether it had ended before anybody watched.

        Raises:
            Interrupted: By a signal, once another attempt is promised.
        """
        self.announced = bool(monitor.peer_status.next_attempt_number)
        if (
            failed
            and not self.announced
            and not monitor.peer_status.hosts_decide
            and not monitor.interrupted
        ):
            with contextlib.suppress(Interrupted):  # who does not want to wait, wants the verdict
                self._wait_for_announcement(0.0 if already_ended else ANNOUNCE_TIMEOUT_S)
        if not self.announced:
            return None
        try:
            with self._finder.without_status():
                return self._wait_for_start()
        except Interrupted as error:
            message = f"left run {self.run.run_id}; another attempt of it is about to begin"
            raise Interrupted(error.exit_code, message) from None

    def _wait_for_announcement(self, timeout_s: float) -> None:
        if not self.run.info.relaunches_left:
            return
        deadline = time.monotonic() + timeout_s
        self._console.phase("waiting for word of another attempt")
        with self._finder.without_status():
            while not self.relaunch_pending and self.run.info.attempt == self._plan.attempt:
                if time.monotonic() >= deadline:
                    return
                self._refresh()
        self.announced = True
        if self.relaunch_pending:
            self._console.message(
                f"its launch, {self.run.info.launched_by}, is about to start it once more"
            )

    def _refresh(self) -> None:
        self._finder.pool.poll_for_stop(POLL_S)
        with contextlib.suppress(NotReady):
            self.run = self._finder.find(self.run.run_id)

    def _wait_for_start(self) -> RunRecord | None:
        reconnect_at = time.monotonic()  # at once: those that stood by had no connection for long
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
        self._console.message("no other attempt was seen to begin")
        return None

    def _wait_for_all_hosts(self, plan: Plan, deadline: float) -> None:
        """Give every host of the attempt time to learn of it: until then it denies the run."""
        expected = {share.node for share in plan.nodes}
        while time.monotonic() < deadline:
            statuses = self.run.by_host
            if expected <= {
                name for name in statuses if statuses[name].info.attempt >= plan.attempt
            }:
                return
            self._refresh()
