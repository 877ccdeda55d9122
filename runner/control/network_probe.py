"""Network probe: the hosts of a cluster try to reach each other and to resolve their names."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from runner.control.rpc.broadcast import Broadcast
from runner.core.codec import decode, encode
from runner.core.model.facts import Facts
from runner.core.model.network_probe import HostProbe, NameLookups, NetworkProbe, Target
from runner.core.model.spec import Node, Spec
from runner.core.planning.endpoints import is_numeric, peer_endpoints

LISTEN_TIMEOUT_S, PROBE_TIMEOUT_S = 10.0, 30.0
"""How long to wait for a host that answers pings but not the probe."""


class NetworkProber:
    """Probes the network between hosts whose facts are known.

    Args:
        spec: The cluster.
        broadcast: Returns a broadcast to some of its nodes.
    """

    def __init__(self, spec: Spec, broadcast: Callable[[Collection[str]], Broadcast]) -> None:
        self._spec, self._broadcast = spec, broadcast

    def run(
        self, nodes: tuple[Node, ...], facts: Mapping[str, Facts], *, pairs: bool, names: bool
    ) -> NetworkProbe | None:
        """Return what these nodes found; None if there is nothing to probe between them.

        Args:
            nodes: The ready nodes, the master first if it is among them.
            facts: Their facts.
            pairs: Whether to try every connection between two of them.
            names: Whether they look up each other's names.

        Raises:
            Interrupted: By a signal.
        """
        endpoints = peer_endpoints(self._spec, nodes, facts) if len(nodes) > 1 else {}
        if not endpoints or not (pairs or names):
            return None
        probe = NetworkProbe(endpoints)
        token = secrets.token_hex(16)
        if pairs:
            probe = self._listen(probe, facts, token)
        if names:
            addr = nodes[0].addr or ""
            known_addrs = {
                name: endpoint.address for name, endpoint in endpoints.items() if endpoint.address
            }
            master = "" if is_numeric(addr) else addr
            probe = replace(probe, lookups=NameLookups(known_addrs, master))
        request = {"token": token, "targets": encode(probe.targets)}
        request["lookups"] = encode(probe.lookups)
        reachable = endpoints.keys() - probe.missing_reasons.keys()
        replies, unanswered = self._request(reachable, "probe", request, "probed", PROBE_TIMEOUT_S)
        answering = [node.name for node in nodes if node.name in replies]
        host_probes = {name: decode(HostProbe, replies[name]["result"]) for name in answering}
        return replace(
            probe, by_node=host_probes, missing_reasons={**probe.missing_reasons, **unanswered}
        )

    def _listen(self, probe: NetworkProbe, facts: Mapping[str, Facts], token: str) -> NetworkProbe:
        """Have every node listen; return the probe with their addresses."""
        listen_addrs = {
            name: entry.address for name, entry in probe.endpoints.items() if entry.address
        }
        request = {"token": token, "addresses": listen_addrs}
        replies, unanswered = self._request(
            listen_addrs.keys(), "listen", request, "listening", LISTEN_TIMEOUT_S
        )
        not_listening = {
            name: f"cannot listen at {listen_addrs[name]}: {entry['error']}"
            for name, entry in replies.items()
            if entry["error"]
        }
        targets = [
            Target(name, listen_addrs[name], replies[name]["port"])
            for name in listen_addrs
            if name in replies
        ]
        targets = [entry for entry in targets if entry.port]
        store_target = (
            self._store_target(listen_addrs, facts)
            if self._spec.master.name in replies.keys() - not_listening.keys()
            else None
        )
        targets += [store_target] if store_target else []
        return replace(
            probe,
            targets=tuple(targets),
            store_target=store_target,
            missing_reasons={**unanswered, **not_listening},
        )

    def _store_target(
        self, listen_addrs: Mapping[str, str], facts: Mapping[str, Facts]
    ) -> Target | None:
        """Return the address at which torch's store would listen."""
        master = self._spec.master
        port = facts[master.name].reserved_port
        numeric = bool(master.addr) and is_numeric(master.addr or "")
        address = (master.addr or "") if numeric else listen_addrs[master.name]
        return Target(master.name, address, port) if port else None

    def _request(
        self,
        names: Collection[str],
        kind: str,
        data: Mapping[str, Any],
        reply_kind: str,
        timeout_s: float,
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        replies, problems = self._broadcast(names).collect(kind, data, reply_kind, timeout_s)
        return replies, {name: problem.message for name, problem in problems.items()}
