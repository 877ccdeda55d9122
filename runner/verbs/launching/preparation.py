"""Preparation of an attempt: facts, checks and code of its nodes, and the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from runner.checks.base import CheckContext, evaluate_checks
from runner.control.attempt.admission import AdmissionHooks
from runner.control.code.snapshot import Snapshot
from runner.control.code.source import CodeOnHosts, CodeSource, RerunCode
from runner.control.record.host_record import merge_statuses
from runner.control.record.said_notes import unsaid
from runner.core.errors import NotReady, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Plan
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import facts_request, problems_of
from runner.core.shell import this_program
from runner.core.spec import Node
from runner.ui.layout import fold_names
from runner.ui.problems import find_errors, warning_lines
from runner.ui.reports.run_table import describe_run
from runner.verbs.shared.host_pool import HostPool

OTHER_RUNS_TIMEOUT_S = 2.0
"""How long a launch waits for the runs of its hosts, of which it only makes a note."""


def open_code_source(request: LaunchRequest) -> CodeSource:
    """Return the code source of a run; a snapshot is hashed in the background.

    Raises:
        ConfigError: The project cannot be pushed, or the code of the past run is gone.
    """
    if request.recorded_code:
        return RerunCode(request.recorded_code, request.spec, Path.cwd(), request.run_dir)
    if request.spec.pushes_code:
        return Snapshot.take(request.spec, Path.cwd(), request.run_dir)
    return CodeOnHosts(request.spec)


def launch_notes(request: LaunchRequest, source: CodeSource) -> list[str]:
    """Return what the user should know before a launch; before a dry run, also what was said."""
    spec = request.spec
    notes = [*request.notes]
    typed = [word for word in request.overrides if word.startswith("cluster.nproc_per_node=")]
    ranks = spec.cluster.nproc_per_node or 1
    if typed and spec.task.is_plain and ranks > 1:
        text = "task.entry=plain starts one process on each node"
        notes.append(f"{typed[-1]} is not used: {text}; task.entry=torchrun starts {ranks} ranks")
    files: Sequence[str] = request.file_notes
    code: Sequence[str] = source.notes
    if not spec.dry_run:
        files = unsaid(f"files of {spec.cluster.name}", files)
        code = code if request.recorded_code else unsaid("code", code)
    return [*notes, *files, *code]


def without_pulls(request: LaunchRequest) -> LaunchRequest:
    """Return the request whose image no host pulls: for a look at the hosts."""
    container = replace(request.spec.container, fetches=False)
    return replace(request, spec=replace(request.spec, container=container))


class Preparation:
    """What a launch does before each attempt; where it cannot go on, it raises `NotReady`."""

    def __init__(self, request: LaunchRequest, source: CodeSource, pool: HostPool) -> None:
        self._request = request
        self._source = source
        self._pool = pool
        self._candidates = pool.spec  # with every node that may take part

    def collect_facts(self) -> dict[str, Facts]:
        """Ask every host, show what the user should know, and run the checks of a launch."""
        say = self._pool.console.message
        for note in launch_notes(self._request, self._source):
            say(f"note: {note}")
        collected = self._pool.collect_facts(
            self.facts_request,
            lambda node, node_facts: problems_of(self._pool.spec, node, node_facts),
            self._pool.spec.min_nodes or 0,
            self._pool.spec.spares,
        )
        for name, problem in collected.missing.items():
            say(f"{name} is left out for now, and tried again: {problem.message}")
        for problem in collected.spare_problems:
            say(f"note: a spare node cannot be used as it is: {problem}")
        self._select_nodes(collected.facts)
        if not self._request.spec.dry_run:
            self._say_other_runs()
        for warning in self.run_checks(collected.facts):
            say(f"warning: {warning}")
        return {**collected.facts, **collected.spares}

    def _say_other_runs(self) -> None:
        """Name the runs that are on the same hosts, as far as these answer in time."""
        spec = self._pool.spec
        hosts = {node.name: node.host for node in spec.nodes}
        broadcast = self._pool.broadcast(hosts, show=lambda *_: None)
        request = {"others": [*hosts]}
        answers, _ = broadcast.collect("runs", request, "runs", OTHER_RUNS_TIMEOUT_S)
        runs, _ = merge_statuses(answers, hosts)
        others = [run for run in runs if run.is_active and run.run_id != spec.run_id]
        if not others:
            return
        who = f"{describe_run(others[-1].info)}, is on {fold_names(others[-1].by_host)}, too"
        how = f"stop {self._request.run_flags(others[-1].run_id)}"
        if others[1:]:
            who += f", and {len(others) - 1} more"
            how = f"ps {self._request.selector}".rstrip()
        self._pool.console.message(f"note: {who}: {this_program()} {how}")

    def facts_request(self, node: Node) -> FactsRequest:
        """Return what to ask a node."""
        return facts_request(self._pool.spec, node, self._source.code)

    def plan(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, as the hosts are now."""
        spec = self._pool.spec
        code = self._source.code
        return build_plan(spec, facts, code=code, attempt=attempt, fold_names=fold_names)

    def push_and_plan(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, once every host has the code."""
        snapshot = self._source.snapshot_if_needed(facts)
        pushed = {name: replace(each, has_release=True) for name, each in facts.items()}
        plan = self.plan(pushed, attempt)
        if snapshot:
            self._pool.push(snapshot, facts)
        return plan

    def run_checks(self, facts: dict[str, Facts]) -> list[str]:
        """Return the warnings of the checks of a launch; raise their errors."""
        context = CheckContext(self._pool.spec, facts)
        findings = evaluate_checks(context, self._pool.spec.skip_checks, at_launch=True)
        if problems := [finding.as_problem for finding in find_errors(findings)]:
            raise NotReady(problems)
        return warning_lines(findings)

    def _select_nodes(self, facts: dict[str, Facts]) -> None:
        """Have the run use those of the candidates that have facts."""
        nodes = tuple(node for node in self._candidates.nodes if node.name in facts)
        self._pool.retarget(replace(self._pool.spec, nodes=nodes))

    def admission_hooks(
        self, facts: dict[str, Facts], attempt: int, on_admitted: Callable[[Plan], bytes]
    ) -> AdmissionHooks | None:
        """Return how nodes join a running attempt; None if its nodes are fixed.

        The facts of a node that joins are added to `facts`. `on_admitted` takes the plan with a new
        node, and returns the record for that node, packed.
        """
        spec = self._pool.spec
        if not spec.min_nodes:
            return None
        assigned = {node.name for node in (*spec.nodes, *spec.spares)}
        others = [node for node in self._candidates.nodes if node.name not in assigned]
        vacancies = (spec.max_nodes or 0) - len(spec.nodes)
        self._candidates = replace(spec, nodes=(*spec.nodes, *others[:vacancies]))

        def problems(node: Node, node_facts: Facts) -> list[Problem]:
            return problems_of(self._candidates, node, replace(node_facts, run_exists=False))

        def admit(node_facts: Facts) -> tuple[Plan, bytes]:
            before = self._pool.spec
            name = node_facts.node
            all_facts = {**facts, name: replace(node_facts, run_exists=False)}
            try:
                self._select_nodes(all_facts)
                self.run_checks({name: all_facts[name]})
                plan = self.plan(all_facts, attempt)
            except NotReady:
                self._pool.retarget(before)
                raise
            facts.update(all_facts)
            return plan, on_admitted(plan)

        return AdmissionHooks(
            spec=self._candidates,
            request=self.facts_request,
            validate=problems,
            snapshot_if_needed=self._source.snapshot_if_needed,
            admit=admit,
        )
