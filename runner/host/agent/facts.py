"""Facts request: the first that every verb makes."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.facts import FactsRequest
from runner.core.wire.paths import RunPaths
from runner.host.agent.server import RequestHandler, clocks
from runner.host.facts.collect import collect
from runner.host.process.jobs import in_loop
from runner.host.storage import keep

if TYPE_CHECKING:
    from runner.host.agent import push


class Handler(RequestHandler):
    """Reports the facts, and keeps them for the requests that follow."""

    def on_facts(self, frame: Frame) -> None:
        """Collect the facts, and look for what a start would find here."""
        context = self.context
        request = decode(FactsRequest, frame.data["request"])
        if context.facts is not None:  # of an attempt that did not start
            context.facts.reserved.close()
        result = collect(request)
        context.facts = result
        workdir = result.facts.workdir
        folder = RunPaths(workdir, request.run_id, request.node)
        is_stored = result.facts.has_release
        facts = replace(
            result.facts,
            run_exists=os.path.isdir(folder.root),
            kept_by=keep.other_user(workdir, request.keep_place, request.run_id),
            run_stopped=os.path.lexists(folder.stop_marker),
            has_release=is_stored and self._pin(request.release),
        )
        context.answer(frame, "facts", facts=encode(facts), **clocks())
        if not request.skip_launch_facts:  # while the controller waits for other hosts
            in_loop(functools.partial(context.get_handler, "start"))

    def _pin(self, release: str) -> bool:
        handler: push.Handler = in_loop(functools.partial(self.context.get_handler, "manifest"))
        return handler.pin(release)
