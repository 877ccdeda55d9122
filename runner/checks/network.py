"""Checks of the network of a run: the rendezvous, addresses, interfaces and ports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.base import CheckContext, check, ok, warning
from runner.core.errors import NotReady
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import choose_endpoints, duplicate_addresses, peer_endpoints
from runner.core.planning.readiness import problems_of, store_risk, without_removed_env
from runner.core.results import Finding
from runner.core.wire.text import join_some

MAX_USERS = 5


@check(60, at_launch=True)
def rendezvous(context: CheckContext) -> Iterator[Finding]:
    """Report what torch on a host lacks for it; warn of others who may reach the store."""
    risk = store_risk(context.spec)
    for node, facts in context.ready:
        yield from context.unmet("rendezvous", node)
        if risk and facts.other_users:
            message = (
                f"others have processes here ({join_some(facts.other_users, MAX_USERS)}), and "
                f"whoever reaches the store that the nodes meet at can {risk}; "
                "rendezvous=static has no such store"
            )
            hint = "choose rendezvous=static, or hosts that only people you trust can use"
            yield warning(node.name, message, hint)


@check(100)
def network(context: CheckContext) -> Iterator[Finding]:
    """Report an error where the hosts that answered have no usable address or port."""
    if not context.ready:
        return
    spec = replace(context.spec, nodes=tuple(node for node, _ in context.ready))
    facts = {node.name: without_removed_env(spec, node, facts) for node, facts in context.ready}
    unmet = {node.name: context.unmet("network", node) for node in spec.nodes}
    for findings in unmet.values():
        yield from findings
    try:
        chosen = choose_endpoints(spec, facts)
        if problems := duplicate_addresses(spec, facts):
            raise NotReady(problems)
        if not any(problems_of(spec, node, facts[node.name]) for node in spec.nodes):
            build_plan(spec, facts)  # it refuses a backend, too
    except NotReady as refusal:  # what is wrong with one host alone is for other checks
        yield from map(Finding.from_problem, refusal.problems)
        return
    for name, endpoint in peer_endpoints(context.spec, spec.nodes, facts).items():
        subnet = f" in {endpoint.subnet}" if endpoint.subnet else ""
        via = f" via {endpoint.interface}{subnet}" if endpoint.interface else ""
        message = f"meets at {chosen.addr} ({chosen.reason}){via}"
        if not unmet[name]:
            yield ok(name, message if len(spec.nodes) > 1 else "single node")
