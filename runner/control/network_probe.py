"""Network probe: the hosts of a cluster try to reach each other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from runner.control.rpc.wait import Broadcast
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.network_probe import HostProbe, NetworkProbe, Target
from runner.core.planning.endpoints import peer_endpoints
from runner.core.spec import Node, Spec, are_local

LISTEN_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 30.0
"""How long to wait for a host that answers pings but not the probe."""


def probe_network(
    spec: Spec,
    broadcast: Callable[[Collection[str]], Broadcast],
    nodes: tuple[Node, ...],
    facts: Mapping[str, Facts],
) -> NetworkProbe | None:
    """Return what the ready nodes found; None if nothing is to be probed."""
    on_one = len(nodes) == 1 or are_local(nodes)
    endpoints = {} if on_one else peer_endpoints(spec, nodes, facts)
    if not endpoints:
        return None
    addrs = {name: entry.address for name, entry in endpoints.items() if entry.address}
    request = {"token": secrets.token_hex(16), "addresses": addrs}
    listening, problems = broadcast(addrs).collect("listen", request, "listening", LISTEN_TIMEOUT_S)
    missing_reasons = {name: problem.message for name, problem in problems.items()}
    targets: list[Target] = []
    for name, addr in addrs.items():
        reply = listening.get(name)
        if reply and reply["port"]:
            targets.append(Target(name, addr, reply["port"]))
        if reply and reply["error"]:
            missing_reasons[name] = f"cannot listen at {addr}: {reply['error']}"
    reachable = endpoints.keys() - missing_reasons.keys()
    request = {"token": request["token"], "targets": encode(tuple(targets))}
    probed, problems = broadcast(reachable).collect("probe", request, "probed", PROBE_TIMEOUT_S)
    missing_reasons.update({name: problem.message for name, problem in problems.items()})
    by_node = {}
    for node in nodes:
        if node.name in probed:
            told: HostProbe = probed[node.name]["result"]
            asked = tuple(each for each in told.results if each.target in targets)
            by_node[node.name] = replace(told, results=asked)
    return NetworkProbe(
        endpoints,
        tuple(targets),
        by_node=by_node,
        missing_reasons=missing_reasons,
    )
