"""Ending of a run, as its launch and `attach` report it: result, downloads and final report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.run_store import RunStore
from runner.core.model.plan import Plan
from runner.core.outcome.diagnosis import diagnose
from runner.core.outcome.verdict import Verdict
from runner.core.protocol.remote_files import LOG
from runner.ui.console.plain import Console
from runner.ui.reports import report
from runner.workflows.host_pool import FLUSH_TIMEOUT_S, HostPool
from runner.workflows.pull import download_at_end


@dataclass(frozen=True)
class Ending:
    """Where the end of a run is reported.

    Attributes:
        console: The console.
        pool: The hosts.
        store: The record.
        cluster_selector: The words by which a verb finds the hosts again.
    """

    console: Console
    pool: HostPool
    store: RunStore
    cluster_selector: str

    def conclude(
        self,
        plan: Plan,
        verdict: Verdict,
        *,
        launched_at: float | None,
        download: Collection[str],
        disconnect_s: float,
    ) -> None:
        """Record the result, download files and show the final report.

        Args:
            plan: The last attempt.
            verdict: How the run ended.
            launched_at: When it began, in seconds since 1970; None to record no result.
            download: The kinds of files to download.
            disconnect_s: How long supervisors that were not reached wait for a controller.
        """
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        diagnosis = diagnose(plan, verdict, self.store.tail)
        if launched_at is not None:
            self.store.write_result(plan, verdict, launched_at, diagnosis)
        downloaded = ""
        if download:
            self.store.unlock()
            downloaded = download_at_end(
                self.pool, plan.run_id, self.store.folder, download, self.cluster_selector
            )
        if LOG in download:  # there is more to diagnose by
            diagnosis = diagnose(plan, verdict, self.store.tail)
        if self.store.write_error:
            self.console.message(
                f"{self.store.write_error}; the hosts have every log, in their workdir"
            )
        text = report.final_report(
            plan,
            verdict,
            self.store.display_path,
            diagnosis,
            disconnect_s=disconnect_s,
            cluster_selector=self.cluster_selector,
        )
        self.console.verdict("\n".join(filter(None, (downloaded, text))))

    def leave(self, plan: Plan, monitor: AttemptMonitor, *, is_stopping: bool = False) -> None:
        """Show how a run that goes on without this process can be found again."""
        self.console.flush_ranks(FLUSH_TIMEOUT_S)
        text = report.detach_notice(
            plan,
            self.cluster_selector,
            is_detached=monitor.peer_status.all_detached,
            is_stopping=is_stopping,
            hub_unreachable=monitor.peer_status.hub_unreachable,
        )
        self.console.verdict(text)
