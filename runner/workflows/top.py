"""View of hosts that is kept up to date: samples and runs are asked for again and again."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.live import Live

from runner.control.rpc.wait import WaitLoop
from runner.core.codec import encode
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import aggregate_state
from runner.core.model.samples import MAX_LINE, Sample, parse_sample
from runner.core.model.spec import LaunchRequest
from runner.core.protocol.frames import Frame, decompress
from runner.core.protocol.paths import SAMPLES_FILE
from runner.core.protocol.remote_files import SAMPLES
from runner.core.shell import this_program
from runner.ui.layout import fold_names, terminal_width
from runner.ui.output import show
from runner.ui.reports import run_table
from runner.ui.top import ClusterView, NodeView, render_view
from runner.workflows.runs.discovery import RunFinder, open_run_finder

POLL_S = 2.0
FIRST_POLL_S = 1.0  # the first sample has no rates
RUNS_S = 5.0
RETRY_S = 30.0
"""How often hosts that do not answer are tried again; the view stands still meanwhile."""

ANSWER_S = 8.0
KEPT_SAMPLES = 4
MAX_GPUS = 64  # of a host
MAX_USERS = 32  # of a GPU

OLD_S = 60.0  # a sample that a node of a job recorded so long ago says nothing about now
RECORDED_BYTES = 2 * MAX_LINE  # of the end of a job's samples
MAX_JOB_NODES = 1000


@dataclass(frozen=True)
class RunEnd:
    """How a run has ended, as the hosts say that answer."""

    run_id: str
    state: str
    silent: tuple[str, ...] = ()  # hosts that do not answer, and may have had a part in it


def watch_hosts(composed: LaunchRequest, *, is_run: bool, is_live: bool, as_json: bool) -> int:
    """Show the hosts of a cluster, or of one run, once or until Ctrl-C or the end of the run.

    Raises:
        NotReady: No host answers, or none knows the run.
    """
    with open_run_finder(composed, "top", plain=True) as finder:
        watch = HostWatch(composed, finder, is_run=is_run)
        watch.poll()
        finder.pool.poll_for_stop(FIRST_POLL_S)
        watch.poll()
        if not watch.knows_a_load:
            raise NotReady([*watch.problems.values()])
        if is_live and watch.end is None:
            _follow(watch)
    if as_json:
        ended = encode(watch.end) if watch.end else None
        show(json.dumps({**watch.view().as_data(), "ended": ended}))
    elif watch.end:
        end = watch.end
        silent = f"; not answering: {fold_names(end.silent)}" if end.silent else ""
        show(f"run {end.run_id} has ended: {end.state}{silent}")
        show(f"  {this_program()} why {composed.run_flags(end.run_id)}")
    elif not is_live:
        width = terminal_width()
        console = Console(width=width, markup=False, highlight=False, emoji=False)
        console.print(render_view(watch.view(), width))
    return 0


def _follow(watch: HostWatch) -> None:
    """Show the view until Ctrl-C, or until the run that it is about has ended."""
    console = Console(markup=False, highlight=False, emoji=False)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while watch.end is None:
            rows = max(1, console.height - 5)
            live.update(render_view(watch.view(), console.width, rows), refresh=True)
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
        self._title = composed.spec.cluster
        self._run: RemoteRun | None = None
        if is_run:
            self._run = finder.find(composed.spec.run_id, prefer_active=True)
            self._title = self._run.run_id
        self._runs: list[RemoteRun] = []
        self._samples: dict[str, deque[Sample]] = {}
        self._in_jobs: dict[str, NodeView] = {}
        self.problems: dict[str, Problem] = {}  # of hosts that do not answer
        self._runs_due = 0.0
        self._retry_at = time.monotonic() + RETRY_S

    def poll(self) -> None:
        """Ask every host again for its load, and now and then for its runs."""
        finder = self.finder
        now = time.monotonic()
        if finder.unreachable and now >= self._retry_at:
            finder.reconnect_all()
            self._retry_at = time.monotonic() + RETRY_S
        answers, problems = finder.broadcast().collect("sample", {}, "sampled", ANSWER_S)
        for name, answer in answers.items():
            sample = _limited(answer["sample"], name)
            self._samples.setdefault(name, deque(maxlen=KEPT_SAMPLES)).append(sample)
        for name in self._samples.keys() - answers.keys():
            del self._samples[name]
        is_due = now >= self._runs_due
        if is_due:
            self._runs_due = now + RUNS_S
            self._runs = finder.runs(self._run.run_id if self._run else "")
            self._ask_jobs()
        self.problems = {**finder.unreachable, **problems}
        if is_due:
            self._look_for_end()

    @property
    def knows_a_load(self) -> bool:
        """Whether a host answers, or a node of a job has samples on record."""
        return bool(self._samples) or any(node.samples for node in self._in_jobs.values())

    def view(self) -> ClusterView:
        """Return what is known now."""
        on_node: dict[str, list[str]] = {}
        for run in self._runs:
            for name in run.asked.values() if run.is_active else ():
                on_node.setdefault(name, []).append(run.run_id)
        names = [node.name for node in self.finder.cluster_nodes]
        if self._run:
            names = [name for name in names if name in on_node or name in self.problems]
        in_jobs = self._in_jobs
        return ClusterView(
            title=self._title,
            nodes=(
                *(
                    NodeView(
                        name,
                        samples=tuple(self._samples.get(name, ())),
                        silence=self.problems[name].message if name in self.problems else "",
                        runs=tuple(on_node.get(name, ())),
                    )
                    for name in names
                    if name not in in_jobs
                ),
                *in_jobs.values(),
            ),
            runs=tuple(run_table.rows(self._runs, self.finder.clock_offsets)),
        )

    def _look_for_end(self) -> None:
        run = self._runs[-1] if self._run and self._runs else None
        if run is None or run.is_active:
            return
        silent = () if run.is_complete else tuple(self.problems)
        if not silent or (run.tells_end and not run.may_go_on_elsewhere):
            self.end = RunEnd(run.run_id, aggregate_state(run.by_host), silent)

    def _ask_jobs(self) -> None:
        """Ask what the nodes of Slurm jobs recorded: nobody logs in to them."""
        found = [
            (run, node, run.asked[node])
            for run in self._runs
            if run.is_active and not run.has_not_begun
            for node, status in run.by_host.items()
            if status.job is not None
        ]
        pool = self.finder.pool
        asked = JobNodes(pool.sessions, pool.inbox)
        samples_of = asked.samples(found[:MAX_JOB_NODES])
        self._in_jobs = {}
        for run, node, login in found[:MAX_JOB_NODES]:
            samples = samples_of.get(node, ())
            time_there = self.finder.clock_offsets.get(login, time.time())
            silence = "" if samples else "no sample on record yet"
            if samples:
                age_s = time_there - samples[-1].wall
                interval_s = samples[-1].wall - samples[max(0, len(samples) - 2)].wall
                if age_s > max(OLD_S, 2 * interval_s):
                    silence = f"its last sample is {age_s:.0f} s old"
            self._in_jobs[node] = NodeView(node, samples, silence, (run.run_id,))


class JobNodes(WaitLoop):
    """Requests for the samples of many nodes to their login nodes, all at once."""

    def samples(self, found: Sequence[tuple[RemoteRun, str, str]]) -> dict[str, tuple[Sample, ...]]:
        """Return the last samples of each node of (run, node, login node), within `ANSWER_S`."""
        self._deadline = time.monotonic() + ANSWER_S
        self._found: dict[str, tuple[Sample, ...]] = {}
        self._open: dict[str, dict[int, str]] = {}  # by login node, the node of each request
        for run, node, login in found:
            if login in self.sessions:
                request = {
                    "run_id": run.run_id,
                    "node": node,
                    "file_kind": SAMPLES,
                    "path": f"attempt_{run.by_host[node].info.attempt}/{SAMPLES_FILE}",
                    "offset": -RECORDED_BYTES,
                    "n": RECORDED_BYTES,
                    "compressed": True,
                }
                request_id = self.sessions[login].request("fetch", request)
                self._open.setdefault(login, {})[request_id] = node
        self.wait()
        return self._found

    def _pending(self) -> list[str]:
        return [login for login, nodes in self._open.items() if nodes]

    def _on_frame(self, name: str, frame: Frame) -> bool:
        node = self._open[name].pop(frame.data.get("id", 0), "")
        if node and frame.kind == "fetched":
            data = frame.payload
            self._found[node] = tuple(_recorded(data, node, is_compressed=frame.data["compressed"]))
        return bool(node)

    def _on_late(self, name: str) -> None:
        self._on_lost(name, "")

    def _on_lost(self, name: str, reason: str) -> None:
        del reason
        self._open[name].clear()


def _recorded(data: bytes, node: str, *, is_compressed: bool) -> Iterator[Sample]:
    """Yield the last samples in a chunk of a host's file; torn and foreign ones are left out."""
    with contextlib.suppress(ValueError):
        if is_compressed:
            data = decompress(data, RECORDED_BYTES)
    for line in data.splitlines()[-KEPT_SAMPLES:]:
        with contextlib.suppress(ValueError):
            sample = parse_sample(line)
            if sample.node == node:
                yield sample


def _limited(sample: Sample, name: str) -> Sample:
    """Return a sample with the name that we have for the host, and no endless lists."""
    gpus = tuple(replace(gpu, users=gpu.users[:MAX_USERS]) for gpu in sample.gpus[:MAX_GPUS])
    return replace(sample, node=name, gpus=gpus)
