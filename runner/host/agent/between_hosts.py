"""Requests that have this host talk to others: it tests the connections, and answers theirs.

What listens or dials is a child.
"""

from __future__ import annotations

import os
from typing import Any, Dict, Optional

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.facts import Target
from runner.host import network_probe
from runner.host.agent.server import RequestHandler
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.process.jobs import POLL_S, pause

LISTEN_TIMEOUT_S = 60.0  # after which a listener ends by itself
DIAL_TIMEOUT_S = 20.0


class Handler(RequestHandler):
    """The part of one host in a probe."""

    _listener: Optional[BoundedChild] = None

    def on_listen(self, frame: Frame) -> None:
        """Listen for the other hosts until this agent ends; the answer is the port."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        address = frame.data["addresses"][node]
        ports = range(frame.data["first_port"], frame.data["last_port"] + 1)
        agent_pid = os.getpid()

        def serve() -> None:
            listener = network_probe.listen(address, ports)
            report_facts(port=listener.getsockname()[1])
            network_probe.serve(listener, node, token, agent_pid)

        self.close()
        child = BoundedChild(serve, LISTEN_TIMEOUT_S)
        self._listener = child
        while "port" not in child.report() and child.code is None:
            pause(POLL_S)
            child.advance()
        port = child.report().get("port", 0)
        error = "" if port else child.text or "its listener ended"
        self.context.answer(frame, "listening", port=port, error=error)

    def on_probe(self, frame: Frame) -> None:
        """Dial the other hosts; the answer is what became of each."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        targets = [decode(Target, target) for target in frame.data["targets"]]

        def dial() -> None:
            for result in network_probe.dial_all(node, targets, token):
                report_facts(**{result.target.node: encode(result)})

        results: Dict[str, Any] = {}
        if targets:
            child = BoundedChild(dial, DIAL_TIMEOUT_S)
            try:
                wait_all([child])
            finally:
                child.kill()
            if child.code and not child.timed_out:
                raise ValueError(child.text or f"its child ended with {child.code}")
            results = child.report()
        self.context.answer(frame, "probed", results=list(results.values()))

    def close(self) -> None:
        """End the listener."""
        if self._listener is not None:
            self._listener.kill()
            self._listener = None
