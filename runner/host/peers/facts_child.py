"""Facts of this host for the next attempt: collected in a child, with ports reserved for it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Dict, Optional

from runner.core.codec import decode, encode
from runner.core.model.facts import Facts, FactsRequest
from runner.core.model.plan import Order
from runner.core.protocol.paths import RunPaths
from runner.host.facts import ports
from runner.host.facts.collect import collect
from runner.host.process import bounded_child

TIMEOUT_MARGIN_S = 10.0  # how much longer the child may take than the tools it runs


class FactsChild:
    """One look at this host; everything that may hang is done by the child."""

    def __init__(self, order: Order, request: FactsRequest, environ: Dict[str, str]) -> None:
        self.reserved_ports = ports.NO_PORTS
        self.started = False
        self._order = order
        self._request = request
        self._environ = environ
        self._port_error = ""
        self._child: Optional[bounded_child.BoundedChild] = None

    def start(self) -> None:
        """Reserve the ports in this process, and start the child, once."""
        if self.started:
            return
        self.started = True
        request = self._request
        order = self._order
        first = request.port_first
        last = request.port_last
        reserved, self._port_error = ports.reserve_ports(first, last, store=True, hub=True)
        if order.voter_count > 1:
            reserved = reserved._replace(voter=ports.reserve_extra(first, last))
        self.reserved_ports = reserved
        environ = self._environ
        stop_marker = RunPaths(order.workdir, order.run_id, order.node).stop_marker
        limit_s = request.tools_limit_s + TIMEOUT_MARGIN_S
        self._child = bounded_child.BoundedChild(
            lambda: _report_facts(request, environ, stop_marker), limit_s
        )

    def poll(self) -> Optional[Facts]:
        """Return the facts once they are there; without them the leader gives this host up."""
        if self._child is None:
            return None
        self._child.advance()
        if self._child.code is None:
            return None
        reply = self._child.report()
        self._child = None
        if "facts" not in reply:
            return None
        port, hub_port, vote_port = self.reserved_ports.numbers
        facts = decode(Facts, reply["facts"])
        facts = replace(facts, reserved_port=port, hub_port=hub_port, vote_port=vote_port)
        return replace(facts, port_error=self._port_error)

    def keep_ports(self, order: Optional[Order]) -> None:
        """Release the ports that the next attempt does not need here; all of them without one."""
        reserved = self.reserved_ports
        is_hub = order is not None and order.hub is not None and order.hub.node == order.node
        has_store = order is not None and order.reserve_port == reserved.numbers[0] != 0
        is_voter = order is not None and order.voter_count > 0
        self.reserved_ports = ports.ReservedPorts(
            reserved.store if has_store else None,
            reserved.hub if is_hub else None,
            reserved.voter if is_voter else None,
        )
        for sock in reserved:
            if sock is not None and sock not in self.reserved_ports:
                sock.close()

    def kill(self) -> None:
        """End the child."""
        if self._child is not None:
            self._child.kill()


def _report_facts(request: FactsRequest, environ: Dict[str, str], stop_marker: str) -> None:
    """Report the facts of this host in the environment that its setup left at the launch."""
    os.environ.clear()
    os.environ.update(environ)
    local_request = replace(
        request, setup=(), reserve_port=False, reserve_hub_port=False, reserve_vote_port=False
    )
    facts = replace(collect(local_request).facts, run_stopped=os.path.lexists(stop_marker))
    bounded_child.report_facts(facts=encode(facts))
