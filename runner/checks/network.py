"""Checks of the training traffic's network: addresses, interfaces, ports, and name lookups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from ipaddress import ip_address, ip_interface

from runner.checks.base import CheckContext, check, error, most_common, ok, warning
from runner.core.errors import NotReady
from runner.core.model.facts import Endpoint, Facts
from runner.core.model.network_probe import NameResults, NetworkProbe
from runner.core.model.results import Finding, Level
from runner.core.model.spec import Spec
from runner.core.planning.build_plan import build_plan
from runner.core.planning.endpoints import (
    AttemptEndpoints,
    choose_endpoints,
    duplicate_addresses,
    peer_endpoints,
)
from runner.core.planning.readiness import problems_of, without_removed_env

SLOW_LOOKUP_S = 1.0
MAX_HOSTS_LINES = 4  # the number of lines for /etc/hosts to show


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


@check(120)
def names(context: CheckContext) -> Iterator[Finding]:
    """Warn of lookups that stall a launch; report an error where the master's name misleads."""
    probe = context.network_probe
    if probe is None or not probe.lookups.addresses:
        return
    if not probe.targets:  # else `pairs` says so
        for name, reason in probe.missing_reasons.items():
            yield warning(name, f"answered before, but not about names: {reason}", "check again")
    results = {name: result.name_results for name, result in probe.by_node.items()}
    yield from _master_name_findings(context, probe, results)
    for name, result in results.items():
        if not result.queried:
            message = "its name lookups could not be timed: no process or thread could be started"
            yield warning(name, message, f"ulimit -u on {name}")
            continue
        stalls = list(_slow_lookups(name, result, probe))
        yield from stalls
        own = _own_name_finding(name, result, probe, context.facts[name])
        if own.level is not Level.OK or not stalls:
            yield own


def _slow_lookups(name: str, result: NameResults, probe: NetworkProbe) -> Iterator[Finding]:
    """Warn of slow lookups: torch's store does one per peer (socket.cpp, `getnameinfo`)."""
    limit_s = probe.lookups.timeout_s
    unanswered = [node for node in result.queried if result.seconds.get(node, limit_s) >= limit_s]
    slowest = max(result.seconds.values(), default=0.0)
    condition = "when it looks up the name of a node's address"
    if unanswered:
        message = f"no answer within {limit_s:g} s {condition}"
    elif slowest > SLOW_LOOKUP_S:
        message = f"it takes up to {slowest:.0f} s {condition}"
    else:
        return
    message += ": torch's store stalls a launch by as much for each node"
    lines = [f"{address} {node}" for node, address in probe.lookups.addresses.items()]
    if len(lines) > MAX_HOSTS_LINES:
        lines[MAX_HOSTS_LINES:] = [f"and so on, a line for each of the {len(lines)} nodes"]
    yield warning(name, message, "\n".join(["lines for /etc/hosts, on every node:", *lines]))


def _own_name_finding(name: str, result: NameResults, probe: NetworkProbe, facts: Facts) -> Finding:
    """Return a finding about the host's own name: gloo publishes the address it resolves to.

    It does not where GLOO_SOCKET_IFNAME is set, as the plan does if it knows the interface.
    """
    is_loopback = all(map(_is_loopback, result.own_addresses))
    has_interface = probe.endpoints[name].interface or "GLOO_SOCKET_IFNAME" in facts.preset_env
    if not is_loopback:
        return ok(name, "answered at once")
    if has_interface or not result.own_name_answered:
        message = "its own name resolves to no network address: harmless, the plan sets interfaces"
        return ok(name, message)
    addresses = _join_addresses(result.own_addresses)
    message = f"its own name, {facts.hostname}, resolves to {addresses}: gloo would publish that"
    return warning(name, message, f"set cluster.nodes.{name}.interface")


def _master_name_findings(
    context: CheckContext, probe: NetworkProbe, results: dict[str, NameResults]
) -> Iterator[Finding]:
    """Report an error where the master's name resolves to another machine."""
    host = probe.lookups.master_name
    if not host:
        return
    master = next(iter(probe.endpoints))  # of those that are ready
    key = f"cluster.nodes.{master}.addr"
    master_addresses = {
        ip_interface(text).ip
        for interface in context.facts[master].interfaces
        if not interface.loopback
        for text in interface.addresses
    }
    others = [result.master_addresses for name, result in results.items() if name != master]
    common = most_common(map(_join_addresses, filter(None, others)))
    hint = f"set {key} to an address, or give each node the same line for {host} in /etc/hosts"
    for name, result in results.items():
        if not result.queried:
            continue
        addresses = _join_addresses(result.master_addresses)
        where = f"{key}: {host} "
        if not result.master_addresses:
            why = result.master_error or f"no answer within {probe.lookups.timeout_s:g} s"
            yield error(name, f"{where}cannot be looked up there: {why}", hint)
        elif name == master or master_addresses & {*map(ip_address, result.master_addresses)}:
            continue
        elif any(map(_is_loopback, result.master_addresses)):
            message = f"{where}leads to {addresses} there, that is, to itself and not to {master}"
            yield error(name, message, hint)
        elif addresses != common:
            message = f"{where}leads to {addresses} there, and to {common} on most"
            yield error(name, message, hint)
        else:
            message = f"{where}leads to {common}, not an address of {master}: right only behind NAT"
            yield warning(name, message, hint)


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


def _join_addresses(addresses: Sequence[str]) -> str:
    return ", ".join(sorted(addresses)) or "nothing"
