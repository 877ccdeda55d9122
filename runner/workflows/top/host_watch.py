"""Host watch: a session per host in which samples and runs are asked for, again and again.

It works in threads of its own, so that whoever shows what is known waits for no host.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import replace

from runner.control.record.host_record import merge_statuses
from runner.control.rpc.bootstrap import boot_limit_s, boot_problem
from runner.control.rpc.facts import MAX_CONCURRENT_LOGINS
from runner.control.rpc.session import BoundedInbox, Connector, HostSession
from runner.control.rpc.wait import TICK_S, WaitLoop
from runner.core.codec import encode
from runner.core.errors import NotReady, Problem
from runner.core.model.facts import FactsRequest
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import aggregate_state
from runner.core.model.samples import Sample
from runner.core.model.spec import Node, Spec
from runner.core.protocol.frames import Frame
from runner.ui.layout import fold_names
from runner.ui.reports import run_table
from runner.ui.top.cluster_view import ClusterView, HostState
from runner.workflows.top.job_samples import JobSamples
from runner.workflows.top.watched_host import ANSWER_S, FACTS, RUNS, SAMPLE, WatchedHost

SILENT_S = 8.0  # without a sign of life, pings every 2 s
MERGE_S = 0.5  # after which the answers of all hosts become a list of runs
CLOSE_S = 2.0
MAX_GPUS, MAX_USERS = 64, 32  # of a host, and of a GPU, that are shown

_Arrival = tuple[str, "HostSession | None", Problem]


class HostWatch(WaitLoop):
    """The hosts of a cluster, or of one run, while somebody looks at them."""

    def __init__(self, spec: Spec, run_id: str = "") -> None:
        self.notes: list[str] = []  # of the transports
        self._live: dict[str, HostSession] = {}
        super().__init__(self._live, BoundedInbox())
        self.spec = replace(spec, run_id="top")
        self.run_id = run_id  # the only one that is asked for; "" for all
        self.changed = threading.Event()
        self.remote_runs: tuple[RemoteRun, ...] = ()
        self._connector = Connector(self.spec, self.notes.append)
        self._hosts = {node.name: WatchedHost(node) for node in spec.nodes}
        self._arrivals = queue.SimpleQueue[_Arrival]()
        self._to_connect: queue.SimpleQueue[Node | None] = queue.SimpleQueue()
        self._closed = threading.Event()
        self._jobs = JobSamples()
        self._next_look = 0.0
        self._merge_at = math.inf  # there is news of runs, if it is not infinite
        self._fault: Exception | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Watch until the end of the block, where every connection ends."""
        workers = min(MAX_CONCURRENT_LOGINS, len(self._hosts))
        for _ in range(workers):
            threading.Thread(target=self._connect_queued, daemon=True, name="connect").start()
        loop = threading.Thread(target=self._loop, daemon=True, name="watch")
        loop.start()
        try:
            yield
        finally:
            self._closed.set()
            for _ in range(workers):
                self._to_connect.put(None)
            loop.join(CLOSE_S)
            for session in [*self._live.values()]:
                session.close(is_silent=session.idle_s > SILENT_S)
            self._connector.close()

    @property
    def is_settled(self) -> bool:
        """Whether every host has said all of it, or does not answer."""
        has_news = self._merge_at < math.inf or not self._jobs.is_asked
        return not has_news and all(host.is_settled for host in self._hosts.values())

    @property
    def is_sampled(self) -> bool:
        """Whether every host has told its load, or does not answer."""
        return all(host.is_sampled for host in self._hosts.values())

    @property
    def silent(self) -> tuple[str, ...]:
        """The hosts that do not answer."""
        hosts = self._hosts.items()
        return tuple(name for name, host in hosts if host.state is HostState.SILENT)

    @property
    def problems(self) -> list[Problem]:
        """Why hosts do not answer."""
        return [self._hosts[name].problem for name in self.silent]

    def view(self, title: str) -> ClusterView:
        """Return what is known now; raise the fault that ended the watch, if one did."""
        if self._fault is not None:
            raise self._fault
        runs = self.remote_runs
        shown = self._shown_names(runs)
        on_node: dict[str, list[str]] = {name: [] for name in self._hosts}
        for run in runs:
            for name in run.asked.values() if run.is_active else ():
                on_node.setdefault(name, []).append(run.run_id)
        hosts = [host for name, host in self._hosts.items() if name in shown]
        nodes = tuple(host.view(tuple(on_node[host.node.name])) for host in hosts)
        nodes += tuple(node for node in self._jobs.views() if node.name not in shown)
        return ClusterView(title, time.time(), nodes, tuple(self._rows(runs)), self._notes())

    def _rows(self, runs: tuple[RemoteRun, ...]) -> list[run_table.Row]:
        """Return a row per active run, with its age by the clocks of its hosts."""
        offsets = {n: host.runs["now"] for n, host in self._hosts.items() if host.runs}
        told = [run for run in runs if {*run.asked.values()} <= offsets.keys()]
        return run_table.rows(told, {}, all_=False, clock_offsets=offsets, folders={})

    def _shown_names(self, runs: tuple[RemoteRun, ...]) -> Collection[str]:
        """Return the names of all hosts, or of those that a run is on, or may be on."""
        if not self.run_id or not runs:
            return self._hosts
        on_it = {*runs[-1].asked.values()}
        return {n for n, host in self._hosts.items() if n in on_it or host.runs is None}

    def _notes(self) -> tuple[str, ...]:
        unknown = (
            f"{host.node.name}: its runs are not known: {host.has_no_runs}"
            for host in self._hosts.values()
            if host.has_no_runs
        )
        ended = [run for run in self.remote_runs if self.run_id and not run.is_active]
        may_be_on = (
            f"{run.run_id}: {aggregate_state(run.by_host)} on {fold_names(run.asked.values())}; "
            f"it may be on elsewhere: not answering: {fold_names(self.silent)}"
            for run in ended
            if not run.is_complete and self.silent
        )
        return (*unknown, *may_be_on)

    def _loop(self) -> None:
        try:
            self.wait()
        except Exception as error:  # noqa: BLE001 (whoever looks hears of it)
            self._fault = error
            self.changed.set()

    def _pending(self) -> Collection[str]:
        return self._live.keys()

    def _is_finished(self) -> bool:
        return self._closed.is_set()

    def _owes_answer(self, name: str) -> bool:
        del name
        return False  # each request has its deadline

    def _deadline_of(self, name: str) -> float:
        return self._hosts[name].deadline

    def _tick(self) -> float:
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + TICK_S
            self._take_arrivals()
            for name, host in self._hosts.items():
                self._advance(name, host, now)
            self._jobs.ask_due(self._live, now)
        if now >= self._merge_at:
            self._merge_runs()
        return TICK_S

    def _advance(self, name: str, host: WatchedHost, now: float) -> None:
        """Connect to a host, or ask it what is due."""
        session = self._live.get(name)
        if session is None:
            if not host.is_connecting and now >= host.retry_at:
                host.is_connecting = True
                self._to_connect.put(host.node)
            return
        if session.handshake_done and session.idle_s > SILENT_S:
            self._on_lost(name, f"nothing was heard from it for {session.idle_s:.0f} s")
            return
        for kind in host.due(now):
            limit_s = math.inf if kind == RUNS else ANSWER_S
            if not session.handshake_done:
                limit_s = boot_limit_s(self.spec) + ANSWER_S
            host.on_asked(kind, session.request(kind, self._request_data(kind, name)), limit_s)

    def _request_data(self, kind: str, name: str) -> dict[str, object]:
        if kind == FACTS:
            workdir = self.spec.workdir
            request = FactsRequest(node=name, workdir=workdir, skip_launch_facts=True)
            return {"request": encode(request)}
        if kind == RUNS:
            return {"node": name, "run_id": self.run_id, "others": list(self._hosts)}
        return {"node": name}

    def _connect_queued(self) -> None:
        while (node := self._to_connect.get()) is not None and not self._closed.is_set():
            nothing = Problem(node.name, "")
            try:
                session = self._connector.open(node, self.inbox)
            except NotReady as error:
                self._arrivals.put((node.name, None, error.problems[0]))
            except Exception as error:  # noqa: BLE001 (the other hosts are shown all the same)
                message = f"could not be reached: {type(error).__name__}: {error}"
                self._arrivals.put((node.name, None, replace(nothing, message=message)))
            else:
                self._arrivals.put((node.name, session, nothing))
                if self._closed.is_set():
                    session.close()

    def _take_arrivals(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                name, session, problem = self._arrivals.get_nowait()
                if session is None:
                    self._lose(name, problem)
                    continue
                self._live[name] = session
                self._hosts[name].on_connected()
                session.request("ping")

    def _on_frame(self, name: str, frame: Frame) -> bool:
        if self._jobs.on_frame(name, frame):
            self.changed.set()
            return True
        host = self._hosts[name]
        kind = host.kind_of(frame.data.get("id"))
        if frame.kind == "refused" and kind == SAMPLE:
            self._on_lost(name, f"it could not take a sample: {frame.data['reason']}")
        elif frame.kind == "refused" and kind:
            host.on_refused(kind, frame.data["reason"])
        elif (frame.kind, kind) == ("sampled", SAMPLE):
            host.on_sample(_limited(frame.data["sample"], name))
        elif (frame.kind, kind) == ("facts", FACTS):
            host.on_facts()
        elif (frame.kind, kind) == ("runs", RUNS):
            host.on_runs(frame.data)
            self._note_news()
        if kind:
            self.changed.set()
        return bool(kind)

    def _on_closed(self, session: HostSession, reason: str) -> None:
        name = session.node.name
        if session.handshake_done:
            self._lose(name, Problem(name, f"the connection to it broke: {reason}"))
        else:
            self._lose(name, boot_problem(self.spec, name, session.banner, reason))

    def _on_late(self, name: str) -> None:
        self._on_lost(name, "it answers pings, and no request")

    def _on_lost(self, name: str, reason: str) -> None:
        self._lose(name, Problem(name, reason))

    def _lose(self, name: str, problem: Problem) -> None:
        session = self._live.pop(name, None)
        if session is not None:
            session.close(is_silent=session.idle_s > SILENT_S)
        self._hosts[name].on_lost(problem)
        self._jobs.forget(name)
        self._note_news()
        self.changed.set()

    def _note_news(self) -> None:
        """Make a new list of runs soon: the answers of other hosts come at about the same time."""
        self._merge_at = min(self._merge_at, time.monotonic() + MERGE_S)

    def _merge_runs(self) -> None:
        replies = {name: host.runs for name, host in self._hosts.items() if host.runs is not None}
        hosts = {name: host.node.host for name, host in self._hosts.items()}
        runs, _ = merge_statuses(replies, hosts)
        wanted = [run for run in runs if self.run_id in ("", run.run_id)]
        self.remote_runs = tuple(wanted)
        self._jobs.on_runs(self.remote_runs, {n: reply["now"] for n, reply in replies.items()})
        self._merge_at = math.inf


def _limited(sample: Sample, name: str) -> Sample:
    """Return a sample with as much of it as is shown."""
    gpus = tuple(replace(gpu, users=gpu.users[:MAX_USERS]) for gpu in sample.gpus[:MAX_GPUS])
    return replace(sample, node=name, gpus=gpus)
