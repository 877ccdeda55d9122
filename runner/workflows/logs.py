"""Logs of a run's ranks: as they are now, or followed to the end of the run."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.record.log_dump import LogDump, RankDiscovery
from runner.core.errors import ConfigError, Interrupted, NotReady
from runner.core.model.plan import Plan
from runner.core.protocol.events import EndUnverified
from runner.core.protocol.paths import source_rank
from runner.workflows.host_pool import enqueue_signal, leave_on_signal
from runner.workflows.runs.found_run import FoundRun

OutputSink = Callable[[str, int, str, bytes], None]  # takes (node, rank, stream, bytes)
RankSelector = Callable[[Plan], Sequence[int]]  # returns the wanted ranks of a plan


class RankLogs:
    """The logs of some ranks of a run; each begins at `start_at`, as for `LogTailer`."""

    def __init__(
        self, run: FoundRun, show: OutputSink, select: RankSelector, start_at: Mapping[str, float]
    ) -> None:
        self.has_output = False  # any of these ranks had written something
        self._run = run
        self._sink = show
        self._select = select
        self._start_at = start_at

    def dump(self) -> int:
        """Show what was written until now, rank after rank; return 0, or 3 if some is missing."""
        run, pool, console = self._run, self._run.finder.pool, self._run.console
        if run.plan.attempt:
            last = f"attempt {run.plan.attempt + 1}, the last one"
            console.message(f"{last}; pull brings those before it, too")
        sessions = {name: each for name, each in pool.sessions.items() if not each.closed}
        inbox, lost_s = pool.inbox, run.spec.lost_s
        problems: dict[str, str] = {}
        if run.plan.torch_assigns_ranks:
            discovery = RankDiscovery(sessions, inbox, lost_s, console.node_status)
            ranks_by_node = discovery.ranks_by_node(run.plan.nodes)
            problems = discovery.problems
            nodes = (replace(s, ranks=ranks_by_node.get(s.node, ())) for s in run.plan.nodes)
            run.plan = replace(run.plan, nodes=tuple(nodes))
        ranks = self._select(run.plan)
        is_full = lambda: console.is_full  # noqa: E731
        log_dump = LogDump(
            sessions, inbox, lost_s, self._show, self._start_at, is_full, console.node_status
        )
        try:
            log_dump.run(run.plan.nodes, ranks)
        except Interrupted as error:  # nothing was begun that would need a message
            return error.exit_code
        problems.update({name: each.message for name, each in log_dump.problems.items()})
        for share in run.plan.nodes:
            if share.node not in sessions and set(share.ranks) & set(ranks):
                reason = run.finder.unreachable.get(share.node)
                problems.setdefault(share.node, reason.message if reason else "not reached")
        for name, message in problems.items():
            console.message(f"{name}: {message}")
        return NotReady.exit_code if problems else 0

    def follow(self) -> int:
        """Show the logs as they are written, to the end of the run.

        Return 0, or 3 if some of it is missing; 128 and a signal.
        """
        run = self._run
        first = run.plan.attempt
        signals: list[int] = []

        def follow_attempt() -> AttemptMonitor:
            ranks = self._select(run.plan)
            start_at = self._start_at if run.plan.attempt == first else {}
            if run.plan.attempt > first:
                run.console.message(f"attempt {run.plan.attempt + 1}")
            run.show_participants()
            monitor = run.finder.pool.monitor(run.plan, log=self._show_log)
            leave_on_signal(monitor, signals)
            monitor.attach(start_at=start_at, ranks=ranks, read_only=True)
            monitor.run()
            run.console.reset_lines()
            return monitor

        try:
            monitor = run.follow(follow_attempt)
        except ConfigError as error:  # the node takes no part in this attempt
            if run.plan.attempt == first:
                raise
            run.console.message(str(error))
            return 0
        if signals:
            return 128 + signals[0]
        ranks = self._select(run.plan)
        events = (timed.event for timed in monitor.timed_events)
        unverified = (event.node for event in events if isinstance(event.body, EndUnverified))
        missing = any({*(run.plan.node(n).ranks or ranks)} & {*ranks} for n in unverified)
        return NotReady.exit_code if missing else 0

    def _show_log(self, node: str, source: str, stream: str, _: int, data: bytes) -> None:
        self._show(node, source_rank(source), stream, data)

    def _show(self, node: str, rank: int, stream: str, data: bytes) -> None:
        self.has_output = True
        self._sink(node, rank, stream, data)
        if self._run.console.reader_gone:
            enqueue_signal(self._run.finder.pool.inbox, signal.SIGPIPE)
