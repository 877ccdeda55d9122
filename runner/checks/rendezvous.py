"""Check of the rendezvous: etcd, torch's client for it, and options of torchrun."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, ok, warning
from runner.core.model.facts import Facts
from runner.core.model.results import Finding
from runner.core.model.spec import Node
from runner.core.planning.readiness import CLIENT_PACKAGE, store_risk
from runner.core.text import join_some

NO_V2_HINT = (
    "start it with --enable-v2 (etcd 3.4 and 3.5 have that; 3.6 has no v2 API), or choose "
    "rendezvous=c10d"
)
ENDPOINT_HINT = (
    "rendezvous.endpoint has to be the HOST:PORT of an etcd's client URL that every node reaches"
)

STORE_HINT = "choose rendezvous=static, or hosts that only people you trust can use"
MAX_USERS = 5


@check(60, at_launch=True)
def rendezvous(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each requirement that is missing."""
    for node, facts in context.ready:
        findings = [*context.unmet("rendezvous", node), *_etcd_findings(context, node, facts)]
        yield from findings
        risk, users = store_risk(context.spec), join_some(facts.other_users, MAX_USERS)
        if risk and users:
            message = (
                f"others have processes here ({users}), and whoever reaches the store that the "
                f"nodes meet at can {risk}; rendezvous=static has no such store"
            )
            yield warning(node.name, message, STORE_HINT)
        if findings or not context.spec.rendezvous.uses_etcd:
            continue
        etcd = facts.etcd
        if etcd.endpoint_reply is not None:
            yield ok(node.name, f"etcd {etcd.endpoint_reply.version} answers")
        elif etcd.program:
            yield ok(node.name, f"can run etcd {etcd.version}".strip())
        else:
            yield ok(node.name, "torch can use etcd")


def _etcd_findings(context: CheckContext, node: Node, facts: Facts) -> Iterator[Finding]:
    python, (distribution, module) = facts.python, CLIENT_PACKAGE
    is_known = context.spec.rendezvous.uses_etcd and not python.error
    has_none = python.packages is not None and not {distribution, module} & python.packages.keys()
    if is_known and has_none:
        message = f"no {distribution} in {python.executable}: torch needs it to use etcd"
        hint = f"install it there: {python.executable} -m pip install {distribution}"
        yield error(node.name, message, hint)
    answer, endpoint = facts.etcd.endpoint_reply, context.spec.rendezvous.endpoint
    if answer and answer.error:
        message = f"rendezvous.endpoint: {endpoint} cannot be used from this host: {answer.error}"
        yield error(node.name, message, ENDPOINT_HINT)
    elif answer and not answer.has_v2:
        message = f"rendezvous.endpoint: the etcd {answer.version} at {endpoint} offers no v2 API"
        yield error(node.name, message, NO_V2_HINT)
