"""Start requests: reserve ports, make the run folder, and start guardian and supervisor."""

from __future__ import annotations

import json
import os
import select
import socket
import time
import zlib
from dataclasses import replace
from typing import Optional

from runner.core.wire.codec import Frame, decode, encode
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.core.wire.states import Reason, ReasonKind
from runner.host.agent import follow
from runner.host.agent.server import RequestHandler
from runner.host.facts import ports
from runner.host.process.jobs import POLL_S, checkpoint, in_loop, pause
from runner.host.storage.pool import store_tasks
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor import guardian
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.guardian import prepare, with_numeric_hub

STARTUP_TIMEOUT_S = 20.0
PREDECESSOR_TIMEOUT_S = 10.0  # for the supervisor of an earlier attempt, a spare's perhaps, to end


class Handler(RequestHandler):
    """Starts a run on this host."""

    _run_socket: Optional[RunSocket] = None

    def on_start(self, frame: Frame) -> None:
        """Start the run.

        The payload is the record of the whole run that every host keeps, its plan and
        configuration; then the shipped tasks, if this host lacks them.
        """
        facts = self.context.require_facts()
        order = with_numeric_hub(decode(Order, frame.data["order"]))
        size = int(frame.data["record_bytes"])
        record = json.loads(zlib.decompress(frame.payload[:size]))
        if frame.data.get("tasks"):
            store_tasks(facts.facts.workdir, frame.data["tasks"], frame.payload[size:])
        folder = RunPaths(order.workdir, order.run_id, order.node)
        run_socket = RunSocket(folder)
        listener = _take(run_socket, order)
        run = follow.FollowedRun(run_socket, order, by_launch=True)
        args = SupervisorArgs(
            folder=folder,
            order=order,
            environ={**facts.environ, **frame.data.get("secrets", {})},
            reserved_ports=facts.reserved,
            token=str(frame.data.get("token", "")).encode(),
            record=record,
            programs=self.context.code.programs,
        )

        def spawn(log_fd: int) -> int:
            """Start guardian and supervisor; return the pipe on which they report."""
            pipe = guardian.spawn(args, listener, log_fd)
            self._run_socket = run_socket
            os.close(log_fd)
            facts.reserved.close()
            self.context.facts = replace(facts, reserved=ports.NO_PORTS)
            follower: follow.Handler = self.context.get_handler("follow")
            follower.end_stream()
            follower.follow(run, order)  # from now on it can be stopped
            return pipe

        with listener:  # the guardian has it, too, if there is one at the end
            pipe = prepare(args, lambda log_fd: in_loop(lambda: spawn(log_fd)))
        report = _await_report(pipe)
        if report is not None and report != guardian.READY:
            text = report.decode(errors="replace")
            raise ValueError(text or "its guardian ended without a report")
        self.context.answer(frame, "following")
        in_loop(self.context.cache_code)
        if report is None:  # it hangs, perhaps with its disk, and may yet begin
            problem = f"no supervisor within {STARTUP_TIMEOUT_S:g} s"
            reason = Reason(ReasonKind.HOST, order.node, detail=problem)
            run.send("stop", reason=encode(reason))

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor that was started here, or its guardian, lives."""
        return self._run_socket is not None and self._run_socket.is_held


def _take(run_socket: RunSocket, order: Order) -> socket.socket:
    """Take the socket of a run, once the supervisor of an earlier attempt has ended."""
    deadline = time.monotonic() + PREDECESSOR_TIMEOUT_S
    listener = run_socket.take()
    while listener is None and order.attempt and time.monotonic() < deadline:
        pause(POLL_S)
        listener = run_socket.take()
    if listener is None:
        raise ValueError("this run has a supervisor here already")
    return listener


def _await_report(pipe: int) -> Optional[bytes]:
    """Return what the guardian reports, which it writes at once; None if that takes too long."""
    deadline = time.monotonic() + STARTUP_TIMEOUT_S
    try:
        while time.monotonic() < deadline:
            checkpoint()
            if select.select([pipe], [], [], POLL_S)[0]:
                return os.read(pipe, 65536)
        return None
    finally:
        os.close(pipe)
