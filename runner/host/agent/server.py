"""The link: our process at the host's end of a channel.

It answers the controller and reads files; it owns nothing but the reserved ports until `go`.
Killing it changes nothing for the run: the supervisor is no child of it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Mapping, NoReturn

from runner.core.protocol.frames import MAGIC, PROTOCOL, Frame, FrameDecoder
from runner.core.protocol.timing import CONTROLLER_TIMEOUT_S
from runner.host.agent.follow import FollowHandler
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler, error_text
from runner.host.agent.launch import LaunchHandler

MAX_UNSENT = 4 << 20
"""Bytes waiting for the controller beyond which no more output of a command is read."""

LAZY_HANDLERS = {
    **dict.fromkeys(("exec", "kill"), "exec"),
    **dict.fromkeys(("inventory", "fetch"), "fetch"),
    **dict.fromkeys(("clean", "runs", "run", "kill_leftovers", "mark_relaunch_pending"), "runs"),
    "dump_stacks": "stacks",
    **dict.fromkeys(("listen", "probe"), "netcheck"),
}
"""Requests of verbs, and where their answers live."""

BUSY_POLL_S, IDLE_POLL_S = 0.02, 0.05


class AgentServer:
    """One conversation with one controller about one node."""

    def __init__(self, in_fd: int, out_fd: int, programs: Mapping[str, str]) -> None:
        self._in_fd, self._out_fd = in_fd, out_fd
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._last_received = time.monotonic()
        self._context = AgentContext(
            self._reply, CONTROLLER_TIMEOUT_S, lambda: len(self._unsent) < MAX_UNSENT
        )
        follow_handler = FollowHandler(self._context)
        launch_handler = LaunchHandler(self._context, in_fd, programs, follow_handler)
        self._request_handlers: List[RequestHandler] = []
        self._handlers: HandlerTable = {}
        for handler in (launch_handler, follow_handler):
            self._register(handler)

    def _register(self, request_handler: RequestHandler) -> None:
        for kind, handler in request_handler.handlers().items():
            assert kind not in self._handlers, kind  # noqa: S101
            self._handlers[kind] = handler
        self._request_handlers.append(request_handler)

    def serve(self) -> None:
        """Answer until the controller goes away."""
        for descriptor in (self._in_fd, self._out_fd):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self._reply("hello", {"protocol": PROTOCOL, "pid": os.getpid(), **clocks})
        try:
            while (
                time.monotonic() - self._last_received < self._context.controller_timeout_s
                and self._poll_once()
            ):
                self._context.jobs.advance()
                for handler in self._request_handlers:
                    handler.advance()
        finally:
            self._context.jobs.cancel_all("the controller left")
            for handler in self._request_handlers:
                handler.close()

    def _poll_once(self) -> bool:
        """Sleep until there is something to do; False when the controller has left."""
        jobs = self._context.jobs
        is_busy = any(handler.busy for handler in self._request_handlers)
        timeout_s = 0.0 if jobs else BUSY_POLL_S if is_busy else IDLE_POLL_S
        writable = [self._out_fd] if self._unsent else []
        readable = [] if jobs.full else [self._in_fd]
        if self._context.can_send():
            readable += [
                descriptor for handler in self._request_handlers for descriptor in handler.pipes
            ]
        ready = select.select(readable, writable, [], timeout_s)
        try:
            if ready[1]:
                sent = os.write(self._out_fd, memoryview(self._unsent)[: 1 << 20])
                del self._unsent[:sent]
            if jobs.full:
                self._last_received = time.monotonic()  # we do not listen
            if self._in_fd in ready[0]:
                chunk = os.read(self._in_fd, 1 << 18)
                if not chunk:
                    return False
                self._last_received = time.monotonic()
                for frame in self._decoder.feed(chunk):
                    self._dispatch(frame)
                    self._last_received = (
                        time.monotonic()
                    )  # some answers take longer than our patience
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind not in self._handlers and frame.kind in LAZY_HANDLERS:
            self._register(_load_handler(frame.kind, self._context))
        handler = self._handlers.get(frame.kind)
        if handler is None:
            self._context.refuse(frame, f"this link knows no request {frame.kind!r}")
            return
        try:
            handler(frame)
        except Exception as error:  # noqa: BLE001 (the controller is told, whatever it is)
            self._context.refuse(frame, error_text(error))

    def _reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        self._unsent += Frame(kind, data, payload).pack()


def _load_handler(kind: str, context: AgentContext) -> RequestHandler:
    """Return what answers a kind of request that no launch makes: it shall not wait for this code.

    A host compiles it anew for every link.
    """
    if LAZY_HANDLERS[kind] == "exec":
        from runner.host.agent.exec import ExecHandler

        return ExecHandler(context)
    if LAZY_HANDLERS[kind] == "fetch":
        from runner.host.agent.fetch import FetchHandler

        return FetchHandler(context)
    if LAZY_HANDLERS[kind] == "stacks":
        from runner.host.agent.stacks import StacksHandler

        return StacksHandler(context)
    if LAZY_HANDLERS[kind] == "netcheck":
        from runner.host.agent.netcheck import NetcheckHandler

        return NetcheckHandler(context)
    from runner.host.agent.runs import RunsHandler

    return RunsHandler(context)


def main(programs: Mapping[str, str]) -> NoReturn:
    """Take over the standard streams and serve; nothing else may write to them.

    `programs` are the texts of those of our files that become files on this host.
    """
    in_fd, out_fd = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    AgentServer(in_fd, out_fd, programs).serve()
    sys.exit(0)
