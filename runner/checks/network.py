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
    there = {name for name, facts in case.there if facts.setup.code == 0}
    nodes = tuple(node for node in case.spec.nodes if node.name in there)
    if not nodes:
        return
    if case.spec.master.name in there:
        problems = port_problems(case.spec, case.spec.master, case.facts[case.spec.master.name])
        yield from map(Finding.of, problems)
    try:
        plan = build_plan(replace(case.spec, nodes=nodes), {n: case.facts[n] for n in there})
    except NotReady as error:
        yield from map(Finding.of, error.problems)
        return
    for share in plan.nodes:
        via = f" via {share.interface}" if share.interface else ""
        meets = f"meets at {plan.master_addr}{via}"
        yield Finding(Level.FINE, share.node, meets if len(plan.nodes) > 1 else "alone")
