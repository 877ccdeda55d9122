"""Discovery of runs on the hosts of a cluster, and the one that a verb is about."""

from __future__ import annotations

import contextlib
import json
import time
import zlib
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.rpc.wait import Broadcast
from runner.core.codec import decode
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem
from runner.core.model.facts import FactsRequest
from runner.core.model.plan import Plan
from runner.core.model.results import RemoteRun
from runner.core.model.run_info import HostRunStatus, RunInfo, current_hosts
from runner.core.model.spec import LaunchRequest, Node, Spec
from runner.core.outcome.verdict import Verdict, fold_events
from runner.core.protocol.paths import is_run_id
from runner.ui.console.plain import Console, open_console
from runner.workflows.host_pool import HostPool, open_host_pool

ANNOUNCE_TIMEOUT_S = 15.0  # how long a launch may take to announce another attempt
START_TIMEOUT_S = 30.0  # how long that attempt may take to start, after the last announcement
POLL_S = 0.5
RECONNECT_S = 10.0  # how often to reconnect to hosts without a connection


@dataclass(frozen=True)
class RunRecord:
    """What a host has on record of a run: its plan, its configuration and `info`."""

    plan: Plan
    config_yaml: str
    info: RunInfo


class RunFinder:
    """The hosts of a cluster that answer."""

    def __init__(self, pool: HostPool, *, gpus: bool = False) -> None:
        self.pool, self.console = pool, pool.console
        self.unreadable_runs: dict[str, int] = {}  # how many runs of other users, by node
        self.clock_offsets: dict[str, float] = {}  # the time on each host when it answered
        spec = pool.spec
        self._nodes = {node.name: node for node in spec.nodes}
        self._show_status: Callable[[str, str], None] = self.console.node_status
        self._request = lambda node: FactsRequest(
            node=node.name, workdir=spec.workdir, skip_launch_facts=True, gpus=gpus
        )
        self.facts, self.unreachable = pool.collect_available_facts(self._request)
        if not self.facts:
            raise NotReady(list(self.unreachable.values()))

    def runs(self, run_id: str = "") -> list[RemoteRun]:
        """Return the runs on these hosts, the oldest first: all, or one."""
        answers, problems = self.broadcast().collect("runs", {"run_id": run_id}, "runs")
        self.unreachable.update(problems)
        by_run: dict[str, dict[str, HostRunStatus]] = {}
        for name in [node.name for node in self.pool.spec.nodes if node.name in answers]:
            reply = answers[name]
            self.unreadable_runs[name] = int(reply["unreadable"])
            self.clock_offsets[name] = float(reply["now"])
            for entry in reply["runs"]:
                status = decode(HostRunStatus, entry)
                if is_run_id(status.info.run_id):
                    by_run.setdefault(status.info.run_id, {})[name] = status
        runs = []
        for statuses in by_run.values():
            latest = max((status.info for status in statuses.values()), key=lambda i: i.attempt)
            runs.append(RemoteRun(latest, statuses))
        return sorted(runs, key=_launched_at)

    def find(self, run_id: str) -> RemoteRun:
        """Return a run by its id, or the latest one for "" and "latest"; else raise NotReady."""
        run_name = "" if run_id == "latest" else run_id
        matches = self.runs(run_name)
        if not run_name:
            users = {facts.user for facts in self.facts.values()}
            matches = [run for run in matches if {s.owner for s in run.by_host.values()} & users]
        if matches:
            return matches[-1]
        raise NotReady([self._run_not_found(run_name)])

    def load_record(self, run: RemoteRun) -> RunRecord:
        """Return the record of a run, from a host of its last attempt if one answers.

        If nodes may join, it is the record with the most nodes. If none can be read, that is
        `NotReady`.
        """
        all_problems: list[Problem] = []
        best: RunRecord | None = None
        for name in sorted(run.by_host, key=lambda name: -run.by_host[name].info.attempt):
            answers, problems = self.broadcast({name}).collect("run", {"run_id": run.run_id}, "run")
            all_problems += problems.values()
            for reply in answers.values():
                try:
                    raw = json.loads(zlib.decompress(reply["payload"]))
                    record = _parse_record(raw, run.run_id)
                    if not record.plan.min_nodes:
                        return record
                    size = record.plan.attempt, len(record.plan.nodes)
                    if best is None or size > (best.plan.attempt, len(best.plan.nodes)):
                        best = record
                except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
                    message = f"its record of {run.run_id} is damaged: {error}"
                    all_problems.append(Problem(name, message))
        if best is not None:
            return best
        raise NotReady(all_problems or [self._run_not_found(run.run_id)])

    def retarget_to_run(self, plan: Plan) -> Spec:
        """Work with the nodes of a run from now on, with the limits it was started with."""
        spec, order, known = self.pool.spec, plan.nodes[0].order, self._nodes
        nodes = (known.get(each.node) or Node(each.node, each.host) for each in plan.nodes)
        run_spec = replace(
            spec,
            run_id=plan.run_id,
            cluster=plan.cluster,
            nodes=tuple(nodes),
            grace_s=order.grace_s,
            lost_s=order.hub.lost_s if order.hub else spec.lost_s,
            disconnect_s=order.disconnect_s,
        )
        self.pool.retarget(run_spec)
        return run_spec

    def reconnect_all(self) -> None:
        """Try to reach all hosts of the cluster again."""
        self.pool.retarget(replace(self.pool.spec, nodes=tuple(self._nodes.values())))
        self.facts, self.unreachable = self.pool.collect_available_facts(
            self._request, reuse_sessions=True
        )

    @contextlib.contextmanager
    def without_status(self) -> Iterator[None]:
        """Show no states of the requests made meanwhile."""
        show_status, self._show_status = self._show_status, lambda _, __: None
        try:
            yield
        finally:
            self._show_status = show_status

    def broadcast(self, names: Container[str] | None = None) -> Broadcast:
        """Return a broadcast to these hosts, or to all that are connected."""
        connected = [name for name, each in self.pool.sessions.items() if not each.closed]
        targets = [name for name in connected if names is None or name in names]
        return self.pool.broadcast(targets, self._show_status)

    def _run_not_found(self, run_id: str) -> Problem:
        spec = self.pool.spec
        subject = f"no run {run_id}" if run_id else "no run"
        message = f"{subject} on the hosts of {spec.cluster}, in {spec.workdir}"
        if self.unreachable:
            message += f"; not asked: {', '.join(self.unreachable)}"
        return Problem("--run", message, f"python -m runner ps --all --cluster {spec.cluster}")


