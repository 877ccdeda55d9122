"""Start requests: reserve ports, make the run folder, and start guardian and supervisor."""

from __future__ import annotations

import functools
import json
import os
import socket
import time
import zlib
from dataclasses import replace
from typing import Any, Dict, NamedTuple, Optional, Sequence

from runner.core.wire.codec import Frame, decode
from runner.core.wire.events import StopCause
from runner.core.wire.order import Order
from runner.core.wire.paths import RunPaths
from runner.host.agent import follow
from runner.host.agent.request_queue import RequestSteps
from runner.host.agent.server import AgentContext, RequestHandler
from runner.host.facts import ports
from runner.host.storage.run_owner import RunSocket
from runner.host.storage.task_store import store_tasks
from runner.host.supervisor import guardian
from runner.host.supervisor.attempt import SupervisorArgs
from runner.host.supervisor.start import prepare, with_numeric_hub

STARTUP_TIMEOUT_S = 20.0
PREDECESSOR_TIMEOUT_S = 10.0  # for the supervisor of an earlier attempt, a spare's perhaps, to end


class Startup(NamedTuple):
    """A guardian that has not reported yet, for whom its controller waits."""

    frame: Frame
    run: follow.FollowedRun
    pipe: int
    deadline: float


class Handler(RequestHandler):
    """Starts a run on this host."""

    _startup: Optional[Startup] = None
    _run_socket: Optional[RunSocket] = None

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._run_record: Dict[str, Any] = {}

    def on_record(self, frame: Frame) -> None:
        """Take the record of the whole run that every host keeps: its plan and configuration."""
        self._run_record = json.loads(zlib.decompress(frame.payload))

    def on_start(self, frame: Frame) -> RequestSteps:
        """Start the run, once the supervisor of an earlier attempt has ended."""
        facts = self.context.require_facts()
        order = with_numeric_hub(decode(Order, frame.data["order"]))
        if frame.data.get("tasks"):
            store_tasks(facts.facts.workdir, frame.data["tasks"], frame.payload)
        folder = RunPaths(order.workdir, order.run_id, order.node)
        run_socket, deadline = RunSocket(folder), time.monotonic() + PREDECESSOR_TIMEOUT_S
        listener = run_socket.take()
        while listener is None and order.attempt and time.monotonic() < deadline:
            yield None
            listener = run_socket.take()
        if listener is None:
            raise ValueError("this run has a supervisor here already")
        with listener:  # the guardian has it, too, if there is one at the end
            spawn = functools.partial(self._spawn, frame, run_socket, order, listener)
            record = self._run_record
            yield from prepare(folder, order, self.context.code.programs, record, spawn)

    def _spawn(
        self,
        frame: Frame,
        run_socket: RunSocket,
        order: Order,
        listener: socket.socket,
        log_fd: int,
    ) -> None:
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
        os.set_blocking(pipe, False)
        facts.reserved.close()
        self.context.facts = replace(facts, reserved=ports.NO_PORTS)
        follower: follow.Handler = self.context.get_handler("follow")
        follower.by_launch = True
        run = follower.follow(run_socket, order)  # from now on it can be stopped
        self._startup = Startup(frame, run, pipe, time.monotonic() + STARTUP_TIMEOUT_S)

    @property
    def has_supervisor(self) -> bool:
        """Whether a supervisor that was started here, or its guardian, lives."""
        return self._run_socket is not None and self._run_socket.is_held

    @property
    def pipes(self) -> Sequence[int]:
        """The one of a guardian that has not reported yet."""
        return [self._startup.pipe] if self._startup is not None else []

    def advance(self) -> None:
        """Take the report of the guardian."""
        if self._startup is None:
            return
        frame, run, pipe, deadline = self._startup
        try:
            report: Optional[bytes] = os.read(pipe, 65536)  # it is written at once
        except BlockingIOError:
            if time.monotonic() < deadline:
                return
            report = None
        os.close(pipe)
        self._startup = None
        run.try_connect(force=True)
        if report is None:  # it hangs, perhaps with its disk, and may yet begin
            reason = f"no supervisor within {STARTUP_TIMEOUT_S:g} s"
            run.send_command("stop", reason=reason, cause=StopCause.LOCAL.value)
        elif report != guardian.READY:
            reason = report.decode(errors="replace") or "its guardian ended without a report"
            self.context.refuse(frame, reason)
            return
        self.context.answer(frame, "following")
        self.context.cache_code()
