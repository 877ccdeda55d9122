"""Check of the rendezvous: etcd, torch's client for it, and options of torchrun."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.base import CheckContext, check, error, ok
from runner.core.model.facts import Facts, Interpreter
from runner.core.model.finding import Finding
from runner.core.model.spec import Node
from runner.core.planning.readiness import CLIENT_PACKAGE

INSTALL_HINT = "install it there: {python} -m pip install python-etcd"
NO_V2_HINT = (
    "start it with --enable-v2 (etcd 3.4 and 3.5 have that; 3.6 has no v2 API), or choose "
    "rendezvous=c10d"
)
ENDPOINT_HINT = (
    "rendezvous.endpoint has to be the HOST:PORT of an etcd's client URL that every node reaches"
)


@check(60, at_launch=True)
def rendezvous(context: CheckContext) -> Iterator[Finding]:
    """Report an error for each requirement that is missing."""
    for node, facts in context.ready:
        findings = [
            *context.unmet("rendezvous", node),
            *_client_findings(context, node, facts.python),
            *_endpoint_findings(context, node, facts),
        ]
        yield from findings
        if not findings and context.spec.rendezvous.uses_etcd:
            yield ok(node.name, _etcd_text(facts))


def _client_findings(context: CheckContext, node: Node, python: Interpreter) -> Iterator[Finding]:
    distribution, module = CLIENT_PACKAGE
    if not context.spec.rendezvous.uses_etcd or python.error or python.packages is None:
        return
    if distribution not in python.packages and module not in python.substitutes:
        message = f"no {distribution} in {python.executable}: torch needs it to use etcd"
        yield error(node.name, message, INSTALL_HINT.format(python=python.executable))


def _endpoint_findings(context: CheckContext, node: Node, facts: Facts) -> Iterator[Finding]:
    answer, endpoint = facts.etcd.endpoint_reply, context.spec.rendezvous.endpoint
    if answer is None:
        return
    if answer.error:
        message = f"rendezvous.endpoint: {endpoint} cannot be used from this host: {answer.error}"
        yield error(node.name, message, ENDPOINT_HINT)
    elif not answer.has_v2:
        message = f"rendezvous.endpoint: the etcd {answer.version} at {endpoint} offers no v2 API"
        yield error(node.name, message, NO_V2_HINT)


def _etcd_text(facts: Facts) -> str:
    if facts.etcd.endpoint_reply is not None:
        return f"etcd {facts.etcd.endpoint_reply.version} answers"
    if facts.etcd.program:
        return f"can run etcd {facts.etcd.version}".strip()
    return "torch can use etcd"
