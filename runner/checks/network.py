"""Where the ranks would meet, and over which interfaces."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from runner.checks.case import Case
from runner.core.errors import NotReady
from runner.core.finding import Finding, Level
from runner.core.plan import build_plan
from runner.core.readiness import port_problems


def network(case: Case) -> Iterator[Finding]:
    """An error where no address or port can be had; of the hosts that answered."""
    nodes = tuple(node for node, _ in case.ready)
    if not nodes:
        return
    for node, facts in case.ready:
        yield from map(Finding.of, port_problems(case.spec, node, facts))
    try:
        plan = build_plan(replace(case.spec, nodes=nodes), {n.name: f for n, f in case.ready})
    except NotReady as error:
        yield from map(Finding.of, error.problems)
        return
    for share in plan.nodes:
        via = f" via {share.interface}" if share.interface else ""
        meets = f"meets at {plan.master_addr}{via}"
        yield Finding(Level.FINE, share.node, meets if len(plan.nodes) > 1 else "alone")
