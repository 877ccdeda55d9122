"""Whether another attempt follows one that failed, and all that it needs before it can start."""

from __future__ import annotations

import signal
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from runner.control.attempt.monitor import Watch
from runner.control.rpc.broadcast import Asking
from runner.core.errors import Interrupted, NotReady, Problem
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.past import Past
from runner.core.model.spec import Node, Spec
from runner.core.outcome.verdict import Verdict
from runner.core.planning.build_plan import Plan
from runner.core.relaunch import policy
from runner.ui.reports import report
from runner.workflows.host_pool import Contact

HOLD_S = 10.0

Following = tuple[Plan, dict[str, Facts]]
"""What the next attempt is, and the facts behind that."""


class Attempts:
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
        contact: Contact,
        request: Callable[[Node], FactsRequest],
        unfit: Callable[[dict[str, Facts]], list[Problem]],
        ready: Callable[[dict[str, Facts], int], Plan],
    ) -> None:
        self.past: tuple[Past, ...] = ()
        self._contact, self._say = contact, contact.console.say
        self._request, self._unfit, self._ready = request, unfit, ready
        self._ports = 0
        self._other_port = False

    def after(self, facts: dict[str, Facts], watch: Watch, verdict: Verdict) -> Following | None:
        """Return what follows an attempt; None where that was the last one.

        Raises:
            Interrupted: By a signal, in the pause before it.
        """
        if watch.interrupted or watch.accord.decides or watch.accord.onward:
            return None
        spec, plan = self._contact.spec, watch.plan
        if (
            watch.may_retry
            and spec.rendezvous.held
            and not spec.master_port.fixed
            and not self._other_port
        ):
            follows = self._with_another_port(plan, facts)
            if follows:
                return follows
        self._other_port = False
        if not spec.relaunch.max or not policy.curable(spec, verdict):
            return None
        if len(self.past) >= spec.relaunch.max:
            return None
        return self._relaunch(spec, watch, verdict, facts.keys())

    def _relaunch(
        self, spec: Spec, watch: Watch, verdict: Verdict, known: Collection[str]
    ) -> Following | None:
        """Find the nodes of the next attempt, after the pause; those `known` were there before."""
        plan = watch.plan
        lost = policy.casualties(plan, watch.observed)
        follows = policy.next_spec(spec, lost.gone, lost.suspect)
        if follows is None:
            self._too_few(spec, lost.gone)
            return None
        past = (*self.past, policy.past(plan, verdict))
        pause_s = policy.pause_s(spec, len(past))
        number = plan.attempt + 2
        of = spec.relaunch.max + 1 + self._ports
        self._contact.console.begin_again()
        self._say(report.again(number, of, past[-1].why, spec, follows, pause_s))
        self._contact.console.phase("waiting for the next attempt")
        found = None
        try:
            self._heed_stop([self._contact.pause(pause_s, plan.run_id)])
            known = {name for each in past for name in each.nodes} | {*known}
            found = self._on_the_fit(plan.attempt + 1, known, lost, spec)
        finally:
            if found is None:
                self._contact.announce(plan.run_id, 0.0)
        if found is not None:
            self.past = past
        return found

    def _on_the_fit(
        self, attempt: int, known: set[str], lost: policy.Casualties, spec: Spec
    ) -> Following | None:
        """Find nodes that can be used; `known` ones have a part of the run already."""
        gone = set(lost.gone)
        unfit: dict[str, Problem] = {}
        while follows := policy.next_spec(spec, gone, lost.suspect):
            self._contact.turn_to(follows)
            found, unfit = self._prepared(attempt, known)
            if found:
                return found
            for name, problem in unfit.items():
                self._say(f"{name} cannot be used: {problem.what}")
            gone |= unfit.keys()
            if not unfit:
                break
        self._contact.turn_to(spec)
        if unfit:
            self._too_few(spec, gone)
        return None

    def _prepared(
        self, attempt: int, were_there: set[str]
    ) -> tuple[Following | None, dict[str, Problem]]:
        """Return the next attempt on the nodes of the spec, or which of them cannot be used.

        Neither where it is no single node's fault; that was said then.

        Raises:
            Interrupted: By a signal, or by a stop from elsewhere in the pause.
        """
        facts, unfit = self._contact.gather_some(self._request, again=True)
        self._heed_stop([name for name, told in facts.items() if told.run_stopped])
        for name in were_there & facts.keys():  # of course it has been here
            facts[name] = replace(facts[name], run_there=False)
        general = []
        for problem in self._unfit(facts):
            if problem.where in facts:
                unfit.setdefault(problem.where, problem)
            else:
                general.append(problem)
        if unfit:
            return None, unfit
        try:
            if general:
                raise NotReady(general)
            return (self._ready(facts, attempt), facts), {}
        except NotReady as error:
            lacking = {problem.where: problem for problem in error.problems}
            unfit = {name: lacking[name] for name in lacking if name in facts}
            if not unfit:
                self._say(f"no attempt follows:\n{error}")
            return None, unfit

    def _heed_stop(self, nodes: Sequence[str]) -> None:
        """End it where somebody elsewhere wants no other attempt."""
        for name in filter(None, nodes):
            self._say(f"somebody told the run to stop on {name}: no attempt follows")
            raise Interrupted(128 + signal.SIGINT)

    def _too_few(self, spec: Spec, gone: Collection[str]) -> None:
        if spec.rendezvous.serve in gone:
            self._say(f"no attempt follows: {spec.rendezvous.serve} ran the etcd of the run")
            return
        there = [n.name for n in (*spec.nodes, *spec.spares) if n.name not in gone]
        self._say(report.too_few(there, spec.least or len(spec.nodes)))

    def _with_another_port(self, plan: Plan, facts: dict[str, Facts]) -> Following | None:
        """Have the master reserve other ports, the store's and the hub's; None when it cannot."""
        contact = self._contact
        master, rule = contact.spec.master.name, contact.spec.master_port
        many = len(contact.spec.nodes) > 1
        asking = Asking(
            *({master: contact.sessions[master]}, contact.inbox, contact.spec.lost_s),
            contact.console.state,
        )
        what = {"first": rule.first, "last": rule.last, "hub": many}
        told = asking.some("hold", what, "held", HOLD_S)[0].get(master, {})
        if not told.get("port"):
            return None
        self._say("trying once more with another port")
        self._other_port = True
        self._ports += 1
        held, hub = int(told["port"]), int(told["hub_port"])
        facts = {**facts, master: replace(facts[master], held_port=held, hub_port=hub)}
        # The ports by which the hosts would start it again went with the attempt that held them.
        facts = {name: replace(told, vote_port=0) for name, told in facts.items()}
        return self._ready(facts, plan.attempt + 1), facts
