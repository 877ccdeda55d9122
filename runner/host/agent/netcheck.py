"""Netcheck requests: listen for other hosts, dial them, and look up names."""

from __future__ import annotations

import functools
import os
from typing import List, Optional, Tuple

from runner.core.codec import decode, encode
from runner.core.model.network_probe import HostProbe, NameLookups, ProbeResult, Target
from runner.core.protocol.frames import Frame
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler
from runner.host.netcheck import name_lookup
from runner.host.netcheck.dialer import test_all
from runner.host.netcheck.responder import serve
from runner.host.process.bounded_child import BoundedChild, report_facts

LISTEN_TIMEOUT_S = 60.0
"""After this long a listener ends by itself."""

DIAL_TIMEOUT_S = 20.0


class Handler(RequestHandler):
    """Network checks, which run in children."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._listener: Optional[BoundedChild] = None
        self._listen_request: Optional[Frame] = None
        self._probe_request: Optional[Frame] = None
        self._dialer: Optional[BoundedChild] = None
        self._name_lookup: Optional[BoundedChild] = None

    def handlers(self) -> HandlerTable:
        """Return the function for each kind of request."""
        return {"listen": self._listen, "probe": self._start_probe}

    @property
    def busy(self) -> bool:
        """Whether an answer is pending."""
        return self._listen_request is not None or self._probe_request is not None

    @property
    def pipes(self) -> Tuple[int, ...]:
        """The pipes of the children."""
        return tuple(pipe for child in self._children for pipe in child.pipes)

    @property
    def _children(self) -> List[BoundedChild]:
        children = (self._listener, self._dialer, self._name_lookup)
        return [child for child in children if child is not None]

    def advance(self) -> None:
        """Answer with the results that are complete."""
        for child in self._children:
            if child.code is None:
                child.advance()
        if self._listen_request is not None:
            self._reply_listening(self._listen_request)
        if self._probe_request is not None:
            self._reply_results(self._probe_request)

    def close(self) -> None:
        """End the children."""
        for child in self._children:
            child.kill()

    def _listen(self, frame: Frame) -> None:
        if self._listener is not None:
            self._listener.kill()
        node, token = frame.data["node"], str(frame.data["token"]).encode()
        address = frame.data["addresses"][node]
        reserved_port, agent_pid = self.context.require_facts().reserved.store_port, os.getpid()
        self._listen_request = frame
        self._listener = BoundedChild(
            lambda: serve(node, token, address, reserved_port, agent_pid, report_facts),
            LISTEN_TIMEOUT_S,
        )

    def _reply_listening(self, frame: Frame) -> None:
        listener = self._listener
        assert listener is not None  # noqa: S101 (made with the request)
        report = listener.report()
        if "ready" not in report and listener.code is None:
            return
        self._listen_request = None
        failure = "" if "ready" in report else listener.text or "its listener ended"
        reply = {"port": report.get("port", 0), "error": failure or report.get("error", "")}
        self.context.reply("listening", {"id": frame.data["id"], **reply})

    def _start_probe(self, frame: Frame) -> None:
        node, token = frame.data["node"], str(frame.data["token"]).encode()
        targets = [decode(Target, target) for target in frame.data["targets"]]
        lookups = decode(NameLookups, frame.data["lookups"])

        def report_result(target_index: int, result: ProbeResult) -> None:
            report_facts(**{str(target_index): encode(result)})

        for child in (self._dialer, self._name_lookup):
            if child is not None:
                child.kill()
        self._probe_request, self._dialer, self._name_lookup = frame, None, None
        if targets:
            dial = functools.partial(test_all, node, targets, token, report_result)
            self._dialer = BoundedChild(dial, DIAL_TIMEOUT_S)
        if lookups.addresses:
            look_up = functools.partial(name_lookup.look_up, lookups, report_facts)
            self._name_lookup = BoundedChild(look_up, lookups.timeout_s + 1)

    def _reply_results(self, frame: Frame) -> None:
        dialer, lookup = self._dialer, self._name_lookup
        if any(child is not None and child.code is None for child in (dialer, lookup)):
            return
        self._probe_request = None
        if dialer is not None and dialer.code and not dialer.timed_out:
            self.context.refuse(frame, dialer.text or f"its child ended with {dialer.code}")
            return
        results = dialer.report() if dialer is not None else {}
        names = lookup.report() if lookup is not None else {}
        host_probe = HostProbe(
            results=tuple(decode(ProbeResult, result) for result in results.values()),
            name_results=name_lookup.parse_results(names),
        )
        self.context.reply("probed", {"id": frame.data["id"], "result": encode(host_probe)})
