"""Network probe: the hosts of a cluster try to reach each other."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from runner.control.rpc.wait import Broadcast
from runner.core.codec import encode
from runner.core.model.facts import Facts
from runner.core.model.network_probe import HostProbe, NetworkProbe, Target
from runner.core.planning.endpoints import is_numeric, peer_endpoints
from runner.core.spec import Node, Spec, are_local

LISTEN_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 30.0
"""How long to wait for a host that answers pings but not the probe."""


class NetworkProber:
    """Probes the network between hosts whose facts are known."""

    def __init__(self, spec: Spec, broadcast: Callable[[Collection[str]], Broadcast]) -> None:
        self._spec = spec
        self._broadcast = broadcast

    def run(self, nodes: tuple[Node, ...], facts: Mapping[str, Facts]) -> NetworkProbe | None:
        """Return what the ready nodes found, the master first; None if nothing is to be probed."""
        on_one = len(nodes) == 1 or are_local(nodes)
        endpoints = {} if on_one else peer_endpoints(self._spec, nodes, facts)
        if not endpoints:
            return None
        token = secrets.token_hex(16)
        probe = self._listen(NetworkProbe(endpoints), facts, token)
        request = {"token": token, "targets": encode(probe.targets)}
        reachable = endpoints.keys() - probe.missing_reasons.keys()
        replies, unanswered = self._request(reachable, "probe", request, "probed", PROBE_TIMEOUT_S)
        answering = [node.name for node in nodes if node.name in replies]
        host_probes = {}
        for name in answering:
            told: HostProbe = replies[name]["result"]
            asked = tuple(each for each in told.results if each.target in probe.targets)
            host_probes[name] = replace(told, results=asked)
        missing_reasons = {**probe.missing_reasons, **unanswered}
        return replace(probe, by_node=host_probes, missing_reasons=missing_reasons)

    def _listen(self, probe: NetworkProbe, facts: Mapping[str, Facts], token: str) -> NetworkProbe:
        """Have every node listen; return the probe with their addresses."""
        endpoints = probe.endpoints.items()
        addrs = {name: entry.address for name, entry in endpoints if entry.address}
        request = {"token": token, "addresses": addrs}
        replies, reasons = self._request(addrs, "listen", request, "listening", LISTEN_TIMEOUT_S)
        ports = {name: replies[name]["port"] for name in addrs if name in replies}
        targets = [Target(name, addrs[name], port) for name, port in ports.items() if port]
        for name, reply in replies.items():
            if reply["error"]:
                reasons[name] = f"cannot listen at {addrs[name]}: {reply['error']}"
        master = self._spec.master
        store_target: Target | None = None  # where torch's store would listen
        if master.name in replies.keys() - reasons.keys() and facts[master.name].reserved_port:
            addr = master.addr or ""
            address = addr if addr and is_numeric(addr) else addrs[master.name]
            store_target = Target(master.name, address, facts[master.name].reserved_port)
            targets.append(store_target)
        return replace(
            probe, targets=tuple(targets), store_target=store_target, missing_reasons=reasons
        )

    def _request(
        self, names: Collection[str], kind: str, data: Mapping[str, Any], reply: str, limit_s: float
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        replies, problems = self._broadcast(names).collect(kind, data, reply, limit_s)
        return replies, {name: problem.message for name, problem in problems.items()}
