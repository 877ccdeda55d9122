"""Whether the nodes can meet as they are to: etcd, what torch speaks to it with, and torchrun."""

from __future__ import annotations

from collections.abc import Iterator

from runner.checks.context import Case
from runner.core.model.facts import Facts, Python
from runner.core.model.finding import Finding, Level
from runner.core.model.spec import Node
from runner.core.planning.etcd import CLIENT
from runner.core.planning.readiness import service_problems, torchrun_problems

INSTALL = "install it there: {python} -m pip install python-etcd"
WITH_V2 = (
    "start it with --enable-v2 (etcd 3.4 and 3.5 have that; 3.6 has no v2 API), or choose "
    "rendezvous=c10d"
)
REACH = (
    "rendezvous.endpoint has to be the HOST:PORT of an etcd's client URL that every node reaches"
)


def rendezvous(case: Case) -> Iterator[Finding]:
    """An error for each of them that is missing; nothing to say where torch needs no more."""
    for node, facts in case.ready:
        found = [
            *map(Finding.of, service_problems(case.spec, node, facts)),
            *map(Finding.of, torchrun_problems(case.spec, node, facts)),
            *_client(case, node, facts.python),
            *_endpoint(case, node, facts),
        ]
        yield from found
        if not found and case.spec.rendezvous.etcd:
            yield Finding(Level.FINE, node.name, _met(facts))


def _client(case: Case, node: Node, python: Python) -> Iterator[Finding]:
    distribution, module = CLIENT
    if not case.spec.rendezvous.etcd or python.error or python.packages is None:
        return
    if distribution not in python.packages and module not in python.similar:
        what = f"no {distribution} in {python.executable}: torch cannot speak to an etcd without it"
        yield Finding(Level.ERROR, node.name, what, INSTALL.format(python=python.executable))


def _endpoint(case: Case, node: Node, facts: Facts) -> Iterator[Finding]:
    answer, endpoint = facts.etcd.answer, case.spec.rendezvous.endpoint
    if answer is None:
        return
    if answer.error:
        what = f"rendezvous.endpoint: {endpoint} cannot be used from here: {answer.error}"
        yield Finding(Level.ERROR, node.name, what, REACH)
    elif not answer.v2:
        what = f"rendezvous.endpoint: the etcd {answer.version} at {endpoint} offers no v2 API"
        yield Finding(Level.ERROR, node.name, what, WITH_V2)


def _met(facts: Facts) -> str:
    if facts.etcd.answer is not None:
        return f"etcd {facts.etcd.answer.version} answers"
    if facts.etcd.program:
        return f"can run etcd {facts.etcd.version}".strip()
    return "has what torch needs for etcd"
