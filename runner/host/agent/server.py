"""Agent: our process at the host's end of a connection.

It answers the controller and reads files; it owns nothing but the reserved ports until a run
starts. Killing it does not affect a run: the supervisor is not its child.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Mapping, NoReturn

from runner.core.protocol.frames import MAGIC, PROTOCOL, Frame, FrameDecoder
from runner.host.agent.handler import AgentContext, HandlerTable, RequestHandler, error_text

MAX_UNSENT = 4 << 20
"""Bytes waiting for the controller beyond which no more output of a command is read."""

REQUEST_MODULES = {
    "facts": "facts",
    **dict.fromkeys(("manifest", "chunk", "finish", "abort_push"), "push"),
    **dict.fromkeys(("reserve_ports", "record", "start"), "launch"),
    **dict.fromkeys(("follow", "read", "command"), "follow"),
    **dict.fromkeys(("exec", "kill"), "exec"),
    **dict.fromkeys(("inventory", "fetch"), "fetch"),
    **dict.fromkeys(("runs", "run", "mark_relaunch_pending"), "runs"),
    "kill_leftovers": "leftovers",
    "clean": "clean",
    "dump_stacks": "stacks",
    **dict.fromkeys(("listen", "probe"), "netcheck"),
}
"""The module beside this one whose `Handler` answers each kind of request.

It is loaded with the first such request: a host may have to compile it for each connection.
"""

BUSY_POLL_S, IDLE_POLL_S = 0.02, 0.05


class AgentServer:
    """One conversation with one controller about one node."""

    def __init__(self, in_fd: int, out_fd: int, programs: Mapping[str, str]) -> None:
        self._in_fd, self._out_fd = in_fd, out_fd
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._last_received = time.monotonic()
        self._context = AgentContext(
            self._reply, lambda: len(self._unsent) < MAX_UNSENT, self._load, in_fd, programs
        )
        self._modules: Dict[str, RequestHandler] = {}
        self._handlers: HandlerTable = {"ping": self._ping}

    def _load(self, kind: str) -> RequestHandler:
        """Return the handler that answers a kind of request."""
        name = REQUEST_MODULES[kind]
        if name not in self._modules:
            module: Any = importlib.import_module(f"runner.host.agent.{name}")
            self._modules[name] = module.Handler(self._context)
            self._handlers.update(self._modules[name].handlers())
        return self._modules[name]

    @property
    def _loaded(self) -> List[RequestHandler]:
        return list(self._modules.values())

    def serve(self) -> None:
        """Answer until the controller goes away."""
        for descriptor in (self._in_fd, self._out_fd):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        self._reply("hello", {"protocol": PROTOCOL, "pid": os.getpid(), **_clocks()})
        try:
            while (
                time.monotonic() - self._last_received < self._context.controller_timeout_s
                and self._poll_once()
            ):
                self._context.jobs.advance()
                for handler in self._loaded:
                    handler.advance()
        finally:
            self._context.jobs.cancel_all("the controller left")
            for handler in self._loaded:
                handler.close()

    def _poll_once(self) -> bool:
        """Sleep until there is something to do; return False when the controller has left."""
        jobs = self._context.jobs
        is_busy = any(handler.busy for handler in self._loaded)
        timeout_s = 0.0 if jobs else BUSY_POLL_S if is_busy else IDLE_POLL_S
        writable = [self._out_fd] if self._unsent else []
        readable = [] if jobs.full else [self._in_fd]
        if self._context.can_send():
            readable += [pipe for handler in self._loaded for pipe in handler.pipes]
        ready = select.select(readable, writable, [], timeout_s)
        try:
            if ready[1]:
                sent = os.write(self._out_fd, memoryview(self._unsent)[: 1 << 20])
                del self._unsent[:sent]
            if jobs.full:
                self._last_received = time.monotonic()  # we are not reading
            if self._in_fd in ready[0]:
                chunk = os.read(self._in_fd, 1 << 18)
                if not chunk:
                    return False
                for frame in self._decoder.feed(chunk):
                    self._dispatch(frame)
                self._last_received = time.monotonic()  # an answer may have taken long
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _dispatch(self, frame: Frame) -> None:
        try:
            if frame.kind in REQUEST_MODULES:
                self._load(frame.kind)
            if frame.kind not in self._handlers:
                self._context.refuse(frame, f"this agent knows no request {frame.kind!r}")
            else:
                self._handlers[frame.kind](frame)
        except Exception as error:  # noqa: BLE001 (the controller hears of it, whatever it is)
            self._context.refuse(frame, error_text(error))

    def _ping(self, frame: Frame) -> None:
        for handler in self._loaded:
            handler.renew_lease()
        self._reply("pong", {"id": frame.data["id"], **_clocks()})

    def _reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        self._unsent += Frame(kind, data, payload).pack()


def _clocks() -> Dict[str, float]:
    return {"mono": time.monotonic(), "wall": time.time()}


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
