"""Relaunch by the controller: decides whether another attempt follows, and prepares it."""

from __future__ import annotations

import signal
import time
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from runner.control.attempt.monitor import AttemptMonitor
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt
from runner.core.outcome.verdict import Verdict
from runner.core.planning.readiness import problems_of
from runner.core.protocol.timing import PING_S
from runner.core.relaunch.losses import Losses, classify_losses, may_relaunch, past_attempt
from runner.core.relaunch.next_attempt import next_spec
from runner.core.spec import Spec
from runner.core.text import counted
from runner.ui.layout import fold_names
from runner.ui.reports import report
from runner.verbs.launching.preparation import Preparation
from runner.verbs.shared.host_pool import HostPool

NOTICE_S = 10.0
"""Hosts expect a relaunch for so long after each announcement in the pause."""

PREPARE_S = 120.0
"""And for so long while the next attempt is prepared: facts, setups, code."""


class PlannedAttempt(NamedTuple):
    """The plan of the next attempt, and the facts behind it."""

    plan: Plan
    facts: dict[str, Facts]


class Relauncher:
    """The relaunches of one launch.

    A retry with another port, after the master's was taken, does not count as a relaunch.
    """

    def __init__(self, pool: HostPool, preparation: Preparation) -> None:
        self.past_attempts: tuple[PastAttempt, ...] = ()
        self._pool = pool
        self._say = pool.console.message
        self._preparation = preparation
        self._attempt_on_other_port = -1

    @property
    def relaunches_left(self) -> int:
        """How many attempts may follow this one."""
        return self._pool.spec.relaunch.max - len(self.past_attempts)

    def next_attempt(
        self, facts: dict[str, Facts], monitor: AttemptMonitor, verdict: Verdict
    ) -> PlannedAttempt | None:
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
        former_nodes = {*facts}  # which hold an earlier attempt
        for past in self.past_attempts:
            former_nodes.update(past.nodes)
        is_port_free = spec.rendezvous.uses_master_store and not spec.cluster.master_port.is_fixed
        was_retried = self._attempt_on_other_port == plan.attempt
        if monitor.port_retry_possible and is_port_free and not was_retried:
            self._say("retrying with another port")
            self._attempt_on_other_port = plan.attempt + 1
            return self._prepare(plan.attempt + 1, former_nodes)
        if not self.relaunches_left or not may_relaunch(spec, verdict):
            return None
        if peers.hosts_may_decide:
            self._say("not relaunching: most hosts are out of reach, and may do so themselves")
            return None
        losses = classify_losses(plan, monitor.timed_events)
        return self._relaunch(plan, past_attempt(plan, verdict), losses, former_nodes)

    def _relaunch(
        self,
        plan: Plan,
        failed: PastAttempt,
        losses: Losses,
        former_nodes: Collection[str],
    ) -> PlannedAttempt | None:
        """Wait for the pause after an attempt that failed, and find nodes for the next one."""
        spec = self._pool.spec
        new_spec = next_spec(spec, losses.excluded, losses.suspected)
        if new_spec is None:
            self._report_too_few(spec, losses.excluded)
            return None
        past_attempts = (*self.past_attempts, failed)
        pause_s = spec.relaunch.delay_s(len(past_attempts))
        number = plan.attempt + 2
        total = plan.attempt + 1 + self.relaunches_left
        self._pool.console.reset_lines()
        self._say(report.relaunch_notice(number, total, failed.reason, spec, new_spec, pause_s))
        self._pool.console.phase("waiting for the next attempt")
        upcoming = None
        try:
            self._wait(pause_s, plan.run_id)
            upcoming = self._choose_usable_nodes(plan.attempt + 1, former_nodes, losses)
        finally:
            if upcoming is None:
                self._announce(plan.run_id, 0.0)
        if upcoming is not None:
            self.past_attempts = past_attempts
        return upcoming

    def _wait(self, seconds: float, run_id: str) -> None:
        """Wait for the pause, of which the hosts are told."""
        end = time.monotonic() + seconds
        while (remaining_s := end - time.monotonic()) > 0:
            self._announce(run_id, NOTICE_S)
            self._raise_if_stop_requested(self._pool.poll_for_stop(min(PING_S, remaining_s)))
        self._announce(run_id, PREPARE_S)

    def _announce(self, run_id: str, seconds: float) -> None:
        """Have the hosts report a pending relaunch for this long."""
        for name, session in self._pool.sessions.items():
            request = {"run_id": run_id, "node": name, "for_s": seconds}
            session.request("mark_relaunch_pending", request)

    def _choose_usable_nodes(
        self, attempt: int, former_nodes: Collection[str], losses: Losses
    ) -> PlannedAttempt | None:
        """Return the attempt on nodes that can be used; None if there are too few."""
        spec = self._pool.spec
        excluded = {*losses.excluded}
        while new_spec := next_spec(spec, excluded, losses.suspected):
            self._pool.retarget(new_spec)
            try:
                return self._prepare(attempt, former_nodes)
            except NotReady as error:
                unusable: dict[str, Problem] = {}
                for problem in error.problems:
                    if any(node.name == problem.subject for node in new_spec.nodes):
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

    def _prepare(self, attempt: int, former_nodes: Collection[str]) -> PlannedAttempt:
        """Return the next attempt on the nodes of the pool.

        The subject of a problem is the node that cannot be used, if it is a single node's.
        """
        spec = self._pool.spec
        facts, unreachable = self._pool.collect_available_facts(self._preparation.facts_request)
        problems = [replace(each, subject=name) for name, each in unreachable.items()]
        for name in facts:
            self._raise_if_stop_requested(name if facts[name].run_stopped else "")
            if name in former_nodes:
                facts[name] = replace(facts[name], run_exists=False)
        for node in spec.nodes:
            if node.name in facts:
                problems += problems_of(spec, node, facts[node.name])
        if problems:
            raise NotReady(list(dict.fromkeys(problems)))
        self._preparation.run_checks(facts)
        return PlannedAttempt(self._preparation.push_and_plan(facts, attempt), facts)

    def _raise_if_stop_requested(self, node: str) -> None:
        """Raise `Interrupted` if a stop was requested on a node; "" is none."""
        if node:
            self._say(f"not relaunching: a stop was requested on {node}")
            raise Interrupted(128 + signal.SIGINT)

    def _report_too_few(self, spec: Spec, excluded: Collection[str]) -> None:
        if spec.task.decides in excluded:
            self._say(f"not relaunching: {spec.task.decides} decides the end, and cannot be used")
            return
        available = [n.name for n in (*spec.nodes, *spec.spares) if n.name not in excluded]
        needed = counted(spec.min_nodes or len(spec.nodes), "node")
        names = f" ({fold_names(available)})" if available else ""
        self._say(f"not relaunching: {needed} needed, {len(available)} available{names}")
