"""Relaunch by the controller: decides whether another attempt follows, and prepares it."""

from __future__ import annotations

import signal
from collections.abc import Collection
from dataclasses import replace
from typing import NamedTuple

from runner.control.attempt.monitor import AttemptMonitor
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.facts import Facts
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt
from runner.core.outcome.verdict import Verdict
from runner.core.relaunch.losses import Losses, classify_losses, may_relaunch, past_attempt
from runner.core.relaunch.next_attempt import next_spec
from runner.core.spec import Spec
from runner.core.text import counted
from runner.ui.layout import fold_names
from runner.ui.reports import report
from runner.verbs.launching.preparation import Preparation
from runner.verbs.shared.host_pool import HostPool

RESERVE_TIMEOUT_S = 10.0


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
        self._pool, self._say, self._preparation = pool, pool.console.message, preparation
        self._port_retries = 0
        self._port_just_retried = False

    def next_attempt(
        self, facts: dict[str, Facts], monitor: AttemptMonitor, verdict: Verdict
    ) -> PlannedAttempt | None:
        """Return the attempt after one that failed; None if none follows."""
        peers = monitor.peer_status
        if monitor.interrupted or peers.hosts_decide or peers.next_attempt_number:
            return None
        spec = self._pool.spec
        port_is_free_choice = (
            spec.rendezvous.uses_master_store and not spec.cluster.master_port.is_fixed
        )
        may_retry = monitor.port_retry_possible and port_is_free_choice
        if may_retry and not self._port_just_retried:
            upcoming = self._retry_with_other_port(monitor.plan, facts)
            if upcoming:
                return upcoming
        self._port_just_retried = False
        if len(self.past_attempts) >= spec.relaunch.max or not may_relaunch(spec, verdict):
            return None
        if peers.hosts_may_decide:
            self._say("not relaunching: most hosts are out of reach, and may do so themselves")
            return None
        return self._relaunch(spec, monitor, verdict, facts.keys())

    def _relaunch(
        self, spec: Spec, monitor: AttemptMonitor, verdict: Verdict, former_nodes: Collection[str]
    ) -> PlannedAttempt | None:
        """Wait for the pause, and find nodes; `former_nodes` took part in the last attempt."""
        plan = monitor.plan
        losses = classify_losses(plan, monitor.timed_events)
        new_spec = next_spec(spec, losses.excluded, losses.suspected)
        if new_spec is None:
            self._report_too_few(spec, losses.excluded)
            return None
        past_attempts = (*self.past_attempts, past_attempt(plan, verdict))
        pause_s = spec.relaunch.delay_s(len(past_attempts))
        number = plan.attempt + 2
        total = spec.relaunch.max + 1 + self._port_retries
        self._pool.console.reset_lines()
        reason = past_attempts[-1].reason
        self._say(report.relaunch_notice(number, total, reason, spec, new_spec, pause_s))
        self._pool.console.phase("waiting for the next attempt")
        upcoming = None
        try:
            self._raise_if_stop_requested(self._pool.wait_before_relaunch(pause_s, plan.run_id))
            former = {name for attempt in past_attempts for name in attempt.nodes}
            former.update(former_nodes)
            upcoming = self._choose_usable_nodes(plan.attempt + 1, former, losses, spec)
        finally:
            if upcoming is None:
                self._pool.announce_relaunch(plan.run_id, 0.0)
        if upcoming is not None:
            self.past_attempts = past_attempts
        return upcoming

    def _choose_usable_nodes(
        self, attempt: int, former_nodes: set[str], losses: Losses, spec: Spec
    ) -> PlannedAttempt | None:
        """Return the attempt on usable nodes; `former_nodes` took part in earlier ones."""
        excluded = set(losses.excluded)
        unusable: dict[str, Problem] = {}
        while new_spec := next_spec(spec, excluded, losses.suspected):
            self._pool.retarget(new_spec)
            upcoming, unusable = self._prepare(attempt, former_nodes)
            if upcoming:
                return upcoming
            for name, problem in unusable.items():
                self._say(f"{name} cannot be used: {problem.message}")
            excluded |= unusable.keys()
            if not unusable:
                break
        self._pool.retarget(spec)
        if unusable:
            self._report_too_few(spec, excluded)
        return None

    def _prepare(
        self, attempt: int, former_nodes: set[str]
    ) -> tuple[PlannedAttempt | None, dict[str, Problem]]:
        """Return the next attempt on the nodes of the spec, or the problems of those not usable.

        Both are empty if the fault is no single node's; it has been reported then.
        """
        facts, unusable = self._pool.collect_available_facts(
            self._preparation.facts_request, reuse_sessions=True
        )
        self._raise_if_stop_requested(*(name for name in facts if facts[name].run_stopped))
        for name in former_nodes & facts.keys():  # they hold an earlier attempt
            facts[name] = replace(facts[name], run_exists=False)
        general = []
        for problem in self._preparation.problems(facts):
            if problem.subject in facts:
                unusable.setdefault(problem.subject, problem)
            else:
                general.append(problem)
        if unusable:
            return None, unusable
        try:
            if general:
                raise NotReady(general)
            return PlannedAttempt(self._preparation.push_and_plan(facts, attempt), facts), {}
        except NotReady as error:
            unusable = {each.subject: each for each in error.problems if each.subject in facts}
            if not unusable:
                self._say(f"not relaunching:\n{error}")
            return None, unusable

    def _raise_if_stop_requested(self, *nodes: str) -> None:
        """Raise `Interrupted` if a stop was requested on one of the nodes; "" is none."""
        for name in filter(None, nodes):
            self._say(f"not relaunching: a stop was requested on {name}")
            raise Interrupted(128 + signal.SIGINT)

    def _report_too_few(self, spec: Spec, excluded: Collection[str]) -> None:
        if spec.task.decides in excluded:
            self._say(f"not relaunching: {spec.task.decides} decides the end, and cannot be used")
            return
        available = [n.name for n in (*spec.nodes, *spec.spares) if n.name not in excluded]
        needed = counted(spec.min_nodes or len(spec.nodes), "node")
        names = f" ({fold_names(available)})" if available else ""
        self._say(f"not relaunching: {needed} needed, {len(available)} available{names}")

    def _retry_with_other_port(self, plan: Plan, facts: dict[str, Facts]) -> PlannedAttempt | None:
        """Return an attempt with other ports of store and hub; None if the master has no others."""
        pool = self._pool
        master, port_rule = pool.spec.master.name, pool.spec.cluster.master_port
        broadcast = pool.broadcast({master})
        is_multi_node = len(pool.spec.nodes) > 1
        request = {"first": port_rule.first, "last": port_rule.last, "hub": is_multi_node}
        limit_s = RESERVE_TIMEOUT_S
        replies, _ = broadcast.collect("reserve_ports", request, "ports_reserved", limit_s)
        reply = replies.get(master, {})
        if not reply.get("port"):
            return None
        self._say("retrying with another port")
        self._port_just_retried = True
        self._port_retries += 1
        store_port, hub_port = reply["port"], reply["hub_port"]
        # The ports of the voters went with the attempt that held them.
        facts = {name: replace(old, vote_port=0) for name, old in facts.items()}
        facts[master] = replace(facts[master], reserved_port=store_port, hub_port=hub_port)
        return PlannedAttempt(self._preparation.push_and_plan(facts, plan.attempt + 1), facts)
