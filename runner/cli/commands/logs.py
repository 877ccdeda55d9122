"""The verb `logs`: the output of the ranks of a run."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from runner.cli.selection import Selection
from runner.cli.verb import run_option, verb
from runner.core.errors import SIGNAL_EXIT_BASE, ConfigError, Problem
from runner.core.model.plan import Plan
from runner.core.text import format_ranges

if TYPE_CHECKING:
    from runner.workflows.logs import OutputSink


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
    from runner.workflows.host_pool import FLUSH_TIMEOUT_S, deadline, signal_pending
    from runner.workflows.logs import RankLogs
    from runner.workflows.runs.discovery import open_run_finder
    from runner.workflows.runs.found_run import FoundRun

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
