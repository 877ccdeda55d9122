"""Facts request: the first that every verb makes."""

from __future__ import annotations

import os
from dataclasses import replace

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.facts import FactsRequest
from runner.core.wire.paths import RunPaths
from runner.host.agent.server import RequestHandler, clocks
from runner.host.facts.collect import collect
from runner.host.process.event_loop import Steps


class Handler(RequestHandler):
    """Reports the facts, and keeps them for the requests that follow."""

    _preload_in = 0  # turns

    def advance(self) -> None:
        """Load what a start needs while the controller waits for other hosts.

        Not in the turn after the facts: their answer is sent in the next one.
        """
        if self._preload_in:
            self._preload_in -= 1
            if not self._preload_in:
                self.context.get_handler("start")

    def on_facts(self, frame: Frame) -> Steps:
        """Collect the facts, and look for what a start would find here."""
        context, request = self.context, decode(FactsRequest, frame.data["request"])
        if context.facts is not None:  # of an attempt that did not start
            context.facts.reserved.close()
        result = context.facts = yield from collect(request)
        context.facts_request = request
        workdir = result.facts.workdir
        folder = RunPaths(workdir, request.run_id, request.node)
        is_stored = result.facts.has_release
        facts = replace(
            result.facts,
            run_exists=os.path.isdir(folder.root),
            run_stopped=os.path.lexists(folder.stop_marker),
            has_release=is_stored and context.get_handler("manifest").pin(request.release),
        )
        context.answer(frame, "facts", facts=encode(facts), **clocks())
        self._preload_in = 0 if request.skip_launch_facts else 2