@contextlib.contextmanager
def open_run_finder(
    composed: LaunchRequest, verb: str, *, plain: bool = False, gpus: bool = False
) -> Iterator[RunFinder]:
    """Connect to the hosts of a cluster for one verb; at the end all is closed, the console too.

    The verb's name appears in `ps` on the hosts. With `plain` the console shows no states;
    `gpus` also asks for the processes on the GPUs. If no host answers, that is `NotReady`.
    """
    if plain:
        console = Console(reader_gone_note=b"")
    else:
        names = [node.name for node in composed.spec.nodes]
        console = open_console(composed.ui, composed.console_ranks, names)
    with open_host_pool(replace(composed.spec, run_id=verb), console) as pool:
        yield RunFinder(pool, gpus=gpus)


def _launched_at(run: RemoteRun) -> tuple[float, str]:
    last_change = max(status.changed_at for status in run.by_host.values())
    return run.info.launched_at or last_change, run.run_id


def _parse_record(reply: Mapping[str, Any], run_id: str) -> RunRecord:
    plan, info = (json.loads(reply[name]) for name in ("plan", "info"))
    record = RunRecord(decode(Plan, plan), reply["config"], decode(RunInfo, info))
    if record.plan.run_id != run_id:
        raise ValueError(f"it is of {record.plan.run_id!r}")
    return replace(record, info=replace(record.info, run_id=run_id))


