"""Facts requests: what a plan and checks depend on here, how hosts reach each other, and load.

What listens for other hosts or dials them is a child.
"""

from __future__ import annotations

import functools
import os
import threading
from dataclasses import replace
from typing import Any, Dict, Optional

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.facts import FactsRequest, Target
from runner.core.wire.paths import RunPaths
from runner.host import network_probe
from runner.host.agent.server import Agent, RequestHandler, clocks
from runner.host.facts.collect import collect
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.process.jobs import POLL_S, in_loop, pause
from runner.host.sampling import Sampler
from runner.host.storage import keep, pool

LISTEN_TIMEOUT_S = 60.0  # after which a listener ends by itself
DIAL_TIMEOUT_S = 20.0
SAMPLE_POLL_S = 0.02


class Handler(RequestHandler):
    def __init__(self, agent: Agent) -> None:
        super().__init__(agent)
        self._pin_fd: Optional[int] = None
        self._listener: Optional[BoundedChild] = None
        self._sampler_lock = threading.Lock()
        self._sampler: Optional[Sampler] = None  # its child ends with us

    def on_facts(self, frame: Frame) -> None:
        agent = self.agent
        request = decode(FactsRequest, frame.data["request"])
        if agent.facts is not None:  # of an attempt that did not start
            agent.facts.reserved.close()
        result = collect(request)
        agent.facts = result
        folder = RunPaths(result.facts.workdir, request.run_id, request.node)
        facts = replace(
            result.facts,
            run_exists=os.path.isdir(folder.root),
            kept_by=keep.other_user(agent.workdir, request.keep_place, request.run_id),
            run_stopped=os.path.lexists(folder.stop_marker),
            has_release=result.facts.has_release and self.pin(request.release),
        )
        agent.answer(frame, "facts", facts=encode(facts), **clocks())
        if not request.skip_launch_facts:  # load it while the controller waits for other hosts
            in_loop(functools.partial(agent.handler, "start"))

    def pin(self, name: str) -> bool:
        """Keep a release from being removed while this agent lives; return False if it is gone."""
        if self._pin_fd is not None:
            os.close(self._pin_fd)
        self._pin_fd = pool.pin(self.agent.workdir, name)
        return self._pin_fd is not None

    def on_sample(self, frame: Frame) -> None:
        """Answer once the drivers have said theirs.

        The load of the CPU is the mean since the sample before of this conversation.
        """
        with self._sampler_lock:
            self._sampler = self._sampler or Sampler(frame.data["node"])
            sample = self._sampler.poll()
            while sample is None:
                pause(SAMPLE_POLL_S)
                sample = self._sampler.poll()
        self.agent.answer(frame, "sampled", sample=encode(sample))

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
        self.agent.answer(frame, "listening", port=port, error=error)

    def on_probe(self, frame: Frame) -> None:
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
        self.agent.answer(frame, "probed", results=list(results.values()))

    def close(self) -> None:
        if self._listener is not None:
            self._listener.kill()
            self._listener = None
