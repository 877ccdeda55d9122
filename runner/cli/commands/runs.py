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

from runner.cli.command import composed_for, span, verb
from runner.core.errors import ConfigError, NotReady, Problem, Unproven
from runner.core.outcome.exits import SIGNALLED
from runner.core.planning.build_plan import Plan
from runner.ui.problems import render

if TYPE_CHECKING:
    from runner.ui.reports.grep import Show
    from runner.workflows.discovery import Hosts


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
    from runner.workflows.discovery import hosts_of

    composed = composed_for("", cluster, set_, config_dir)
    with hosts_of(composed, "ps", plain=True, gpus=True) as hosts:
        runs = hosts.runs()
        rows = run_table.rows(runs, all_=all_, clocks=hosts.clocks)
        others = run_table.occupied(hosts.facts, runs)
        table = run_table.Table(rows, others, hosts.silent, hosts.hidden)
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
    from runner.workflows.attach import Joined
    from runner.workflows.discovery import hosts_of
    from runner.workflows.host_pool import SETTLE_S, after

    lines = _number("--tail", tail) if tail else None
    composed = composed_for(run, cluster, set_, config_dir)
    with hosts_of(composed, "attach") as hosts:
        code = Joined(composed, hosts, run).attach(lines)
        hosts.contact.console.close(after(SETTLE_S))
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
    from runner.ui.reports.grep import Matching
    from runner.workflows.attach import Joined
    from runner.workflows.discovery import hosts_of
    from runner.workflows.host_pool import SETTLE_S, after

    begin = _beginning(tail, since)
    pattern = _pattern(grep)
    composed = composed_for(run, cluster, set_, config_dir)
    with hosts_of(composed, "logs", plain=True) as hosts:
        console = hosts.contact.console
        joined = Joined(composed, hosts, run)
        wanted = functools.partial(_chosen, rank=",".join(rank or ()), node=node, later=follow)
        shown = _of_node(node, console.show)
        matching = Matching(pattern, shown)
        show = matching.show if grep else shown
        if follow:
            code = joined.follow(show, wanted, begin, matching.finish)
        else:
            code = joined.logs(show, wanted, begin)
            matching.finish()
        if not code and not follow:
            if not joined.wrote:
                console.say(f"run {joined.plan.run_id}: nothing was written")
            elif grep and not matching.found:
                console.say(f"run {joined.plan.run_id}: no line matches")
        contact = hosts.contact
        console.close(after(SETTLE_S) if code >= SIGNALLED else lambda: contact.signalled)
    return code


def _beginning(tail: str, since: str) -> dict[str, float]:
    """Return where logs begin, from the flags that say so."""
    if tail and since:
        what = "--tail and --since both say where to begin"
        raise ConfigError([Problem("logs", what, "give one of them")])
    if tail:
        return {"tail": _number("--tail", tail)}
    return {"since": span("--since", since)} if since else {}


def _pattern(grep: str) -> re.Pattern[bytes]:
    try:
        return re.compile(os.fsencode(grep))
    except (re.error, OverflowError, RecursionError) as error:
        what = f"is no regular expression: {error}"
        raise ConfigError([Problem("--grep", what, "see docs.python.org/library/re")]) from error


def _of_node(node: str, show: Show) -> Show:
    """Return what shows the ranks of that node only, or all for "": one may have been on two."""

    def shown(name: str, rank: int, stream: str, data: bytes) -> None:
        if node in ("", name):
            show(name, rank, stream, data)

    return shown


def _chosen(plan: Plan, rank: str, node: str, *, later: bool = False) -> list[int]:
    """Return the ranks that the flags choose; with `later`, also those that may yet start.

    Raises:
        ConfigError: The run has none of them.
    """
    there = {(each, share.node) for share in plan.nodes for each in share.ranks}
    if later and plan.numbered_by_torch:
        most = max(plan.most, len(plan.nodes)) * max(share.size for share in plan.nodes)
        there |= {(each, share.node) for share in plan.nodes for each in range(most)}
    known = sorted({each for each, _ in there})
    chosen = known
    if node:
        names = [share.node for share in plan.nodes]
        if node not in names:
            what = f"run {plan.run_id} has no node {node!r}; it has {', '.join(names[:20])}"
            raise ConfigError([Problem("--node", what)])
        chosen = [each for each in chosen if (each, node) in there]
    if rank:
        wanted = _ranks(rank)
        missing = [each for each in wanted if each not in known]
        if missing:
            what = f"run {plan.run_id} has ranks 0 to {len(known) - 1}, and no rank {missing[0]}"
            raise ConfigError([Problem("--rank", what)])
        chosen = [each for each in chosen if each in wanted]
    return chosen


def _ranks(text: str) -> list[int]:
    wanted: list[int] = []
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip())
        if not found or int(found[2] or found[1]) < int(found[1]):
            what = f"must be numbers, not {text!r}"
            raise ConfigError([Problem("--rank", what, "such as --rank 3, --rank 0,4-7")])
        wanted += range(int(found[1]), int(found[2] or found[1]) + 1)
    return wanted


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
    from runner.workflows.attach import Joined
    from runner.workflows.discovery import hosts_of

    if not run:
        hint = "python -m runner ps shows which there are; --run latest is the latest one"
        raise ConfigError([Problem("--run", "which run?", hint)])
    composed = composed_for(run, cluster, set_, config_dir)
    answering: Hosts | None = None
    try:
        with hosts_of(composed, "stop") as hosts:
            answering = hosts
            joined = Joined(composed, hosts, run)
            verdict, left = joined.stop()
    except NotReady as error:
        if answering is None or answering.silent:  # it may go on there
            raise Unproven(error.problems) from error
        raise
    stopped = run_table.Stopped(joined.plan.run_id, composed.where, verdict, left)
    print(json.dumps(stopped.as_data()) if json_ else run_table.stopped(stopped))
    return stopped.exit_code


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
    from runner.workflows.attach import Joined
    from runner.workflows.discovery import hosts_of

    composed = composed_for(run, cluster, set_, config_dir)
    with hosts_of(composed, "pull") as hosts:
        joined = Joined(composed, hosts, run)
        pulled = joined.pull()
    due = {*hosts.silent, *(share.node for share in joined.plan.nodes)}  # or may have some of it
    missing = [name for name in joined.involved if name in due and name not in pulled]
    problems = [*download.problems(pulled)]
    problems += [hosts.silent.get(n) or Problem(n, "has nothing of that run") for n in missing]
    if json_:
        print(json.dumps(download.as_data(pulled)))
    else:
        print(download.summary(pulled, os.path.relpath(joined.store.folder)))
    if problems:
        print(render(problems), file=sys.stderr)
    return 3 if missing or not all(each.complete for each in pulled.values()) else 0


def _number(flag: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(
            [Problem(flag, f"must be a number of lines, not {text!r}", f"{flag} 100")]
        )
    return int(text)


VERBS: dict[str, Task[Any]] = {each.name: each for each in (ps, logs, attach, stop, pull)}
"""Every verb about runs by the name it is called by."""
