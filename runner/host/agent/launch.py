"""Start requests: reserve ports, make the run folder, and start guardian and supervisor."""

from __future__ import annotations

import json
import os
import select
import socket
import time
import zlib
from dataclasses import replace
from typing import Any, Dict, Optional

from runner.core.wire.codec import Frame, decode
from runner.core.wire.events import StopCause
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.agent import follow
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.facts import ports
from runner.host.process.jobs import POLL_S, checkpoint, in_loop, pause
from runner.host.storage.pool import store_tasks
from runner.host.storage.run_owner import RunSocket
from runner.host.supervisor import guardian
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.start import prepare, with_numeric_hub

STARTUP_TIMEOUT_S = 20.0
PREDECESSOR_TIMEOUT_S = 10.0  # for the supervisor of an earlier attempt, a spare's perhaps, to end


class Handler(RequestHandler):
    """Starts a run on this host."""

    at_once = frozenset({"record"})
    _run_socket: Optional[RunSocket] = None

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._run_record: Dict[str, Any] = {}

    def on_record(self, frame: Frame) -> None:
        """Take the record of the whole run that every host keeps: its plan and configuration."""
        self._run_record = json.loads(zlib.decompress(frame.payload))

    def on_start(self, frame: Frame) -> None:
        """Start the run, once the supervisor of an earlier attempt has ended."""
        facts = self.context.require_facts()
        order = with_numeric_hub(decode(Order, frame.data["order"]))
        if frame.data.get("tasks"):
            store_tasks(facts.facts.workdir, frame.data["tasks"], frame.payload)
        folder = RunPaths(order.workdir, order.run_id, order.node)
        run_socket = RunSocket(folder)
        deadline = time.monotonic() + PREDECESSOR_TIMEOUT_S
        listener = run_socket.take()
        while listener is None and order.attempt and time.monotonic() < deadline:
            pause(POLL_S)
            listener = run_socket.take()
        if listener is None:
            raise ValueError("this run has a supervisor here already")

        def spawn(log_fd: int) -> int:
            return in_loop(lambda: self._spawn(frame, run_socket, order, listener, log_fd))

        programs = self.context.code.programs
        with listener:  # the guardian has it, too, if there is one at the end
            pipe = prepare(folder, order, programs, self._run_record, spawn)
        report = _await_report(pipe)
        in_loop(lambda: self._on_report(frame, report))

    def _spawn(
        self,
        frame: Frame,
        run_socket: RunSocket,
        order: Order,
        listener: socket.socket,
        log_fd: int,
    ) -> int:
        """Start guardian and supervisor; return the pipe on which they report."""
        facts = self.context.require_facts()
        environ = {**facts.environ, **frame.data.get("secrets", {})}
        token = str(frame.data.get("token", "")).encode()
        args = SupervisorArgs(
            folder=run_socket.folder,
            order=order,
            environ=environ,
            reserved_ports=facts.reserved,
            token=token,
            record=self._run_record,
            programs=self.context.code.programs,
        )
        pipe = guardian.spawn(args, listener, log_fd)
        self._run_socket = run_socket
        os.close(log_fd)
        facts.reserved.close()
        self.context.facts = replace(facts, reserved=ports.NO_PORTS)
        follower: follow.Handler = self.context.get_handler("follow")
        follower.by_launch = True
        follower.follow(run_socket, order)  # from now on it can be stopped
        return pipe

    def _on_report(self, frame: Frame, report: Optional[bytes]) -> None:
        follower: follow.Handler = self.context.get_handler("follow")
        run = follower.require_run()
        run.try_connect(force=True)
        if report is None:  # it hangs, perhaps with its disk, and may yet begin
            reason = f"no supervisor within {STARTUP_TIMEOUT_S:g} s"
            run.send_command("stop", reason=reason, cause=StopCause.LOCAL.value)
        elif report != guardian.READY:
            text = report.decode(errors="replace")
            raise ValueError(text or "its guardian ended without a report")
        self.context.answer(frame, "following")
        self.context.cache_code()

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor that was started here, or its guardian, lives."""
        return self._run_socket is not None and self._run_socket.is_held


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
