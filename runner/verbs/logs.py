"""The verb `logs`: the output of the ranks of a run."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Sequence
from dataclasses import replace

import click

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.run.found_run import FoundRun
from runner.control.run.hosts import (
    FLUSH_TIMEOUT_S,
    deadline,
    enqueue_signal,
    leave_on_signal,
    signal_pending,
)
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, NotReady, Problem
from runner.core.wire.paths import source_rank
from runner.core.wire.plan import Plan
from runner.core.wire.text import format_ranges
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import run_option, verb


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
    composed = selection.contact_for_run(run)
    with open_run_finder(composed, "logs", plain=True) as finder:
        found = FoundRun(composed, finder)
        rank_logs = RankLogs(found, ",".join(rank), node, tail)
        code = rank_logs.follow() if follow else rank_logs.dump()
        inbox = finder.pool.inbox
        is_left = code >= SIGNAL_EXIT_BASE
        finder.console.close(
            deadline(FLUSH_TIMEOUT_S) if is_left else lambda: signal_pending(inbox)
        )
    return code


def select_ranks(plan: Plan, rank: str, node: str) -> list[int]:
    """Return the ranks that the flags select; where torch assigns them, of all there may be."""
    ranks_by_node = {share.node: {*share.ranks} for share in plan.nodes}
    if plan.torch_assigns_ranks:
        max_ranks = max(plan.max_nodes, len(plan.nodes)) * max(share.nproc for share in plan.nodes)
        ranks_by_node = {name: {*range(max_ranks)} for name in ranks_by_node}
    known_ranks = set().union(*ranks_by_node.values())
    if node and node not in ranks_by_node:
        names = ", ".join([*ranks_by_node][:20])
        message = f"run {plan.run_id} has no node {node!r}; it has {names}"
        raise ConfigError([Problem("--node", message)])
    chosen = ranks_by_node[node] if node else known_ranks
    if not rank:
        return sorted(chosen)
    requested: set[int] = set()
    for part in rank.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            message = f"must be numbers, not {rank!r}"
            raise ConfigError([Problem("--rank", message, "such as --rank 3, --rank 0,4-7")])
        requested.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    if missing := requested - known_ranks:
        last = len(known_ranks) - 1
        message = f"run {plan.run_id} has ranks 0 to {last}, and no rank {min(missing)}"
        raise ConfigError([Problem("--rank", message)])
    return sorted(chosen & requested)


class RankLogs:
    """The logs of some ranks of a run, each from its beginning or its last `tail` lines."""

    def __init__(self, run: FoundRun, rank: str, node: str, tail: int | None) -> None:
        self._run = run
        self._rank = rank
        self._node = node
        self._tail = tail
        self._signals: list[int] = []
        self._has_output = False

    def dump(self) -> int:
        """Show what was written until now, rank after rank; return 0, or 3 if some is missing."""
        plan = self._run.plan
        console = self._run.console
        if plan.attempt:
            last = f"attempt {plan.attempt + 1}, the last one"
            console.message(f"{last}; pull brings those before it, too")
        ranks = select_ranks(plan, self._rank, self._node)
        unreached: dict[str, Problem] = {}
        is_cut = False
        for share in plan.nodes:
            chosen = {*ranks} & {*(share.ranks or ranks)}
            if not chosen or self._node not in ("", share.node):
                continue
            if problem := self._run.finder.unreachable.get(share.node):
                unreached[share.node] = problem
                continue
            monitor = self._look(replace(plan, nodes=(share,)), chosen, self._tail, once=True)
            if self._signals:
                return SIGNAL_EXIT_BASE + self._signals[0]
            is_cut = is_cut or monitor.is_cut
        for name, problem in unreached.items():
            console.message(f"{name}: {problem.message}")
        if is_cut or unreached:
            return NotReady.exit_code
        if not self._has_output:
            is_chosen = self._rank or self._node
            told = f"{format_ranges(ranks)} wrote nothing" if is_chosen else "nothing was written"
            where = f" on {self._node}" if self._node else ""
            console.message(f"run {plan.run_id}: {told}{where}")
        return 0

    def follow(self) -> int:
        """Show the logs as they are written, to the end of the run.

        Return 0, or 3 if the end of a node was not seen; 128 and a signal.
        """
        run = self._run
        first = run.plan.attempt

        def follow_attempt() -> AttemptMonitor:
            ranks = select_ranks(run.plan, self._rank, self._node)
            tail = self._tail if run.plan.attempt == first else None
            if run.plan.attempt > first:
                run.console.message(f"attempt {run.plan.attempt + 1}")
            run.show_participants()
            monitor = self._look(run.plan, ranks, tail)
            run.console.reset_lines()
            return monitor

        try:
            monitor = run.follow(follow_attempt)
        except ConfigError as error:  # the node takes no part in this attempt
            if run.plan.attempt == first:
                raise
            run.console.message(str(error))
            return 0
        if self._signals:
            return SIGNAL_EXIT_BASE + self._signals[0]
        return NotReady.exit_code if monitor.is_cut else 0

    def _look(
        self, plan: Plan, ranks: Collection[int], tail: int | None, *, once: bool = False
    ) -> AttemptMonitor:
        """Show the logs of all nodes at once, as they grow or `once`; a signal ends that."""
        monitor = self._run.finder.pool.monitor(plan, log=self._show_log)
        leave_on_signal(monitor, self._signals)
        monitor.attach(tail=tail, ranks=ranks, once=once, read_only=True)
        monitor.run()
        return monitor

    def _show_log(self, node: str, source: str, stream: str, _: int, data: bytes) -> None:
        self._has_output = True
        if self._node in ("", node):  # a rank may move between nodes
            self._run.console.rank_output(node, source_rank(source), stream, data)
        if self._run.console.reader_gone:
            enqueue_signal(self._run.finder.pool.inbox, signal.SIGPIPE)
