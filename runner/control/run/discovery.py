"""Discovery of runs on the hosts of a cluster, and the one that a verb is about."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from runner.control.record import run_index
from runner.control.run.hosts import HostPool, workdir_request
from runner.core.errors import NotReady, Problem, fold_names
from runner.core.remote_run import RemoteRun, describe_run, user_at_host
from runner.core.shell import this_program
from runner.core.spec import Node, Spec
from runner.core.wire.codec import decode, decompress, parse_json
from runner.core.wire.facts import Facts
from runner.core.wire.plan import NodePlan, Plan
from runner.core.wire.run_info import RunInfo

MAX_RECORD = 32 << 20
"""Bytes of a record: a plan has some 4 kB for a node, and lists take 25 times that once parsed."""


@dataclass(frozen=True)
class HostRecord:
    plan: Plan
    config_yaml: str
    info: RunInfo


def parse_record(payload: bytes, run_id: str, progress_pattern: str) -> HostRecord:
    """Return the record in a host's reply; raise ValueError unless all of it is of that run.

    Its pattern is one's own: one from a host could take for ever on a line.
    """
    try:
        reply = parse_json(decompress(payload, MAX_RECORD))
        plan, info = (parse_json(reply[name]) for name in ("plan", "info"))
        record = HostRecord(decode(Plan, plan), reply["config"], decode(RunInfo, info))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from None
    if not record.plan.nodes or not isinstance(record.config_yaml, str):
        raise ValueError("it has no nodes or no configuration")
    for part in record.plan.nodes:
        if {record.plan.run_id, part.order.run_id} != {run_id} or part.order.node != part.node:
            raise ValueError(f"its order for {part.node} is of another run or node")
    nodes = tuple(
        replace(part, order=replace(part.order, progress_pattern=progress_pattern))
        for part in record.plan.nodes
    )
    plan = replace(record.plan, nodes=nodes)
    return replace(record, plan=plan, info=replace(record.info, run_id=run_id))


def newest_record(records: Mapping[str, HostRecord]) -> HostRecord:
    """Return the record of the last attempt with the most nodes; what a host has of itself wins."""
    best = max(records.values(), key=lambda record: (record.plan.attempt, len(record.plan.nodes)))
    own: dict[str, NodePlan] = {}
    for name, record in records.items():
        if record.plan.attempt == best.plan.attempt:
            own.update({part.node: part for part in record.plan.nodes if part.node == name})
    nodes = tuple(own.get(part.node, part) for part in best.plan.nodes)
    return replace(best, plan=replace(best.plan, nodes=nodes))


class RunFinder:
    """The hosts of a cluster that answer; if none does, that is NotReady."""

    def __init__(self, pool: HostPool, selector: str) -> None:
        self.pool = pool
        self.console = pool.console
        self.facts: dict[str, Facts] = {}
        self.unreachable: dict[str, Problem] = {}
        self.hidden_runs: dict[str, int] = {}  # how many runs of other users, by node
        self._selector = selector  # by which any verb finds these hosts
        self._nodes = {node.name: node for node in pool.spec.nodes}
        self.reconnect_all()
        if not self.facts:
            raise NotReady(list(self.unreachable.values()))

    @property
    def cluster_nodes(self) -> tuple[Node, ...]:
        return tuple(self._nodes.values())

    def reconnect_all(self) -> None:
        self.pool.retarget(replace(self.pool.spec, nodes=self.cluster_nodes))
        spec = self.pool.spec
        self.facts, self.unreachable = self.pool.collect_available_facts(
            lambda node: workdir_request(spec, node)
        )

    def runs(self, run_id: str = "") -> list[RemoteRun]:
        """Return the runs on these hosts, the oldest first: all, or one."""
        runs, problems, self.hidden_runs = self.pool.runs(self.cluster_nodes, run_id)
        for name in self.hidden_runs:
            self.unreachable.pop(name, None)
        self.unreachable = {**problems, **self.unreachable}  # the first reason stays
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
        if not matches:
            raise NotReady([self._run_not_found(run_id)])
        found = matches[-1]
        folder = "" if run_id or prefer_active else run_index.other_folder(found.info)
        if folder:
            latest = describe_run(found.info, folder)
            self.console.message(f"note: your latest run there is {latest}")
        renamed = {name: s.node for name, s in found.by_host.items() if s.node != name}
        if not renamed or len({*renamed.values()}) < len(renamed):  # two cannot be one node
            return found
        # They have other names by now; what is asked about a run names its nodes.
        names = {name: renamed.get(name, name) for name in self._nodes}
        self._nodes = {new: replace(self._nodes[old], name=new) for old, new in names.items()}
        self.pool.close_sessions()
        self.reconnect_all()
        return (self.runs(found.run_id) or [found])[-1]

    def load_record(self, run: RemoteRun) -> HostRecord:
        """Return the record of a run, as its hosts have it; raise NotReady if none can be read."""
        request = {"run_id": run.run_id}
        answers, problems = self.pool.broadcast({*run.by_host}).collect("run", request, "run")
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
        return newest_record(records)

    def retarget_to_run(self, plan: Plan) -> Spec:
        """Work with the nodes of a run from now on, with the limits it was started with.

        Raise NotReady for a node unknown here: what a host says decides not whom we contact.
        """
        spec = self.pool.spec
        order = plan.nodes[0].order
        by_host = {node.host: node for node in self._nodes.values()}
        nodes = []
        unknown = []
        for share in plan.nodes:
            node = self._nodes.get(share.node) or by_host.get(share.host)
            if node is None:
                message = f"it is a node of {plan.run_id}, and not of {spec.cluster.name} here"
                hint = f"if it is: +cluster.nodes.{share.node}.host={share.host}"
                unknown.append(Problem(share.node, message, hint))
            else:
                nodes.append(replace(node, name=share.node))
        if unknown:
            raise NotReady(unknown)
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
