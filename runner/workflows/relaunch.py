"""Whether another attempt follows one that failed, and all that it needs before it can start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import AttemptMonitor
from runner.control.rpc.broadcast import Broadcast
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Plan
from runner.core.model.run_info import PastAttempt
from runner.core.model.spec import Node, Spec
from runner.core.outcome.verdict import Verdict
from runner.core.relaunch import policy
from runner.ui.reports import report
from runner.workflows.host_pool import HostPool

RESERVE_TIMEOUT_S = 10.0

NextAttempt = tuple[Plan, dict[str, Facts]]
"""What the next attempt is, and the facts behind that."""


class Relauncher:
    """The attempts of one launch.

    A port that was taken before the start costs an attempt, but is no relaunch.

    Args:
        contact: The hosts.
        request: Returns what to ask a node.
        unfit: Returns what keeps some of the nodes that answered from taking part.
        ready: Brings the code to where it is needed, and returns the plan of an attempt.
    """

    def __init__(
        self,
        pool: HostPool,
        request: Callable[[Node], FactsRequest],
        validate: Callable[[dict[str, Facts]], list[Problem]],
        push_and_plan: Callable[[dict[str, Facts], int], Plan],
    ) -> None:
        self.past_attempts: tuple[PastAttempt, ...] = ()
        self._pool, self._say = pool, pool.console.message
        self._request, self._validate, self._push_and_plan = request, validate, push_and_plan
        self._port_retries = 0
        self._port_just_retried = False

    def next_attempt(
        self, facts: dict[str, Facts], monitor: AttemptMonitor, verdict: Verdict
    ) -> NextAttempt | None:
        """Return what follows an attempt; None where that was the last one.

        Raises:
            Interrupted: By a signal, in the pause before it.
        """
        if (
            monitor.interrupted
            or monitor.peer_status.hosts_decide
            or monitor.peer_status.next_attempt_number
        ):
            return None
        spec, plan = self._pool.spec, monitor.plan
        if (
            monitor.port_retry_possible
            and spec.rendezvous.uses_master_store
            and not spec.master_port.is_fixed
            and not self._port_just_retried
        ):
            upcoming = self._retry_with_other_port(plan, facts)
            if upcoming:
                return upcoming
        self._port_just_retried = False
        if not spec.relaunch.max or not policy.may_relaunch(spec, verdict):
            return None
        if len(self.past_attempts) >= spec.relaunch.max:
            return None
        return self._relaunch(spec, monitor, verdict, facts.keys())

    def _relaunch(
        self, spec: Spec, monitor: AttemptMonitor, verdict: Verdict, former_nodes: Collection[str]
    ) -> NextAttempt | None:
        """Find the nodes of the next attempt, after the pause; those `former_nodes` were there before."""
        plan = monitor.plan
        losses = policy.classify_losses(plan, monitor.timed_events)
        new_spec = policy.next_spec(spec, losses.excluded, losses.suspected)
        if new_spec is None:
            self._report_too_few(spec, losses.excluded)
            return None
        past_attempts = (*self.past_attempts, policy.past_attempt(plan, verdict))
        pause_s = policy.relaunch_delay_s(spec, len(past_attempts))
        number = plan.attempt + 2
        total = spec.relaunch.max + 1 + self._port_retries
        self._pool.console.reset_lines()
        self._say(
            report.relaunch_notice(number, total, past_attempts[-1].reason, spec, new_spec, pause_s)
        )
        self._pool.console.phase("waiting for the next attempt")
        upcoming = None
        try:
            self._raise_if_stop_requested([self._pool.wait_before_relaunch(pause_s, plan.run_id)])
            former_nodes = {name for attempt in past_attempts for name in attempt.nodes} | {
                *former_nodes
            }
            upcoming = self._choose_usable_nodes(plan.attempt + 1, former_nodes, losses, spec)
        finally:
            if upcoming is None:
                self._pool.announce_relaunch(plan.run_id, 0.0)
        if upcoming is not None:
            self.past_attempts = past_attempts
        return upcoming

    def _choose_usable_nodes(
        self, attempt: int, former_nodes: set[str], losses: policy.Losses, spec: Spec
    ) -> NextAttempt | None:
        """Find nodes that can be used; `former_nodes` ones have a part of the run already."""
        excluded = set(losses.excluded)
        unusable: dict[str, Problem] = {}
        while new_spec := policy.next_spec(spec, excluded, losses.suspected):
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
    ) -> tuple[NextAttempt | None, dict[str, Problem]]:
        """Return the next attempt on the nodes of the spec, or which of them cannot be used.

        Neither where it is no single node's fault; that was said then.

        Raises:
            Interrupted: By a signal, or by a stop from elsewhere in the pause.
        """
        facts, unusable = self._pool.collect_available_facts(self._request, reuse_sessions=True)
        self._raise_if_stop_requested(
            [name for name, node_facts in facts.items() if node_facts.run_stopped]
        )
        for name in former_nodes & facts.keys():  # of course it has been here
            facts[name] = replace(facts[name], run_exists=False)
        general = []
        for problem in self._validate(facts):
            if problem.subject in facts:
                unusable.setdefault(problem.subject, problem)
            else:
                general.append(problem)
        if unusable:
            return None, unusable
        try:
            if general:
                raise NotReady(general)
            return (self._push_and_plan(facts, attempt), facts), {}
        except NotReady as error:
            problem_of_node = {problem.subject: problem for problem in error.problems}
            unusable = {name: problem_of_node[name] for name in problem_of_node if name in facts}
            if not unusable:
                self._say(f"no attempt follows:\n{error}")
            return None, unusable

    def _raise_if_stop_requested(self, nodes: Sequence[str]) -> None:
        """End it where somebody elsewhere wants no other attempt."""
        for name in filter(None, nodes):
            self._say(f"somebody told the run to stop on {name}: no attempt follows")
            raise Interrupted(128 + signal.SIGINT)

    def _report_too_few(self, spec: Spec, excluded: Collection[str]) -> None:
        if spec.rendezvous.serve in excluded:
            self._say(f"no attempt follows: {spec.rendezvous.serve} ran the etcd of the run")
            return
        available = [n.name for n in (*spec.nodes, *spec.spares) if n.name not in excluded]
        self._say(report.too_few_nodes(available, spec.min_nodes or len(spec.nodes)))

    def _retry_with_other_port(self, plan: Plan, facts: dict[str, Facts]) -> NextAttempt | None:
        """Have the master reserve other ports, the store's and the hub's; None when it cannot."""
        pool = self._pool
        master, port_rule = pool.spec.master.name, pool.spec.master_port
        is_multi_node = len(pool.spec.nodes) > 1
        broadcast = Broadcast(
            *({master: pool.sessions[master]}, pool.inbox, pool.spec.lost_s),
            pool.console.node_status,
        )
        request = {"first": port_rule.first, "last": port_rule.last, "hub": is_multi_node}
        reply = broadcast.collect("reserve_ports", request, "ports_reserved", RESERVE_TIMEOUT_S)[
            0
        ].get(master, {})
        if not reply.get("port"):
            return None
        self._say("trying once more with another port")
        self._port_just_retried = True
        self._port_retries += 1
        store_port, hub_port = int(reply["port"]), int(reply["hub_port"])
        facts = {
            **facts,
            master: replace(facts[master], reserved_port=store_port, hub_port=hub_port),
        }
        # The ports by which the hosts would start it again went with the attempt that held them.
        facts = {name: replace(reply, vote_port=0) for name, reply in facts.items()}
        return self._push_and_plan(facts, plan.attempt + 1), facts
