"""Have the hosts of a cluster try to reach each other, over the connections that are open."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from runner.control.rpc.broadcast import Asking
from runner.control.rpc.session import Inbox, Session
from runner.core.codec import decode, encode
from runner.core.model.facts import Facts
from runner.core.model.network_probe import Found, Probed, Questions, Target
from runner.core.model.spec import Node, Spec
from runner.core.planning import addresses

LISTEN_S, PROBE_S = 10.0, 30.0
"""A host that answers pings, but not this, is waited for so long."""


class Prober:
    """Looks at the network between hosts whose facts are known.

    Args:
        spec: The cluster.
        sessions: The hosts, by node.
        inbox: Where all sessions put what they hear.
        show: Takes (node, state in a few words) whenever that changes.
    """

    def __init__(
        self,
        spec: Spec,
        sessions: Mapping[str, Session],
        inbox: Inbox,
        show: Callable[[str, str], None],
    ) -> None:
        self._spec, self._sessions, self._inbox, self._show = spec, sessions, inbox, show

    def run(
        self, nodes: tuple[Node, ...], facts: Mapping[str, Facts], *, pairs: bool, names: bool
    ) -> Probed | None:
        """Return what these nodes found; None where there is nothing between them to look at.

        Args:
            nodes: The ready ones, the master first if it is among them.
            facts: Theirs.
            pairs: Whether they are to reach each other.
            names: Whether they are to look up each other's names.

        Raises:
            Interrupted: By a signal.
        """
        endpoints = addresses.endpoints(self._spec, nodes, facts) if len(nodes) > 1 else {}
        if not endpoints or not (pairs or names):
            return None
        probed = Probed(endpoints)
        token = secrets.token_hex(16)
        if pairs:
            probed = self._listen(probed, facts, token)
        if names:
            addr = nodes[0].addr or ""
            known = {name: each.address for name, each in endpoints.items() if each.address}
            master = "" if addresses.is_numeric(addr) else addr
            probed = replace(probed, questions=Questions(known, master))
        asked = {"token": token, "targets": encode(probed.targets)}
        asked["questions"] = encode(probed.questions)
        there = endpoints.keys() - probed.silent.keys()
        told, silent = self._ask(there, "probe", asked, "probed", PROBE_S)
        answered = [node.name for node in nodes if node.name in told]
        found = {name: decode(Found, told[name]["found"]) for name in answered}
        return replace(probed, of=found, silent={**probed.silent, **silent})

    def _listen(self, probed: Probed, facts: Mapping[str, Facts], token: str) -> Probed:
        """Have every node listen; return where."""
        at = {name: each.address for name, each in probed.endpoints.items() if each.address}
        asked = {"token": token, "addresses": at}
        told, silent = self._ask(at.keys(), "listen", asked, "listening", LISTEN_S)
        deaf = {
            name: f"cannot listen at {at[name]}: {each['error']}"
            for name, each in told.items()
            if each["error"]
        }
        targets = [Target(name, at[name], told[name]["port"]) for name in at if name in told]
        targets = [each for each in targets if each.port]
        store = (
            self._store(at, facts) if self._spec.master.name in told.keys() - deaf.keys() else None
        )
        targets += [store] if store else []
        return replace(probed, targets=tuple(targets), store=store, silent={**silent, **deaf})

    def _store(self, at: Mapping[str, str], facts: Mapping[str, Facts]) -> Target | None:
        """Return where torch's store would listen."""
        master = self._spec.master
        port = facts[master.name].held_port
        numeric = bool(master.addr) and addresses.is_numeric(master.addr or "")
        address = (master.addr or "") if numeric else at[master.name]
        return Target(master.name, address, port) if port else None

    def _ask(
        self,
        names: Collection[str],
        kind: str,
        data: Mapping[str, Any],
        answer: str,
        limit_s: float,
    ) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
        sessions = {name: each for name, each in self._sessions.items() if name in names}
        asking = Asking(sessions, self._inbox, self._spec.lost_s, self._show)
        told, problems = asking.some(kind, data, answer, limit_s)
        return told, {name: problem.what for name, problem in problems.items()}
