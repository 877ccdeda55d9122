"""Discovery of runs on the hosts of a cluster, and the one that a verb is about."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Container, Iterator
from dataclasses import replace

from runner.control.attempt.stop import user_at_host
from runner.control.record import run_index
from runner.control.record.host_record import (
    HostRecord,
    agreed_record,
    merge_statuses,
    parse_record,
)
from runner.control.rpc.wait import Broadcast
from runner.core.errors import NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.model.facts import FactsRequest
from runner.core.model.plan import Plan
from runner.core.model.results import RemoteRun
from runner.core.shell import this_program
from runner.core.spec import Node, Spec, are_local
from runner.ui.console.console import Console, open_console
from runner.ui.layout import fold_names
from runner.ui.reports.run_table import describe_run
from runner.verbs.shared.host_pool import HostPool, open_host_pool


class RunFinder:
    """The hosts of a cluster that answer."""

    def __init__(
        self,
        pool: HostPool,
        selector: str,
        *,
        reuse_sessions: bool = False,
    ) -> None:
        self.pool, self.console = pool, pool.console
        self._selector = selector  # by which any verb finds these hosts
        self.unreadable_runs: dict[str, int] = {}  # how many runs of other users, by node
        self.clock_offsets: dict[str, float] = {}  # the time on each host when it answered
        self._notes_shown: set[str] = set()
        spec = pool.spec
        self._nodes = {node.name: node for node in spec.nodes}
        self._show_status: Callable[[str, str], None] = self.console.node_status
        self._request = lambda node: FactsRequest(
            node=node.name, workdir=spec.cluster.workdir, skip_launch_facts=True
        )
        self.facts, self.unreachable = pool.collect_available_facts(
            self._request, reuse_sessions=reuse_sessions
        )
        if not self.facts:
            raise NotReady(list(self.unreachable.values()))

    def runs(self, run_id: str = "") -> list[RemoteRun]:
        """Return the runs on these hosts, the oldest first: all, or one."""
        request = {"run_id": run_id, "others": list(self._nodes)}
        answers, problems = self.broadcast().collect("runs", request, "runs")
        self.unreachable.update(problems)
        ordered = [name for name in self._nodes if name in answers]
        for name in ordered:
            self.unreadable_runs[name] = answers[name]["unreadable"]
            self.clock_offsets[name] = answers[name]["now"]
        hosts = {name: node.host for name, node in self._nodes.items()}
        runs, notes = merge_statuses({name: answers[name] for name in ordered}, hosts)
        for note in notes:
            if note not in self._notes_shown:
                self._notes_shown.add(note)
                self.console.message(note)
        return runs

    def find(self, run_id: str, *, prefer_active: bool = False) -> RemoteRun:
        """Return a run by its id, for "" this user's latest of this machine; else raise NotReady.

        Another's run is never guessed: hosts may have one login for all of their users. One of
        another folder is named, but with `prefer_active`: who ends a run names it anyway.
        """
        matches = self.runs(run_id)
        if not run_id:
            matches = [run for run in matches if run.info.launched_by == user_at_host()]
            if prefer_active:
                matches = [run for run in matches if run.is_active] or matches
        if matches:
            folder = "" if run_id or prefer_active else run_index.other_folder(matches[-1].info)
            if folder:
                latest = describe_run(matches[-1].info, folder)
                self.console.message(f"note: your latest run there is {latest}")
            self._call_nodes_as_recorded(matches[-1])
            return matches[-1]
        raise NotReady([self._run_not_found(run_id)])

    def _call_nodes_as_recorded(self, run: RemoteRun) -> None:
        """Give the hosts of a run the names that they have in it; they may have others by now."""
        if all(node == asked for node, asked in run.asked.items()):
            return
        # What is called like a node of the run, and is another machine, takes no part.
        taken = {*run.asked, *run.asked.values()}
        new_names = {name: name for name in self._nodes if name not in taken}
        new_names.update({asked: node for node, asked in run.asked.items()})
        nodes = {name: self._nodes[asked] for name, asked in run.asked.items()}
        nodes.update({name: self._nodes[name] for name in self._nodes if name not in taken})
        self._nodes = {name: replace(node, name=name) for name, node in nodes.items()}
        sessions, self.pool.sessions = self.pool.sessions, {}
        for name, session in sessions.items():
            if name not in new_names:
                session.close()
                continue
            session.node = self._nodes[new_names[name]]
            self.pool.sessions[new_names[name]] = session
        self.pool.retarget(replace(self.pool.spec, nodes=self.cluster_nodes))
        if not run.asked.keys() <= self.pool.sessions.keys():  # several of them are one machine
            self.reconnect_all()

    def load_record(self, run: RemoteRun, *, per_host: bool = False) -> HostRecord:
        """Return the record of a run on which its hosts agree; see `agreed_record`.

        Raises:
            NotReady: They do not, or none can be read.
        """
        request = {"run_id": run.run_id}
        answers, problems = self.broadcast({*run.by_host}).collect("run", request, "run")
        records: dict[str, HostRecord] = {}
        for name, reply in answers.items():
            try:
                own_pattern = self.pool.spec.progress.pattern
                records[name] = parse_record(reply["payload"], run.run_id, own_pattern)
            except ValueError as error:
                message = f"its record of {run.run_id} is damaged: {error}"
                problems[name] = Problem(name, message)
        if not records:
            raise NotReady([*problems.values()] or [self._run_not_found(run.run_id)])
        record = agreed_record(records, per_host=per_host)
        self._check_hosts(run, record.plan)
        return record

    def _check_hosts(self, run: RemoteRun, plan: Plan) -> None:
        """Raise NotReady if one host speaks for nodes that the plan has on several."""
        recorded = {share.node: share.host for share in plan.nodes}
        on_record, problems = {*recorded.values()}, []
        for asked in {asked for node, asked in run.asked.items() if asked != node}:
            claimed = [node for node, name in run.asked.items() if name == asked]
            nodes = [self._nodes[node] for node in claimed if node in self._nodes]
            known = {recorded[node] for node in claimed if node in recorded}
            hosts = known | ({node.host for node in nodes} & on_record)
            if len(hosts) > 1 and not are_local(nodes):
                message = f"it says that it is {', '.join(claimed)} of {run.run_id}, on whose "
                message += f"record these are {', '.join(sorted(known))}"
                hint = (
                    f"name its hosts as it does, or leave this one out: cluster.exclude=[{asked}]"
                )
                problems.append(Problem(asked, message, hint))
        if problems:
            raise NotReady(problems)

    def retarget_to_run(self, plan: Plan) -> Spec:
        """Work with the nodes of a run from now on, with the limits it was started with."""
        spec, order, known = self.pool.spec, plan.nodes[0].order, self._nodes
        by_host = {node.host: node for node in known.values()}
        nodes = []
        for share in plan.nodes:
            node = known.get(share.node) or by_host.get(share.host)
            user, port = share.user or None, share.port or None
            node = node or Node(share.node, share.host, user=user, port=port)
            nodes.append(replace(node, name=share.node))
        run_spec = replace(
            spec,
            run_id=plan.run_id,
            cluster=replace(spec.cluster, name=plan.cluster),
            nodes=tuple(nodes),
            grace_s=order.grace_s,
            lost_s=order.hub.lost_s if order.hub else spec.lost_s,
            disconnect_s=order.disconnect_s,
        )
        self.pool.retarget(run_spec)
        return run_spec

    @property
    def cluster_nodes(self) -> tuple[Node, ...]:
        """All nodes of the cluster, those of the run or not."""
        return tuple(self._nodes.values())

    def reconnect_all(self) -> None:
        """Try to reach all hosts of the cluster again."""
        self.pool.retarget(replace(self.pool.spec, nodes=self.cluster_nodes))
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
        subject = f"no run {run_id}" if run_id else f"no run of {user_at_host()}"
        message = f"{subject} on the hosts of {spec.cluster.name}, in {spec.cluster.workdir}"
        if self.unreachable:
            message += f"; not asked: {fold_names(self.unreachable)}"
        hint = f"{this_program()} ps --all {self._selector}".rstrip()
        if run_id:
            names = [*run_index.records().values(), *(run.run_id for run in self.runs())]
            near = [name for name in names if name.startswith(run_id)]
            near += difflib.get_close_matches(run_id, names, n=1)
            hint = f"did you mean {near[0]}?\n{hint}" if near else hint
        return Problem("--run", message, hint)


@contextlib.contextmanager
def open_run_finder(
    composed: LaunchRequest, verb: str, *, plain: bool = False
) -> Iterator[RunFinder]:
    """Connect to the hosts of a cluster for one verb; at the end all is closed, the console too.

    The verb's name appears in `ps` on the hosts. With `plain` the console shows no states.
    If no host answers, that is `NotReady`.
    """
    if plain:
        console = Console(reader_gone_note=b"", raw=composed.spec.ui == "raw")
    else:
        names = [node.name for node in composed.spec.nodes]
        console = open_console(composed.spec.ui, composed.spec.console_ranks, names)
    with open_host_pool(replace(composed.spec, run_id=verb), console) as pool:
        yield RunFinder(pool, composed.selector)
