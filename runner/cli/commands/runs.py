"""The verbs about runs: list them, read their logs, join one, end one."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from invoke.context import Context
from invoke.tasks import Task

from runner.cli.command import compose_for_run, parse_duration, verb
from runner.core.errors import ConfigError, NotReady, Problem, StopUnverified
from runner.core.outcome.exits import SIGNAL_EXIT_BASE
from runner.core.planning.build_plan import Plan
from runner.ui.problems import render

if TYPE_CHECKING:
    from runner.ui.reports.grep import OutputSink
    from runner.workflows.discovery import RunFinder


@verb("ps", all_="ended runs as well")
def ps(
    _context: Context,
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    all_: bool = False,
    json_: bool = False,
) -> int:
    """List the runs on the cluster's hosts.

    Yours, and other people's where their folders may be read.
    """
    from runner.ui.reports import run_table
    from runner.workflows.discovery import open_run_finder

    composed = compose_for_run("", cluster, set_, config_dir)
    with open_run_finder(composed, "ps", plain=True, gpus=True) as finder:
        runs = finder.runs()
        rows = run_table.rows(runs, all_=all_, clock_offsets=finder.clock_offsets)
        others = run_table.foreign_gpu_use(finder.facts, runs)
        table = run_table.Table(rows, others, finder.unreachable, finder.unreadable_runs)
    print(json.dumps(table.as_data()) if json_ else run_table.render(table, all_=all_))
    return 0


@verb("attach", tail="begin with so many lines of each rank; from the first byte else")
def attach(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    tail: str = "",
) -> int:
    """Follow a run as its launch would show it, from any machine.

    Ctrl-C asks: detach, or stop the run.
    """
    from runner.workflows.attach import AttachedRun
    from runner.workflows.discovery import open_run_finder
    from runner.workflows.host_pool import FLUSH_TIMEOUT_S, deadline

    lines = _parse_line_count("--tail", tail) if tail else None
    composed = compose_for_run(run, cluster, set_, config_dir)
    with open_run_finder(composed, "attach") as finder:
        code = AttachedRun(composed, finder, run).attach(lines)
        finder.pool.console.close(deadline(FLUSH_TIMEOUT_S))
    return code


@verb(
    "logs",
    rank="of these ranks only: 3, or 0,4-7; may be given again",
    node="of the ranks of this node only",
    follow="go on until the run ends",
    tail="the last lines of each rank: 100",
    since="what was written in this time: 10m, 2h (to within 10 s)",
    grep="only lines that match this regular expression",
)
def logs(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    rank: Sequence[str] | None = None,
    node: str = "",
    follow: bool = False,
    tail: str = "",
    since: str = "",
    grep: str = "",
) -> int:
    """Show what the ranks of a run wrote, while it is on and afterwards.

    Rank after rank; with --follow as it comes.
    """
    from runner.ui.reports.grep import GrepFilter
    from runner.workflows.attach import AttachedRun
    from runner.workflows.discovery import open_run_finder
    from runner.workflows.host_pool import FLUSH_TIMEOUT_S, deadline

    start = log_start(tail, since)
    pattern = _compile_pattern(grep)
    composed = compose_for_run(run, cluster, set_, config_dir)
    with open_run_finder(composed, "logs", plain=True) as finder:
        console = finder.pool.console
        attached = AttachedRun(composed, finder, run)
        select = functools.partial(select_ranks, rank=",".join(rank or ()), node=node, later=follow)
        show_node = only_node(node, console.rank_output)
        grep_filter = GrepFilter(pattern, show_node)
        show = grep_filter.feed if grep else show_node
        if follow:
            code = attached.follow(show, select, start, grep_filter.finish)
        else:
            code = attached.logs(show, select, start)
            grep_filter.finish()
        if not code and not follow:
            if not attached.has_output:
                console.message(f"run {attached.plan.run_id}: nothing was written")
            elif grep and not grep_filter.has_match:
                console.message(f"run {attached.plan.run_id}: no line matches")
        pool = finder.pool
        console.close(
            deadline(FLUSH_TIMEOUT_S) if code >= SIGNAL_EXIT_BASE else lambda: pool.signal_pending
        )
    return code


def log_start(tail: str, since: str) -> dict[str, float]:
    """Return where logs begin, from the flags that say so."""
    if tail and since:
        message = "--tail and --since both say where to begin"
        raise ConfigError([Problem("logs", message, "give one of them")])
    if tail:
        return {"tail": _parse_line_count("--tail", tail)}
    return {"since": parse_duration("--since", since)} if since else {}


def _compile_pattern(grep: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(grep))
    except (re.error, OverflowError, RecursionError) as error:
        message = f"is no regular expression: {error}"
        raise ConfigError([Problem("--grep", message, "see docs.python.org/library/re")]) from error


def only_node(node: str, show: OutputSink) -> OutputSink:
    """Return what shows the ranks of that node only, or all for "": one may have been on two."""

    def show_node(name: str, rank: int, stream: str, data: bytes) -> None:
        if node in ("", name):
            show(name, rank, stream, data)

    return show_node


def select_ranks(plan: Plan, rank: str, node: str, *, later: bool = False) -> list[int]:
    """Return the ranks that the flags choose; with `later`, also those that may yet start.

    Raises:
        ConfigError: The run has none of them.
    """
    ranks_on_nodes = {(number, share.node) for share in plan.nodes for number in share.ranks}
    if later and plan.torch_assigns_ranks:
        max_ranks = max(plan.max_nodes, len(plan.nodes)) * max(
            share.rank_count for share in plan.nodes
        )
        ranks_on_nodes |= {
            (number, share.node) for share in plan.nodes for number in range(max_ranks)
        }
    known_ranks = sorted({number for number, _ in ranks_on_nodes})
    chosen = known_ranks
    if node:
        names = [share.node for share in plan.nodes]
        if node not in names:
            message = f"run {plan.run_id} has no node {node!r}; it has {', '.join(names[:20])}"
            raise ConfigError([Problem("--node", message)])
        chosen = [number for number in chosen if (number, node) in ranks_on_nodes]
    if rank:
        requested = _parse_ranks(rank)
        missing = [number for number in requested if number not in known_ranks]
        if missing:
            message = (
                f"run {plan.run_id} has ranks 0 to {len(known_ranks) - 1}, and no rank {missing[0]}"
            )
            raise ConfigError([Problem("--rank", message)])
        chosen = [number for number in chosen if number in requested]
    return chosen


def _parse_ranks(text: str) -> list[int]:
    ranks: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if not match or int(match[2] or match[1]) < int(match[1]):
            message = f"must be numbers, not {text!r}"
            raise ConfigError([Problem("--rank", message, "such as --rank 3, --rank 0,4-7")])
        ranks += range(int(match[1]), int(match[2] or match[1]) + 1)
    return ranks


@verb("stop", run="the run's id, or latest")
def stop(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """End a run on every host, and prove that nothing of it is left.

    Works whether its launch, its links or its supervisors live or not.
    """
    from runner.ui.reports import run_table
    from runner.workflows.attach import AttachedRun
    from runner.workflows.discovery import open_run_finder

    if not run:
        hint = "python -m runner ps shows which there are; --run latest is the latest one"
        raise ConfigError([Problem("--run", "which run?", hint)])
    composed = compose_for_run(run, cluster, set_, config_dir)
    opened_finder: RunFinder | None = None
    try:
        with open_run_finder(composed, "stop") as finder:
            opened_finder = finder
            attached = AttachedRun(composed, finder, run)
            verdict, leftovers = attached.stop()
    except NotReady as error:
        if opened_finder is None or opened_finder.unreachable:  # it may go on there
            raise StopUnverified(error.problems) from error
        raise
    result = run_table.StopResult(
        attached.plan.run_id, composed.cluster_selector, verdict, leftovers
    )
    print(json.dumps(result.as_data()) if json_ else run_table.render_stop(result))
    return result.exit_code


@verb("pull")
def pull(
    _context: Context,
    run: str = "",
    cluster: str = "",
    set_: Sequence[str] | None = None,
    config_dir: Sequence[str] | None = None,
    json_: bool = False,
) -> int:
    """Bring a run's logs, records and outputs home, into runs/RUN.

    What is here already is not fetched again; a launch does so by itself at its end.
    """
    from runner.ui.reports import download
    from runner.workflows.attach import AttachedRun
    from runner.workflows.discovery import open_run_finder

    composed = compose_for_run(run, cluster, set_, config_dir)
    with open_run_finder(composed, "pull") as finder:
        attached = AttachedRun(composed, finder, run)
        pulled = attached.pull()
    expected = {
        *finder.unreachable,
        *(share.node for share in attached.plan.nodes),
    }  # or may have some of it
    missing = [name for name in attached.all_nodes if name in expected and name not in pulled]
    problems = [*download.problems(pulled)]
    problems += [
        finder.unreachable.get(n) or Problem(n, "has nothing of that run") for n in missing
    ]
    if json_:
        print(json.dumps(download.as_data(pulled)))
    else:
        print(download.summary(pulled, os.path.relpath(attached.store.folder)))
    if problems:
        print(render(problems), file=sys.stderr)
    return 3 if missing or not all(result.is_complete for result in pulled.values()) else 0


def _parse_line_count(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(
            [Problem(flag, f"must be a number of lines, not {text!r}", f"{flag} 100")]
        )
    return int(text)


VERBS: dict[str, Task[Any]] = {each.name: each for each in (ps, logs, attach, stop, pull)}
"""Every verb about runs by the name it is called by."""
