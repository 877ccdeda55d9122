"""Checks of the training traffic's network: addresses, interfaces and ports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.base import CheckContext, check, most_common, ok, warning
from runner.core.errors import NotReady
from runner.core.model.facts import Endpoint, Facts
from runner.core.model.results import Finding
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import (
    AttemptEndpoints,
    choose_endpoints,
    duplicate_addresses,
    peer_endpoints,
)
from runner.core.planning.readiness import problems_of, without_removed_env
from runner.core.spec import Spec


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
        chosen = _choose_endpoints(spec, facts)
    except NotReady as refusal:
        yield from map(Finding.from_problem, refusal.problems)
        return
    node_endpoints = peer_endpoints(context.spec, spec.nodes, facts)
    for name, endpoint in node_endpoints.items():
        subnet = f" in {endpoint.subnet}" if endpoint.subnet else ""
        via = f" via {endpoint.interface}{subnet}" if endpoint.interface else ""
        message = f"meets at {chosen.addr} ({chosen.reason}){via}"
        if not unmet[name]:
            yield ok(name, message if len(spec.nodes) > 1 else "single node")
    yield from _mtu_findings(node_endpoints, facts)


def _choose_endpoints(spec: Spec, facts: Mapping[str, Facts]) -> AttemptEndpoints:
    """Return where the ranks meet.

    Raises:
        NotReady: With the problems that are not those of one host, which other checks report.
    """
    chosen = choose_endpoints(spec, facts)
    if problems := duplicate_addresses(spec, facts):
        raise NotReady(problems)
    if not any(problems_of(spec, node, facts[node.name]) for node in spec.nodes):
        build_plan(spec, facts)  # it refuses a backend, too
    return chosen


def _mtu_findings(
    node_endpoints: Mapping[str, Endpoint], facts: Mapping[str, Facts]
) -> Iterator[Finding]:
    mtus = {
        name: str(interface.mtu)
        for name, endpoint in node_endpoints.items()
        for interface in facts[name].interfaces
        if interface.name == endpoint.interface and interface.mtu and not interface.loopback
    }
    common = most_common(mtus.values())
    for name, mtu in mtus.items():
        if mtu != common:
            device = node_endpoints[name].interface
            message = f"{device} has MTU {mtu}, most have {common}: large packets may be lost"
            hint = f"there: ip link set dev {device} mtu {common}"
            yield warning(name, message, hint)
