"""Subject of a view: a cluster, or one run, which may have ended or not be there."""

from __future__ import annotations

from dataclasses import dataclass

from runner.control.attempt.stop import user_at_host
from runner.core.errors import NotReady, Problem
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import aggregate_state
from runner.core.model.spec import LaunchRequest
from runner.core.shell import this_program
from runner.ui.layout import fold_names
from runner.workflows.top.host_watch import HostWatch


@dataclass(frozen=True)
class RunEnd:
    """How a run has ended, as the hosts say that answer."""

    run_id: str
    state: str
    silent: tuple[str, ...] = ()  # hosts that do not answer, and may have had a part in it


@dataclass(frozen=True)
class Subject:
    """Whose hosts are looked at."""

    request: LaunchRequest
    is_run: bool  # one run, else all of the cluster

    @property
    def title(self) -> str:
        """What the view is called."""
        spec = self.request.spec
        return spec.run_id if self.is_run and spec.run_id else spec.cluster

    def choose(self, watch: HostWatch) -> RemoteRun | None:
        """Return the run that the view is about, None for a cluster or while it is not known.

        Raises:
            NotReady: Every host has answered or cannot, and none knows it.
        """
        if not self.is_run:
            return None
        runs = list(watch.remote_runs)
        if not watch.run_id:
            runs = [run for run in runs if run.info.launched_by == user_at_host()]
            runs = [run for run in runs if run.is_active] or runs
        if runs and (watch.run_id or watch.is_settled):
            watch.run_id = runs[-1].run_id
            return runs[-1]
        if watch.is_settled and not watch.silent:
            raise NotReady([self._not_found()])
        return None

    def end(self, watch: HostWatch) -> RunEnd | None:
        """Return how the run has ended, None while it may be on."""
        run = self.choose(watch)
        if run is None or run.is_active or not watch.is_settled:
            return None
        silent = () if run.is_complete else watch.silent
        if silent and (run.may_go_on_elsewhere or not run.tells_end):
            return None
        return RunEnd(run.run_id, aggregate_state(run.by_host), silent)

    def end_text(self, end: RunEnd) -> str:
        """Return that the run has ended, and what to type next."""
        silent = f"; not answering: {fold_names(end.silent)}" if end.silent else ""
        flags = self.request.run_flags(end.run_id)
        return f"run {end.run_id} has ended: {end.state}{silent}\n  {this_program()} why {flags}"

    def _not_found(self) -> Problem:
        spec = self.request.spec
        subject = f"no run {spec.run_id}" if spec.run_id else f"no run of {user_at_host()}"
        message = f"{subject} on the hosts of {spec.cluster}, in {spec.workdir}"
        return Problem(
            "--run", message, f"{this_program()} ps --all {self.request.selector}".rstrip()
        )
