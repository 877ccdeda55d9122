"""Where the nodes of an attempt meet: the ranks, and the supervisors beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import ASSUMED, Facts
from runner.core.model.order import Hub, Service
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.planning.etcd import served
from runner.core.text import bracketed


@dataclass(frozen=True)
class Meeting:
    """What all nodes of one attempt agree on.

    Attributes:
        addr: The master's address.
        port: The port where the ranks meet there; 0 where nobody was to reserve one.
        why: Why they meet there.
        route: An address by which the master is found in routing tables.
        local_addrs: Where each node's ranks are reached by the others.
        hub: Where the supervisors keep in touch; None for a node alone.
        service: The etcd that one of the nodes runs for all, None for none.
        endpoint: HOST:PORT of the etcd where they meet, "" for none.
    """

    addr: str
    port: int
    why: str
    route: str
    local_addrs: Mapping[str, str]
    hub: Optional[Hub]
    service: Optional[Service]
    endpoint: str

    def held_port(self, node: Node, spec: Spec) -> int:
        """Return the port that is kept on a node until somebody of the run's listens on it."""
        if self.service is not None and self.service.node == node.name:
            return self.service.port
        return self.port if node is spec.master else 0


def alone(spec: Spec) -> bool:
    """Whether no other node ever takes part."""
    return (spec.most or len(spec.nodes)) == 1


def meet(spec: Spec, facts: Mapping[str, Facts]) -> Meeting:
    """Decide where they meet.

    Raises:
        NotReady: There is no place that every node is known to reach.
    """
    addr, why, problem = addresses.training_address(spec.nodes, facts, alone=alone(spec))
    if problem:
        raise NotReady([problem])
    route = addresses.derived_address(spec.nodes, facts) if addr == spec.master.addr else addr
    numeric = addr if addresses.is_numeric(addr) else route
    local_addrs = _local_addrs(spec, facts)
    service = _service(spec, facts, local_addrs)
    endpoint = spec.rendezvous.endpoint
    if service is not None:
        endpoint = f"{bracketed(local_addrs[service.node])}:{service.port}"
        why = f"rendezvous.serve: {service.node}"
    elif endpoint:
        why = "rendezvous.endpoint"
    return Meeting(
        addr=addr,
        port=facts[spec.master.name].held_port if spec.rendezvous.held else 0,
        why=why,
        route=route,
        local_addrs=local_addrs,
        hub=_hub(spec, numeric or addr, facts[spec.master.name].hub_port),
        service=service,
        endpoint=endpoint,
    )


def _local_addrs(spec: Spec, facts: Mapping[str, Facts]) -> Dict[str, str]:
    """Return where each node's ranks are reached; torch would publish a name nobody may resolve."""
    if alone(spec):
        return {spec.master.name: addresses.LOOPBACK}
    found = addresses.endpoints(spec, spec.nodes, facts)
    return {node.name: node.addr or found[node.name].address for node in spec.nodes}


def _service(
    spec: Spec, facts: Mapping[str, Facts], local_addrs: Mapping[str, str]
) -> Optional[Service]:
    """Return the etcd that a node is to run, at the address by which the others reach that node."""
    name = spec.rendezvous.serve
    if not name:
        return None
    addr = local_addrs[name]
    if not addresses.is_numeric(addr):
        addr = addresses.endpoints(spec, spec.nodes, facts)[name].address or addr
    if not addresses.is_numeric(addr) and facts[name].gpu_source != ASSUMED:
        what = "rendezvous.serve: no address is known at which the others reach this node"
        raise NotReady([Problem(name, what, f"set cluster.nodes.{name}.addr")])
    return served(name, addr, facts[name].held_port, facts[name].etcd.program)


def _hub(spec: Spec, addr: str, port: int) -> Optional[Hub]:
    if alone(spec) or not port:
        return None
    return Hub(
        node=spec.master.name,
        addr=addr,
        port=port,
        members=len(spec.nodes) - 1,
        lost_s=spec.lost_s,
        least=spec.least or 0,
        vital=spec.rendezvous.held or spec.rendezvous.serve == spec.master.name,
    )
