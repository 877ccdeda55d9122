"""Check of the debugged rank: debugpy in its interpreter, and a free port for it."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, ok, used_gpus
from runner.core.model.facts import Facts
from runner.core.model.plan import DebugRank
from runner.core.model.results import Finding
from runner.core.model.spec import Node
from runner.core.planning.debug_rank import no_such_rank
from runner.core.planning.readiness import DEBUGGER


@check(65, at_launch=True)
def debug(context: CheckContext) -> Iterator[Finding]:
    """Report what keeps `debug.rank` from being debugged on its node."""
    debugged, spec = context.spec.debug, context.spec
    if debugged is None:
        return
    first, is_found = 0, False
    for node, facts in context.ready:
        count = 1 if spec.task.is_plain else node.nproc or len(used_gpus(node, facts)) or 1
        if spec.rendezvous.torch_assigns_ranks or first <= debugged.rank < first + count:
            findings = [*_findings(debugged, node, facts)]
            yield from findings or [ok(node.name, f"debugpy is there, port {debugged.port} free")]
            is_found = True
        first += count
    if not is_found and len(context.ready) == len(spec.nodes):
        yield Finding.from_problem(no_such_rank(debugged, first))


def _findings(debugged: DebugRank, node: Node, facts: Facts) -> Iterator[Finding]:
    python = facts.python
    is_known = python.packages is not None and not python.error
    if is_known and DEBUGGER not in {**(python.packages or {}), **python.substitutes}:
        message = (
            f"debug.rank: no debugpy in {python.executable}, which starts rank {debugged.rank}"
        )
        yield error(
            node.name, message, f"install it there: {python.executable} -m pip install debugpy"
        )
    if facts.debug_port_error:
        message = f"debug.port: port {debugged.port} {facts.debug_port_error} on this host"
        yield error(node.name, message, "set debug.port to one that is free there")
