"""The verb `top`: what every GPU does, whose it is, and how far the runs are, live."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from runner.control.record import run_index
from runner.control.record.file_names import LATEST
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.shell import this_program
from runner.core.wire.codec import encode
from runner.ui.output import show
from runner.verbs.shared.selection import Selection
from runner.verbs.shared.verb import run_option, verb

if TYPE_CHECKING:
    from runner.control.run.discovery import RunFinder
    from runner.core.launch_request import LaunchRequest
    from runner.core.results import RemoteRun
    from runner.core.wire.run_info import Sample
    from runner.ui.top import ClusterView

POLL_S = 2.0
FIRST_POLL_S = 1.0  # the first sample has no CPU
RUNS_S = 5.0
RETRY_S = 30.0
"""How often hosts that do not answer are tried again; the view stands still meanwhile."""

ANSWER_S = 8.0
MAX_GPUS = 64  # of a host


@verb(
    "top",
    subject="cluster",
    examples={"top lab3": "its machines", "top --run latest": "those of a run"},
)
@run_option
@click.option("--once", is_flag=True, help="print a table once, as in a pipe")
@click.option("--json", "json_", is_flag=True, help="print JSON once")
def top(selection: Selection, run: str, once: bool, json_: bool) -> int:
    """Watch the hosts of a cluster or of a run: GPUs, whose processes they have, runs.

    What is unusual comes first. Ctrl-C ends the view, and no run.
    """
    from rich.console import Console

    from runner.ui.layout import fold_names, terminal_width
    from runner.ui.top import render_view
    from runner.verbs.shared.selection import open_run_finder

    word = selection.cluster
    if not run and (word == LATEST or (word and run_index.record_folder(word))):
        run = word
        selection = replace(selection, cluster="")
    composed = selection.contact_for_run(run) if run else selection.contact_latest()
    is_live = not (once or json_) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    with open_run_finder(composed, "top", plain=True) as finder:
        watch = HostWatch(composed, finder, is_run=bool(run))
        watch.poll()
        finder.pool.poll_for_stop(FIRST_POLL_S)
        watch.poll()
        if not watch.samples:
            raise NotReady([*watch.problems.values()])
        if is_live and watch.end is None:
            _follow(watch)
    end = watch.end
    if json_:
        show(json.dumps({**watch.view().as_data(), "ended": encode(end) if end else None}))
    elif end:
        silent = f"; not answering: {fold_names(end.silent)}" if end.silent else ""
        show(f"run {end.run_id} has ended: {end.state}{silent}")
        show(f"  {this_program()} why {composed.run_flags(end.run_id)}")
    elif not is_live:
        width = terminal_width()
        console = Console(width=width, markup=False, highlight=False, emoji=False)
        console.print(render_view(watch.view(), width))
    return 0


@dataclass(frozen=True)
class RunEnd:
    """How a run has ended, as the hosts say that answer."""

    run_id: str
    state: str
    silent: tuple[str, ...] = ()  # hosts that do not answer, and may have had a part in it


def _follow(watch: HostWatch) -> None:
    """Show the view until Ctrl-C, or until the run that it is about has ended."""
    from rich.console import Console
    from rich.live import Live

    from runner.ui.top import render_view

    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while watch.end is None:
            view = render_view(watch.view(), console.width, console.height)
            live.update(view, refresh=True)
            try:
                watch.finder.pool.poll_for_stop(POLL_S)
                watch.poll()
            except Interrupted as interrupted:
                if interrupted.exit_code != SIGNAL_EXIT_BASE + signal.SIGINT:
                    raise
                return


class HostWatch:
    """What is known of the hosts."""

    def __init__(self, composed: LaunchRequest, finder: RunFinder, *, is_run: bool) -> None:
        self.finder = finder
        self.end: RunEnd | None = None
        self.problems: dict[str, Problem] = {}  # of hosts that do not answer
        self._title = composed.spec.cluster.name
        self._run: RemoteRun | None = None
        if is_run:
            self._run = finder.find(composed.spec.run_id, prefer_active=True)
            self._title = self._run.run_id
        self._runs: list[RemoteRun] = []
        self.samples: dict[str, Sample] = {}  # the newest of each node
        self._runs_due = 0.0
        self._retry_at = time.monotonic() + RETRY_S

    def poll(self) -> None:
        """Ask every host again for its load, and now and then for its runs."""
        finder = self.finder
        now = time.monotonic()
        if finder.unreachable and now >= self._retry_at:
            finder.reconnect_all()
            self._retry_at = time.monotonic() + RETRY_S
        answers, problems = finder.pool.broadcast().collect("sample", {}, "sampled", ANSWER_S)
        self.samples.update((name, answer["sample"]) for name, answer in answers.items())
        is_due = now >= self._runs_due
        if is_due:
            self._runs_due = now + RUNS_S
            self._runs = finder.runs(self._run.run_id if self._run else "")
        self.problems = {**finder.unreachable, **problems}
        if is_due:
            self._look_for_end()

    def view(self) -> ClusterView:
        """Return what is known now."""
        from runner.ui.reports import run_table
        from runner.ui.top import ClusterView, NodeView

        on_node: dict[str, list[str]] = defaultdict(list)
        for run in self._runs:
            for name in run.by_host if run.is_active else ():
                on_node[name].append(run.run_id)
        names = dict.fromkeys([node.name for node in self.finder.cluster_nodes])
        nodes = []
        hints: dict[str, str] = {}  # told once for the nodes with the same problem
        for name in names:
            problem = self.problems.get(name)
            if self._run and name not in on_node and problem is None:
                continue
            silence = problem.message if problem else ""
            sample = None if silence else self.samples.get(name)
            if sample:
                sample = replace(sample, node=name, gpus=sample.gpus[:MAX_GPUS])
            kind = (problem.shared or problem).hint if problem else ""
            hint = problem.hint if problem and hints.setdefault(kind, name) == name else ""
            nodes.append(NodeView(name, sample, silence, hint, tuple(on_node[name])))
        rows = run_table.rows(self._runs)
        return ClusterView(self._title, tuple(nodes), tuple(rows))

    def _look_for_end(self) -> None:
        from runner.core.results import aggregate_state

        run = self._runs[-1] if self._run and self._runs else None
        if run is not None and run.has_ended():
            silent = () if run.is_complete else tuple(self.problems)
            self.end = RunEnd(run.run_id, aggregate_state(run.by_host), silent)
