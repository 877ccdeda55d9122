"""Where the ranks would meet, and over which interfaces."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from runner.checks.context import Case, majority
from runner.core.errors import NotReady
from runner.core.model.facts import Facts
from runner.core.model.finding import Finding, Level
from runner.core.planning.addresses import Endpoint, endpoints
from runner.core.planning.build_plan import build_plan
from runner.core.planning.readiness import port_problems, problems_of


def network(case: Case) -> Iterator[Finding]:
    """An error where no address or port can be had; of the hosts that answered."""
    nodes = case.ready_nodes
    if not nodes:
        return
    ports = [p for node, facts in case.ready for p in port_problems(case.spec, node, facts)]
    known = {node.name: facts for node, facts in case.ready}
    try:
        plan = build_plan(replace(case.spec, nodes=nodes), known)
    except NotReady as error:
        others = [p for node, facts in case.ready for p in problems_of(case.spec, node, facts)]
        ours = [p for p in error.problems if p in ports or p not in others]  # theirs say the rest
        yield from map(Finding.of, ours)
        return
    if len(nodes) == 1:
        yield Finding(Level.FINE, nodes[0].name, "alone")
        return
    ends = endpoints(case.spec, nodes, known)
    for name, end in ends.items():
        of = f" in {end.subnet}" if end.subnet else ""
        via = f" via {end.interface}{of}" if end.interface else ""
        yield Finding(Level.FINE, name, f"meets at {plan.master_addr} ({plan.meeting}){via}")
    yield from _doubles(ends, known)
    yield from _mtus(ends, known)


def _doubles(ends: Mapping[str, Endpoint], facts: Mapping[str, Facts]) -> Iterator[Finding]:
    """Name machines with the address of another: bridges such as docker0 are alike everywhere."""
    first: dict[str, str] = {}
    for name, end in ends.items():
        other = first.setdefault(end.address, name)
        if not end.address or _machine(facts[name]) == _machine(facts[other]):
            continue
        what = f"{end.address} ({end.interface}) is the address of {other}, too"
        hint = (
            f"cluster.nodes.{other}.addr is to be one that it alone has; or set "
            f"cluster.nodes.{name}.interface"
        )
        yield Finding(Level.ERROR, name, what, hint)


def _machine(facts: Facts) -> tuple[object, ...]:
    """Return what only one machine has: several nodes may be the same one."""
    return facts.hostname, facts.interfaces


def _mtus(ends: Mapping[str, Endpoint], facts: Mapping[str, Facts]) -> Iterator[Finding]:
    found = {
        name: str(each.mtu)
        for name, end in ends.items()
        for each in facts[name].interfaces
        if each.name == end.interface and each.mtu and not each.loopback
    }
    common = majority(found)
    for name, mtu in found.items():
        if mtu != common:
            end = ends[name]
            what = f"{end.interface} has MTU {mtu}, most have {common}: large packets may get lost"
            hint = f"ip link set dev {end.interface} mtu {common}, there, or the same everywhere"
            yield Finding(Level.WARNING, name, what, hint)
