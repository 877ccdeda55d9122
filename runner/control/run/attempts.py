"""Attempts of a launch: the nodes, facts, code and plan of the first one and of those after it."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.code.pool import Release
from runner.control.code.source import CodeSource, code_of
from runner.control.record.said_notes import unsaid
from runner.control.run.hosts import HostPool
from runner.control.run.preparation import Preparation
from runner.core.errors import SIGNAL_EXIT_BASE, Interrupted, NotReady, Problem, fold_names
from runner.core.launch_request import LaunchRequest
from runner.core.outcome.losses import (
    Losses,
    classify_losses,
    may_relaunch,
    next_spec,
    past_attempt,
)
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import facts_request, problems_of
from runner.core.spec import Node, Spec
from runner.core.wire.facts import Facts, FactsRequest
from runner.core.wire.plan import Plan
from runner.core.wire.run_info import PastAttempt
from runner.core.wire.text import counted
from runner.core.wire.timing import PING_S

NOTICE_S = 10.0  # hosts expect a relaunch for so long after each announcement in the pause
PREPARE_S = 120.0  # and for so long while the next attempt is prepared: facts, setups, code

RESUMES = re.compile(r"-{0,2}(resume|load|restore|init|ckpt|checkpoint)([-_.]?\w+)*(=(?!/).*)?\Z")
"""An argument by which a program goes on where an earlier run ended."""


def launch_notes(request: LaunchRequest, source: CodeSource) -> list[str]:
    """Return what the user should know before a launch; before a dry run, also what was said."""
    spec = request.spec
    files: Sequence[str] = request.file_notes
    code: Sequence[str] = source.notes
    resumed = next(filter(RESUMES.match, spec.task.words), "")
    is_copy = spec.pushes_code or spec.task.shipped_file
    if resumed and is_copy and not spec.task.keep:
        text = "each run has a fresh copy of the code, without what earlier runs wrote there"
        code = [
            *code,
            f"{resumed.partition('=')[0]}: {text}; task.keep=[checkpoints] keeps such a folder",
        ]
    if not spec.dry_run:
        files = unsaid(f"files of {spec.cluster.name}", files)
        code = code if request.recorded_code else unsaid("code", code)
    return [*request.notes, *files, *code]


def without_pulls(request: LaunchRequest) -> LaunchRequest:
    """Return the request whose image no host pulls: for a look at the hosts."""
    container = replace(request.spec.container, fetches=False)
    return replace(request, spec=replace(request.spec, container=container))


@dataclass(frozen=True)
class PlannedAttempt:
    plan: Plan
    facts: dict[str, Facts]


class Attempts:
    """What a launch does before each attempt; where it cannot go on, it raises `NotReady`."""

    def __init__(
        self,
        request: LaunchRequest,
        source: CodeSource,
        pool: HostPool,
        check: Callable[[Spec, Mapping[str, Facts]], list[str]],
        starts: tuple[PastAttempt, ...] = (),
    ) -> None:
        """`check` returns warnings, or raises; `starts` are the attempts of its job's past."""
        self.past = starts  # and those that a relaunch followed
        self._starts = starts
        self._request = request
        self._source = source
        self._pool = pool
        self._check = check
        self._say = pool.console.message
        self._preparation = Preparation(request.spec, source)
        self._former_nodes = {name for past in starts for name in past.nodes}  # of any attempt
        self._said: Sequence[str] = ()  # the warnings of the checks

    @property
    def relaunches_left(self) -> int:
        return self._pool.spec.relaunch.max - len(self.past) + len(self._starts)

    def plan(self) -> Plan:
        """Return the plan of the first attempt; nothing is changed on hosts."""
        facts = self._collect_facts()
        self._release_to_push(facts)  # the code of a past run may be gone
        return self._build_plan(facts)

    def first(self) -> PlannedAttempt:
        number = self._starts[-1].attempt + 1 if self._starts else 0
        return self._push_and_plan(self._collect_facts(), number)

    def next(self, monitor: AttemptMonitor, verdict: Verdict) -> PlannedAttempt | None:
        """Return the attempt after one that ended; None if none follows.

        Raises:
            NotReady: It cannot be prepared, which is no single node's fault.
            Interrupted: A signal came, or a stop was requested on a host.
        """
        peers = monitor.peer_status
        is_left = monitor.detached or monitor.interrupted
        if is_left or peers.hosts_decide or peers.next_attempt_number:
            return None
        spec = self._pool.spec
        plan = monitor.plan
        if not self.relaunches_left or not may_relaunch(spec, verdict):
            return None
        if peers.hosts_may_decide:
            hub = plan.nodes[0].node
            self._say(
                f"not relaunching: {hub} and others are out of reach, and may do so themselves"
            )
            return None
        losses = classify_losses(plan, monitor.timed_events, verdict.first_failure)
        return self._relaunch(plan, past_attempt(plan, verdict), losses)

    def _collect_facts(self) -> dict[str, Facts]:
        """Ask every host, show what the user should know, and run the checks of a launch."""
        for note in launch_notes(self._request, self._source):
            self._say(f"note: {note}")
        spec = self._pool.spec
        facts, problems = self._ask(spec.spares)
        nodes = tuple(node for node in spec.nodes if node.name not in problems)
        if len(nodes) < (spec.min_nodes or len(spec.nodes)) or spec.master not in nodes:
            refused = [each for node in spec.nodes for each in problems.get(node.name, [])]
            raise NotReady(list(dict.fromkeys(refused)))  # one of ours is found at every node
        for node in spec.nodes:
            for problem in problems.get(node.name, [])[:1]:
                self._say(f"{node.name} is left out: {problem.message}")
        for node in spec.spares:
            self._pool.console.node_status(node.name, "spare")
            for problem in problems.get(node.name, []):
                self._say(f"note: a spare node cannot be used as it is: {problem}")
        self._pool.retarget(replace(spec, nodes=nodes))
        self._pool.disconnect_all_but(facts)
        self._say_warnings(facts)
        return facts

    def _ask(
        self, spares: Sequence[Node] = ()
    ) -> tuple[dict[str, Facts], dict[str, list[Problem]]]:
        """Return the facts of the nodes that can take part, and the problems of the others."""
        spec = self._pool.spec
        facts, unreachable = self._pool.collect_available_facts(self.facts_request, spares)
        problems = {name: [problem] for name, problem in unreachable.items()}
        for node in (*spec.nodes, *spares):
            name = node.name
            if name not in facts:
                continue
            if name in self._former_nodes:
                if facts[name].run_stopped:
                    self._refuse_stopped(name)
                facts[name] = replace(facts[name], run_exists=False)
            if found := problems_of(spec, node, facts[name]):
                problems[name] = found
                del facts[name]
        return facts, problems

    def facts_request(self, node: Node) -> FactsRequest:
        request = facts_request(self._pool.spec, node, code_of(self._request, self._source))
        request = replace(request, prepare=self._preparation.request(node))
        return replace(request, run_id="") if self._starts else request  # it may be there

    def _build_plan(self, facts: dict[str, Facts], number: int = 0) -> Plan:
        return build_plan(
            self._pool.spec,
            facts,
            code=code_of(self._request, self._source),
            attempt=number,
            relaunches_left=self.relaunches_left,
        )

    def _release_to_push(self, facts: Mapping[str, Facts]) -> Release | None:
        """Return what hosts lack of the code; raise NotReady if it is not here either."""
        lacking = sorted(name for name, each in facts.items() if not each.has_release)
        return self._source.release(lacking) if lacking else None

    def _push_and_plan(self, facts: dict[str, Facts], number: int) -> PlannedAttempt:
        release = self._release_to_push(facts)
        pushed = {name: replace(each, has_release=True) for name, each in facts.items()}
        plan = self._build_plan(pushed, number)
        if release:
            self._pool.push(release, facts)
        if self._preparation.run(self._pool, facts):  # perhaps with another interpreter
            spares = [node for node in self._pool.spec.spares if node.name in facts]
            facts, problems = self._ask(spares)
            _raise_problems(problems)
            self._say_warnings(facts)
            plan = self._build_plan(facts, number)
        self._former_nodes.update(facts)
        return PlannedAttempt(plan, facts)

    def _say_warnings(self, facts: Mapping[str, Facts]) -> None:
        """Run the checks of a launch, again where environments were made; say what is new."""
        nodes = self._pool.spec.nodes
        found = self._check(self._pool.spec, {node.name: facts[node.name] for node in nodes})
        for warning in found:
            if warning not in self._said:
                self._say(f"warning: {warning}")
        self._said = found

    def _relaunch(self, plan: Plan, failed: PastAttempt, losses: Losses) -> PlannedAttempt | None:
        """Wait for the pause after an attempt that failed, and find nodes for the next one."""
        spec = self._pool.spec
        new_spec = next_spec(spec, losses.excluded, losses.suspected)
        if new_spec is None:
            self._report_too_few(spec, losses.excluded)
            return None
        attempt = f"attempt {plan.attempt + 2} of {plan.attempt + 1 + self.relaunches_left}"
        past_before = self.past
        self.past = (*past_before, failed)
        pause_s = spec.relaunch.delay_s(len(self.past))
        self._pool.console.reset_lines()
        nodes = self._on_nodes(spec, new_spec)
        self._say(f"{attempt}: {failed.reason.text}; {nodes}; starting in {pause_s:g} s")
        self._pool.console.phase("waiting for the next attempt")
        upcoming = None
        try:
            self._wait(pause_s, plan.run_id)
            upcoming = self._choose_usable_nodes(plan.attempt + 1, losses)
        finally:
            if upcoming is None:
                self.past = past_before
                self._announce(plan.run_id, 0.0)
        return upcoming

    def _on_nodes(self, before: Spec, after: Spec) -> str:
        removed = [node.name for node in before.nodes if node not in after.nodes]
        added = [node.name for node in after.nodes if node not in before.nodes]
        names = fold_names(removed)
        if added:
            verb = "takes" if len(added) == 1 else "take"
            return f"{fold_names(added)} {verb} the place of {names}"
        return f"without {names}" if removed else "on the same nodes"

    def _wait(self, seconds: float, run_id: str) -> None:
        """Wait for the pause, of which the hosts are told."""
        end = time.monotonic() + seconds
        while (remaining_s := end - time.monotonic()) > 0:
            self._announce(run_id, NOTICE_S)
            if stopped_on := self._pool.poll_for_stop(min(PING_S, remaining_s)):
                self._refuse_stopped(stopped_on)
        self._announce(run_id, PREPARE_S)

    def _announce(self, run_id: str, seconds: float) -> None:
        """Have the hosts report a pending relaunch for this long."""
        for name, session in self._pool.sessions.items():
            request = {"run_id": run_id, "node": name, "for_s": seconds}
            session.request("mark_relaunch_pending", request)

    def _choose_usable_nodes(self, number: int, losses: Losses) -> PlannedAttempt | None:
        """Return the attempt on nodes that can be used; None if there are too few."""
        spec = self._pool.spec
        excluded = {*losses.excluded}
        while new_spec := next_spec(spec, excluded, losses.suspected):
            self._pool.retarget(new_spec)
            try:
                return self._prepare(number)
            except NotReady as error:
                names = {node.name for node in new_spec.nodes}
                unusable: dict[str, Problem] = {}
                for problem in error.problems:
                    if problem.subject in names:
                        unusable.setdefault(problem.subject, problem)
                if not unusable:
                    self._pool.retarget(spec)
                    raise
            for name, problem in unusable.items():
                self._say(f"{name} cannot be used: {problem.message}")
            excluded.update(unusable)
        self._pool.retarget(spec)
        self._report_too_few(spec, excluded)
        return None

    def _prepare(self, number: int) -> PlannedAttempt:
        """Return the next attempt on the nodes of the pool.

        The subject of a problem is the node that cannot be used, if it is a single node's.
        """
        facts, problems = self._ask()
        _raise_problems(problems)
        self._check(self._pool.spec, facts)
        return self._push_and_plan(facts, number)

    def _refuse_stopped(self, node: str) -> NoReturn:
        self._say(f"not relaunching: a stop was requested on {node}")
        raise Interrupted(SIGNAL_EXIT_BASE + signal.SIGINT)

    def _report_too_few(self, spec: Spec, excluded: Collection[str]) -> None:
        if spec.task.decides in excluded:
            self._say(f"not relaunching: {spec.task.decides} decides the end, and cannot be used")
            return
        available = [n.name for n in (*spec.nodes, *spec.spares) if n.name not in excluded]
        needed = counted(spec.min_nodes or len(spec.nodes), "node")
        names = f" ({fold_names(available)})" if available else ""
        self._say(f"not relaunching: {needed} needed, {len(available)} available{names}")


def _raise_problems(problems: Mapping[str, Sequence[Problem]]) -> None:
    if problems:
        raise NotReady([replace(each[0], subject=name) for name, each in problems.items()])
