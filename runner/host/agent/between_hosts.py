"""Requests that have this host talk to others: it tests the connections, and answers theirs.

What listens or dials is a child.
"""

from __future__ import annotations

import functools
import os
from typing import Callable, Optional

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.facts import ProbeResult, Target
from runner.host import network_probe
from runner.host.agent.server import RequestHandler
from runner.host.process.bounded_child import BoundedChild, report_facts

LISTEN_TIMEOUT_S = 60.0  # after which a listener ends by itself
DIAL_TIMEOUT_S = 20.0


class Handler(RequestHandler):
    """The part of one host in a probe."""

    _listen_request: Optional[Frame] = None
    _probe_request: Optional[Frame] = None

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

        self._listen_request = frame
        self._start("listener", serve, LISTEN_TIMEOUT_S)

    def on_probe(self, frame: Frame) -> None:
        """Dial the other hosts; the answer is what became of each."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        targets = [decode(Target, target) for target in frame.data["targets"]]

        def report_result(target_index: int, result: ProbeResult) -> None:
            report_facts(**{str(target_index): encode(result)})

        self._probe_request = frame
        dial = functools.partial(network_probe.dial_all, node, targets, token, report_result)
        self._start("dialer", dial if targets else None, DIAL_TIMEOUT_S)

    def _start(self, name: str, body: Optional[Callable[[], None]], limit_s: float) -> None:
        if name in self.children:
            self.children.pop(name).kill()
        if body is not None:
            self.children[name] = BoundedChild(body, limit_s)

    @property
    def busy(self) -> bool:
        """Whether an answer is pending."""
        return self._listen_request is not None or self._probe_request is not None

    def advance(self) -> None:
        """Answer with the results that are complete."""
        for child in self.children.values():
            child.advance()
        if self._listen_request is not None:
            self._reply_listening(self._listen_request)
        if self._probe_request is not None:
            self._reply_results(self._probe_request)

    def _reply_listening(self, frame: Frame) -> None:
        child = self.children["listener"]
        report = child.report()
        if "port" not in report and child.code is None:
            return
        self._listen_request = None
        error = "" if "port" in report else child.text or "its listener ended"
        self.context.answer(frame, "listening", port=report.get("port", 0), error=error)

    def _reply_results(self, frame: Frame) -> None:
        dialer = self.children.get("dialer")
        if dialer is not None and dialer.code is None:
            return
        self._probe_request = None
        if dialer is not None and dialer.code and not dialer.timed_out:
            self.context.refuse(frame, dialer.text or f"its child ended with {dialer.code}")
            return
        results = dialer.report() if dialer is not None else {}
        self.context.answer(frame, "probed", results=list(results.values()))