class FoundRun:
    """One run on the hosts of a cluster, with its record on this machine.

    `plan` is its last attempt, `spec` has the nodes of that and the limits of the run. The record
    on this machine is written only if no other process does, and only what it lacks.
    """

    def __init__(self, request: LaunchRequest, finder: RunFinder, run_id: str) -> None:
        from runner.control.record.run_store import RunStore  # `ps` needs none

        self.finder, self.console = finder, finder.console
        self.cluster_selector = request.cluster_selector
        self.reported = finder.find(run_id)  # as its hosts reported it when it was found
        self.record: RunRecord = finder.load_record(self.reported)
        self.store = RunStore(request.run_dir.parent / self.record.plan.run_id)
        self.outcome_unknown = False  # another attempt was announced and could not be found
        self._load_attempt()

    def _load_attempt(self) -> None:
        self.plan = self.record.plan
        self.spec = self.finder.retarget_to_run(self.plan)

    @property
    def already_ended(self) -> bool:
        """Whether no host of it was active when it was found."""
        statuses = current_hosts(self.reported.by_host)
        is_complete = all(share.node in statuses for share in self.plan.nodes)
        return is_complete and not any(status.is_active for status in statuses.values())

    @property
    def relaunch_pending(self) -> bool:
        """Whether its launch was about to relaunch it."""
        statuses = current_hosts(self.reported.by_host)
        return any(status.relaunch_pending for status in statuses.values())

    @property
    def all_nodes(self) -> tuple[str, ...]:
        """The nodes of this attempt and of those before it."""
        shares = (share.node for share in self.plan.nodes)
        return tuple(dict.fromkeys((*shares, *self.record.info.past_nodes)))

    def show_participants(self) -> None:
        """Show the contacted hosts that are part of the run, and not the others."""
        contacted = {*self.finder.facts, *self.finder.unreachable}
        standby = {*self.record.info.standby_nodes}
        for name in contacted.difference(share.node for share in self.plan.nodes):
            self.console.node_status(name, "spare" if name in standby else "")

    def verdict(self, monitor: AttemptMonitor) -> Verdict:
        """Return how the run ended, as far as the monitor has seen."""
        info = self.record.info
        seconds = monitor.duration(info.launched_at)
        return fold_events(self.plan, monitor.timed_events, seconds, info.past_attempts)

    def switch_to_next_attempt(self, monitor: AttemptMonitor) -> bool:
        """Turn to the attempt that follows; return False if there is none, or it is not found."""
        as_found = self.reported
        record = self._find_next_attempt(monitor)
        if record is None:
            self.reported = as_found
            self.finder.retarget_to_run(self.plan)
            return False
        self.record, self.outcome_unknown = record, False
        self._load_attempt()
        return True

    def _find_next_attempt(self, monitor: AttemptMonitor) -> RunRecord | None:
        peers = monitor.peer_status
        is_announced = bool(peers.next_attempt_number)
        failed = 0 < self.verdict(monitor).exit_code < SIGNAL_EXIT_BASE
        if failed and not (is_announced or peers.hosts_decide or monitor.interrupted):
            was_over = self.already_ended and not self.relaunch_pending
            with contextlib.suppress(Interrupted):  # then the verdict is wanted at once
                is_announced = self._wait_for_announcement(0.0 if was_over else ANNOUNCE_TIMEOUT_S)
        self.outcome_unknown = is_announced
        if not is_announced:
            return None
        try:
            with self.finder.without_status():
                return self._wait_for_start()
        except Interrupted as error:
            message = f"left run {self.plan.run_id}; its next attempt is about to start"
            raise Interrupted(error.exit_code, message) from None

    def _wait_for_announcement(self, timeout_s: float) -> bool:
        if not self.reported.info.relaunches_left:
            return False
        deadline = time.monotonic() + timeout_s
        self.console.phase("waiting for a relaunch")
        with self.finder.without_status():
            while not self.relaunch_pending and self.reported.info.attempt == self.plan.attempt:
                if time.monotonic() >= deadline:
                    return False
                self._refresh()
        if self.relaunch_pending:
            self.console.message(f"{self.reported.info.launched_by} is about to relaunch the run")
        return True

    def _refresh(self) -> None:
        self.finder.pool.poll_for_stop(POLL_S)
        with contextlib.suppress(NotReady):
            self.reported = self.finder.find(self.plan.run_id)

    def _wait_for_start(self) -> RunRecord | None:
        reconnect_at = time.monotonic()  # at once: spares had no connection so far
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            if time.monotonic() >= reconnect_at:
                self.finder.reconnect_all()
                self.console.phase("waiting for the next attempt")
                reconnect_at = time.monotonic() + RECONNECT_S
            self._refresh()
            if self.reported.info.attempt > self.plan.attempt:
                with contextlib.suppress(NotReady):
                    record = self.finder.load_record(self.reported)
                    self._wait_for_all_hosts(record.plan, deadline)
                    return record
            elif self.relaunch_pending:
                deadline = time.monotonic() + START_TIMEOUT_S
        self.console.message("the next attempt did not start in time")
        return None

    def _wait_for_all_hosts(self, plan: Plan, deadline: float) -> None:
        """Wait until every host of the attempt has its record."""
        expected = {share.node for share in plan.nodes}
        while time.monotonic() < deadline:
            hosts = self.reported.by_host.items()
            if expected <= {name for name, run in hosts if run.info.attempt >= plan.attempt}:
                return
            self._refresh()
