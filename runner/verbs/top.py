"""The verb `top`: what every GPU does, whose it is, and how far the runs are, live."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from dataclasses import replace

import click
from rich.console import Console
from rich.live import Live

from runner.control.run.discovery import RunFinder
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.remote_run import RemoteRun
from runner.core.wire.run_info import Sample
from runner.ui.layout import terminal_width
from runner.ui.reports import run_table
from runner.ui.top import ClusterView, NodeView, render_view
from runner.verbs.shared.selection import Selection, open_run_finder
from runner.verbs.shared.verb import show_json, verb

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
    examples={"top": "the machines of the last run", "top lab3": "those of a cluster"},
)
@click.option("--once", is_flag=True, help="print a table once, as in a pipe")
@click.option("--json", "json_", is_flag=True, help="print JSON once")
def top(selection: Selection, once: bool, json_: bool) -> int:
    """Watch the hosts of a cluster: GPUs, whose processes they have, runs.

    What is unusual comes first. Ctrl-C ends the view, and no run.
    """
    composed = selection.contact_latest()
    is_live = not (once or json_) and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    width = None if is_live else terminal_width()
    console = Console(width=width, markup=False, highlight=False, emoji=False)
    with open_run_finder(composed, "top", plain=True) as finder:
        watch = HostWatch(finder)
        watch.poll()
        finder.pool.poll_for_stop(FIRST_POLL_S)
        watch.poll()
        if not watch.samples:
            raise NotReady([*watch.problems.values()])
        if is_live:
            _follow(watch, console)
    if json_:
        show_json(watch.view().as_data())
    elif not is_live:
        console.print(render_view(watch.view(), console.width))
    return 0


def _follow(watch: HostWatch, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
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
    def __init__(self, finder: RunFinder) -> None:
        self.finder = finder
        self.problems: dict[str, Problem] = {}  # of hosts that do not answer
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
        if now >= self._runs_due:
            self._runs_due = now + RUNS_S
            self._runs = finder.runs()
        self.problems = {**finder.unreachable, **problems}

    def view(self) -> ClusterView:
        on_node: dict[str, list[str]] = defaultdict(list)
        for run in self._runs:
            for name in run.by_host if run.is_active else ():
                on_node[name].append(run.run_id)
        names = dict.fromkeys([node.name for node in self.finder.cluster_nodes])
        nodes = []
        hints: dict[str, str] = {}  # told once for the nodes with the same problem
        for name in names:
            problem = self.problems.get(name)
            silence = problem.message if problem else ""
            sample = None if silence else self.samples.get(name)
            if sample:
                sample = replace(sample, node=name, gpus=sample.gpus[:MAX_GPUS])
            kind = (problem.shared or problem).hint if problem else ""
            hint = problem.hint if problem and hints.setdefault(kind, name) == name else ""
            nodes.append(NodeView(name, sample, silence, hint, tuple(on_node[name])))
        rows = run_table.rows(self._runs)
        return ClusterView(self.finder.pool.spec.cluster.name, tuple(nodes), tuple(rows))
