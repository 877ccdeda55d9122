"""What a link does for a look at the network: it listens, tries to reach others, asks for names."""

from __future__ import annotations

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
"""A listener ends by itself after so long, if nobody ended it before."""

DIAL_TIMEOUT_S = 20.0


class Handler(RequestHandler):
    """Requests of `check` about the network; all that may wait does so in children."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._listener: Optional[BoundedChild] = None
        self._listen_request: Optional[Frame] = None
        self._probe_request: Optional[Frame] = None
        self._dialer: Optional[BoundedChild] = None
        self._name_lookup: Optional[BoundedChild] = None

    def handlers(self) -> HandlerTable:
        """Return what answers each kind of request."""
        return {"listen": self._listen, "probe": self._start_probe}

    @property
    def busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._listen_request is not None or self._probe_request is not None

    @property
    def pipes(self) -> Tuple[int, ...]:
        """What the children report by."""
        return tuple(pipe for child in self._children for pipe in child.pipes)

    @property
    def _children(self) -> List[BoundedChild]:
        children = (self._listener, self._dialer, self._name_lookup)
        return [child for child in children if child is not None]

    def advance(self) -> None:
        """See what they say, and pass on what is whole."""
        for child in self._children:
            if child.code is None:
                child.advance()
        if self._listen_request is not None:
            self._reply_listening(self._listen_request)
        if self._probe_request is not None:
            self._reply_results(self._probe_request)

    def close(self) -> None:
        """End them."""
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
        error = (
            report.get("error", "") if "ready" in report else listener.text or "its listener ended"
        )
        reply = {"port": report.get("port", 0), "error": error}
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
            self._dialer = BoundedChild(
                lambda: test_all(node, targets, token, report_result), DIAL_TIMEOUT_S
            )
        if lookups.addresses:
            limit_s = lookups.timeout_s + 1
            self._name_lookup = BoundedChild(
                lambda: name_lookup.look_up(lookups, report_facts), limit_s
            )

    def _reply_results(self, frame: Frame) -> None:
        if any(
            child is not None and child.code is None for child in (self._dialer, self._name_lookup)
        ):
            return
        self._probe_request = None
        if self._dialer is not None and self._dialer.code and not self._dialer.timed_out:
            self.context.refuse(
                frame, self._dialer.text or f"its child ended with {self._dialer.code}"
            )
            return
        results = self._dialer.report() if self._dialer is not None else {}
        host_probe = HostProbe(
            results=tuple(decode(ProbeResult, result) for result in results.values()),
            name_results=name_lookup.parse_results(
                self._name_lookup.report() if self._name_lookup is not None else {}
            ),
        )
        self.context.reply("probed", {"id": frame.data["id"], "result": encode(host_probe)})
