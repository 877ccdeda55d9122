"""Check of the rendezvous: options of torchrun, and who else may reach the store."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, warning
from runner.core.model.results import Finding
from runner.core.planning.readiness import store_risk
from runner.core.text import join_some

STORE_HINT = "choose rendezvous=static, or hosts that only people you trust can use"
MAX_USERS = 5


@check(60, at_launch=True)
def rendezvous(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each requirement that is missing."""
    for node, facts in context.ready:
        yield from context.unmet("rendezvous", node)
        risk, users = store_risk(context.spec), join_some(facts.other_users, MAX_USERS)
        if risk and users:
            message = (
                f"others have processes here ({users}), and whoever reaches the store that the "
                f"nodes meet at can {risk}; rendezvous=static has no such store"
            )
            yield warning(node.name, message, STORE_HINT)
