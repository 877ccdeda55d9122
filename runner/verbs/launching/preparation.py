"""Preparation of an attempt: facts, checks and code of its nodes, and the plan; the preflight."""

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
    is_launch = not request.spec.dry_run
    files: Sequence[str] = request.file_notes
    code: Sequence[str] = source.notes
    if is_launch:
        files = unsaid(f"files of {request.spec.cluster.name}", files)
    if is_launch and not request.recorded_code:
        code = unsaid("code", code)
    return [*request.notes, *_unused_ranks(request), *files, *code]


def _unused_ranks(request: LaunchRequest) -> list[str]:
    """Return that a number of ranks was typed for a task that has one process on each node."""
    typed = [word for word in request.overrides if word.startswith("cluster.nproc_per_node=")]
    count = request.spec.cluster.nproc_per_node or 1
    if not (typed and request.spec.task.is_plain and count > 1):
        return []
    text = "task.entry=plain starts one process on each node"
    return [f"{typed[-1]} is not used: {text}; task.entry=torchrun starts {count} ranks"]


def without_pulls(request: LaunchRequest) -> LaunchRequest:
    """Return the request whose image no host pulls: for a look at the hosts."""
    container = replace(request.spec.container, fetches=False)
    return replace(request, spec=replace(request.spec, container=container))


class Preparation:
    """What a launch does before each attempt; where it cannot go on, it raises `NotReady`."""

    def __init__(
        self, request: LaunchRequest, source: CodeSource, pool: HostPool, *, again: bool = False
    ) -> None:
        """With `again`, hosts may have an earlier attempt of the run."""
        self._again = again
        self._spares = pool.spec.spares if pool.spec.relaunch.max else ()
        self._request = request
        self._source = source
        self._pool = pool
        self._candidates = pool.spec

    def collect_facts(self) -> dict[str, Facts]:
        """Ask every host, show what the user should know, and run the checks of a launch."""
        say = self._pool.console.message
        for note in launch_notes(self._request, self._source):
            say(f"note: {note}")
        facts, missing, standby, spare_problems = self._pool.collect_facts(
            self.facts_request,
            lambda node, node_facts: problems_of(self._pool.spec, node, node_facts),
            self._pool.spec.min_nodes or 0,
            self._spares,
        )
        for name, problem in missing.items():
            say(f"{name} is left out for now, and tried again: {problem.message}")
        for problem in spare_problems:
            say(f"note: a spare node cannot be used as it is: {problem}")
        self._select_nodes(facts)
        if not (self._request.spec.dry_run or self._request.spec.slurm):
            self._say_other_runs()
        for warning in self._run_checks(facts):
            say(f"warning: {warning}")
        return {**facts, **standby}

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
        request = facts_request(self._pool.spec, node, self._source.code)
        return replace(request, run_id="") if self._again else request

    def plan(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, as the hosts are now."""
        spec, code = self._pool.spec, self._source.code
        return build_plan(spec, facts, code=code, attempt=attempt, fold_names=fold_names)

    def push_and_plan(self, facts: dict[str, Facts], attempt: int = 0) -> Plan:
        """Return the plan, once every host has the code."""
        snapshot = self._source.snapshot_if_needed(facts)
        pushed = {name: replace(each, has_release=True) for name, each in facts.items()}
        plan = self.plan(pushed, attempt)
        if snapshot:
            self._pool.push(snapshot, facts)
        return plan

    def check_code(self, facts: dict[str, Facts]) -> None:
        """Check that every host has the code, or can have it: that of a past run may be gone."""
        self._source.snapshot_if_needed(facts)

    def problems(self, facts: dict[str, Facts]) -> list[Problem]:
        """Return what keeps nodes from a later attempt, by the rules of a launch."""
        spec = self._pool.spec
        answering = [node for node in spec.nodes if node.name in facts]
        problems = [p for node in answering for p in problems_of(spec, node, facts[node.name])]
        try:
            self._run_checks(facts)
        except NotReady as error:
            problems += error.problems
        return list(dict.fromkeys(problems))

    def _run_checks(self, facts: dict[str, Facts]) -> list[str]:
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
        if not self._pool.spec.min_nodes:
            return None
        assigned = {node.name for node in (*self._pool.spec.nodes, *self._pool.spec.spares)}
        others = [node for node in self._candidates.nodes if node.name not in assigned]
        vacancies = (self._pool.spec.max_nodes or 0) - len(self._pool.spec.nodes)
        nodes = (*self._pool.spec.nodes, *others[:vacancies])  # its master first
        self._candidates = replace(self._pool.spec, nodes=nodes)

        def admit(node_facts: Facts) -> tuple[Plan, bytes]:
            spec = self._pool.spec
            node_facts = replace(node_facts, run_exists=False)
            all_facts = {**facts, node_facts.node: node_facts}
            try:
                self._select_nodes(all_facts)
                self._run_checks({node_facts.node: node_facts})
                plan = self.plan(all_facts, attempt)
            except NotReady:
                self._pool.retarget(spec)
                raise
            facts.update(all_facts)
            return plan, on_admitted(plan)

        return AdmissionHooks(
            spec=self._candidates,
            request=self.facts_request,
            validate=lambda node, node_facts: problems_of(
                self._candidates, node, replace(node_facts, run_exists=False)
            ),
            snapshot_if_needed=self._source.snapshot_if_needed,
            admit=admit,
        )
