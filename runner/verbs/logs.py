"""The verb `logs`: the output of the ranks of a run."""

from __future__ import annotations

import functools
import re
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Interrupted, NotReady, Problem
from runner.core.model.plan import Plan
from runner.core.protocol.paths import source_rank
from runner.core.text import format_ranges
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import run_option, verb

if TYPE_CHECKING:
    from runner.control.attempt.monitor import AttemptMonitor
    from runner.verbs.shared.found_run import FoundRun

OutputSink = Callable[[str, int, str, bytes], None]  # takes (node, rank, stream, bytes)
RankSelector = Callable[[Plan], Sequence[int]]  # returns the wanted ranks of a plan


@verb(
    "logs",
    examples={"logs -f": "the latest run, as it comes", "logs --rank 0 -n 100": "the last lines"},
)
@click.option("-f", "--follow", is_flag=True, help="follow the output until the run ends")
@click.option(
    "-n",
    "--tail",
    type=click.IntRange(1),
    metavar="100",
    help="the last 100 lines of each rank",
)
@click.option("--rank", multiple=True, metavar="0,4-7", help="only these ranks; repeatable")
@click.option("--node", default="", metavar="gpu2", help="only the ranks of this node")
@run_option
def logs(
    selection: Selection,
    run: str,
    rank: Sequence[str],
    node: str,
    follow: bool,
    tail: int | None,
) -> int:
    """Show the output of the ranks of a run, during the run and afterwards.

    Rank after rank; with --follow as it is written.
    """
    from runner.verbs.shared.discovery import open_run_finder
    from runner.verbs.shared.found_run import FoundRun
    from runner.verbs.shared.host_pool import FLUSH_TIMEOUT_S, deadline, signal_pending

    start = {"tail": tail} if tail else {}
    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "logs", plain=True) as finder:
        console = finder.console
        found = FoundRun(composed, finder)
        select = functools.partial(select_ranks, rank=",".join(rank), node=node, later=follow)
        rank_logs = RankLogs(found, only_node(node, console.rank_output), select, start)
        code = rank_logs.follow() if follow else rank_logs.dump()
        if not (code or follow or rank_logs.has_output):
            chosen = select(found.plan) if rank or node else ()
            told = f"{format_ranges(chosen)} wrote nothing" if chosen else "nothing was written"
            told += f" on {node}" if node else ""
            console.message(f"run {found.plan.run_id}: {told}")
        inbox = finder.pool.inbox
        console.close(
            deadline(FLUSH_TIMEOUT_S) if code >= SIGNAL_EXIT_BASE else lambda: signal_pending(inbox)
        )
    return code


def only_node(node: str, show: OutputSink) -> OutputSink:
    """Return a sink for the output of one node, or of all for "": a rank may move between nodes."""
    return lambda name, *output: show(name, *output) if node in ("", name) else None


def select_ranks(plan: Plan, rank: str, node: str, *, later: bool) -> list[int]:
    """Return the ranks that the flags select, with `later` those too that may yet start."""
    run, ranks_by_node = f"run {plan.run_id}", {share.node: {*share.ranks} for share in plan.nodes}
    if later and plan.torch_assigns_ranks:
        max_ranks = max(plan.max_nodes, len(plan.nodes)) * max(share.nproc for share in plan.nodes)
        ranks_by_node = {name: {*range(max_ranks)} for name in ranks_by_node}
    known_ranks = set().union(*ranks_by_node.values())
    if node and node not in ranks_by_node:
        names = ", ".join([*ranks_by_node][:20])
        raise ConfigError([Problem("--node", f"{run} has no node {node!r}; it has {names}")])
    chosen = ranks_by_node[node] if node else known_ranks
    if rank:
        requested = _parse_ranks(rank)
        if missing := [number for number in requested if number not in known_ranks]:
            message = f"{run} has ranks 0 to {len(known_ranks) - 1}, and no rank {missing[0]}"
            raise ConfigError([Problem("--rank", message)])
        chosen = chosen.intersection(requested)
    return sorted(chosen)


def _parse_ranks(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            message = f"must be numbers, not {text!r}"
            raise ConfigError([Problem("--rank", message, "such as --rank 3, --rank 0,4-7")])
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
    return ranks


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
        from runner.control.record.log_dump import LogDump, RankDiscovery

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
        from runner.core.protocol.events import EndUnverified
        from runner.verbs.shared.host_pool import leave_on_signal

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
            from runner.verbs.shared.host_pool import enqueue_signal

            enqueue_signal(self._run.finder.pool.inbox, signal.SIGPIPE)
