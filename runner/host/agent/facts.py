"""Facts request: the first that every verb makes."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from dataclasses import replace
from typing import Iterator

from runner.core.codec import decode, encode
from runner.core.model.facts import FactsRequest
from runner.core.protocol.frames import Frame
from runner.core.protocol.paths import RunPaths
from runner.host.agent.server import RequestHandler, clocks
from runner.host.facts.collect import collect

HANGUP_POLL_S = 0.25


class Handler(RequestHandler):
    """Reports the facts, and keeps them for the requests that follow."""

    _preload_in = 0  # turns

    def advance(self) -> None:
        """Load what a start needs while the controller waits for other hosts.

        Not in the turn of the facts request: its answer is sent in the next one.
        """
        if self._preload_in:
            self._preload_in -= 1
            if not self._preload_in:
                self.context.get_handler("start")

    def on_facts(self, frame: Frame) -> None:
        """Collect the facts, and look for what a start would find here."""
        context, request = self.context, decode(FactsRequest, frame.data["request"])
        if context.facts is not None:  # of an attempt that did not start
            context.facts.reserved.close()
        with _exit_on_disconnect(context.in_fd):
            result = context.facts = collect(request)
        context.facts_request = request
        self._preload_in = 0 if request.skip_launch_facts else 2
        folder = RunPaths(result.facts.workdir, request.run_id, request.node)
        is_stored = result.facts.has_release
        facts = replace(
            result.facts,
            run_exists=os.path.isdir(folder.root),
            run_stopped=os.path.lexists(folder.stop_marker),
            has_release=is_stored and context.get_handler("manifest").pin(request.release),
        )
        context.answer(frame, "facts", facts=encode(facts), **clocks())


@contextlib.contextmanager
def _exit_on_disconnect(in_fd: int) -> Iterator[None]:
    """End this process when the controller leaves while facts are collected.

    A kernel timer checks, since there is only one thread and setup lines may take minutes.
    """
    poller = select.poll()
    poller.register(in_fd, 0)  # POLLHUP and POLLERR are always reported

    def exit_if_hung_up(*_: object) -> None:
        if poller.poll(0):
            raise SystemExit(0)

    previous = signal.signal(signal.SIGALRM, exit_if_hung_up)
    signal.setitimer(signal.ITIMER_REAL, HANGUP_POLL_S, HANGUP_POLL_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
