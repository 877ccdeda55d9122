"""Endpoints of an attempt: where the ranks meet, the supervisors' hub, and etcd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Mapping, Optional

from runner.core.errors import NotReady, Problem
from runner.core.model.facts import ASSUMED, SIDECAR_NAME, Facts
from runner.core.model.order import Hub, Sidecar
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses
from runner.core.text import bracket_ipv6


@dataclass(frozen=True)
class AttemptEndpoints:
    """The endpoints that all nodes of one attempt share.

    Attributes:
        addr: The master's address.
        port: The port where the ranks meet there; 0 if none was reserved.
        reason: Why they meet there.
        route: An address by which routing tables find the master.
        local_addrs: The address at which others reach the ranks of each node.
        hub: The supervisors' hub; None for a single node.
        sidecar: The etcd that one of the nodes runs for all, None for none.
        etcd_endpoint: HOST:PORT of etcd, "" for none.
    """

    addr: str
    port: int
    reason: str
    route: str
    local_addrs: Mapping[str, str]
    hub: Optional[Hub]
    sidecar: Optional[Sidecar]
    etcd_endpoint: str

    def reserved_port(self, node: Node, spec: Spec) -> int:
        """Return the port that a node reserves until a process of the run listens on it."""
        if self.sidecar is not None and self.sidecar.node == node.name:
            return self.sidecar.port
        return self.port if node is spec.master else 0


def is_single_node(spec: Spec) -> bool:
    """Return whether no other node ever takes part."""
    return (spec.max_nodes or len(spec.nodes)) == 1


def choose_endpoints(spec: Spec, facts: Mapping[str, Facts]) -> AttemptEndpoints:
    """Choose the endpoints of an attempt.

    Raises:
        NotReady: No address is known that every node can reach.
    """
    addr, reason, problem = addresses.training_address(
        spec.nodes, facts, single_node=is_single_node(spec)
    )
    if problem:
        raise NotReady([problem])
    route = addresses.derived_address(spec.nodes, facts) if addr == spec.master.addr else addr
    numeric_addr = addr if addresses.is_numeric(addr) else route
    local_addrs = _local_addrs(spec, facts)
    sidecar = _choose_sidecar(spec, facts, local_addrs)
    etcd_endpoint = spec.rendezvous.endpoint
    if sidecar is not None:
        etcd_endpoint = f"{bracket_ipv6(local_addrs[sidecar.node])}:{sidecar.port}"
        reason = f"rendezvous.serve: {sidecar.node}"
    elif etcd_endpoint:
        reason = "rendezvous.endpoint"
    return AttemptEndpoints(
        addr=addr,
        port=facts[spec.master.name].reserved_port if spec.rendezvous.uses_master_store else 0,
        reason=reason,
        route=route,
        local_addrs=local_addrs,
        hub=_choose_hub(spec, numeric_addr or addr, facts[spec.master.name].hub_port),
        sidecar=sidecar,
        etcd_endpoint=etcd_endpoint,
    )


def _local_addrs(spec: Spec, facts: Mapping[str, Facts]) -> Dict[str, str]:
    """Return the address of each node's ranks; torch would publish a name that may not resolve."""
    if is_single_node(spec):
        return {spec.master.name: addresses.LOOPBACK}
    endpoints = addresses.peer_endpoints(spec, spec.nodes, facts)
    return {node.name: node.addr or endpoints[node.name].address for node in spec.nodes}


def _choose_sidecar(
    spec: Spec, facts: Mapping[str, Facts], local_addrs: Mapping[str, str]
) -> Optional[Sidecar]:
    """Return the etcd that a node runs, at the address at which the others reach that node."""
    name = spec.rendezvous.serve
    if not name:
        return None
    addr = local_addrs[name]
    if not addresses.is_numeric(addr):
        addr = addresses.peer_endpoints(spec, spec.nodes, facts)[name].address or addr
    if not addresses.is_numeric(addr) and facts[name].gpu_source != ASSUMED:
        message = "rendezvous.serve: no address is known at which the others reach this node"
        raise NotReady([Problem(name, message, f"set cluster.nodes.{name}.addr")])
    return etcd_sidecar(name, addr, facts[name].reserved_port, facts[name].etcd.program)


def etcd_sidecar(node: str, addr: str, port: int, program: str) -> Sidecar:
    """Return the etcd of an attempt; it listens on that address only.

    The peer port, which is not used, is a socket in its folder.
    """
    url = f"http://{bracket_ipv6(addr)}:{port}"
    argv = (
        *(program, "--name=runner", "--data-dir=data", "--enable-v2"),
        *(f"--listen-client-urls={url}", f"--advertise-client-urls={url}"),
        *("--listen-peer-urls=unix://peer:1", "--initial-advertise-peer-urls=http://peer:1"),
        "--initial-cluster=runner=http://peer:1",
    )
    return Sidecar(SIDECAR_NAME, node, addr, port, argv)


def _choose_hub(spec: Spec, addr: str, port: int) -> Optional[Hub]:
    if is_single_node(spec) or not port:
        return None
    return Hub(
        node=spec.master.name,
        addr=addr,
        port=port,
        member_count=len(spec.nodes) - 1,
        lost_s=spec.lost_s,
        min_nodes=spec.min_nodes or 0,
        required=spec.rendezvous.uses_master_store or spec.rendezvous.serve == spec.master.name,
    )
