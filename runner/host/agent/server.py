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

from runner.core.protocol.frames import MAGIC, PROTOCOL, Frame, Unpacker
from runner.host.agent.follow import Following
from runner.host.agent.handler import Duty, Handlers, Wire, said
from runner.host.agent.launch import Starting

SILENCE_S = 60.0
"""A link that hears nothing for so long has no controller any more, whatever TCP says."""

MAX_UNSENT = 4 << 20
"""Bytes waiting for the controller beyond which no more output of a command is read."""

LATER = {
    **dict.fromkeys(("exec", "kill"), "commands"),
    **dict.fromkeys(("inventory", "fetch"), "fetching"),
    **dict.fromkeys(("clean", "runs", "run", "prove", "wait"), "keeping"),
    "dump": "dumping",
    **dict.fromkeys(("listen", "probe"), "probing"),
}
"""Requests of verbs, and where their answers live."""

BUSY_S, IDLE_S = 0.02, 0.05


class Link:
    """One conversation with one controller about one node."""

    def __init__(self, inbound: int, outbound: int, programs: Mapping[str, str]) -> None:
        self._in, self._out = inbound, outbound
        self._unpacker = Unpacker()
        self._unsent = bytearray()
        self._heard = time.monotonic()
        self._wire = Wire(self._reply, SILENCE_S, lambda: len(self._unsent) < MAX_UNSENT)
        following = Following(self._wire)
        starting = Starting(self._wire, inbound, programs, following)
        self._duties: List[Duty] = []
        self._handlers: Handlers = {}
        for duty in (starting, following):
            self._take_up(duty)

    def _take_up(self, duty: Duty) -> None:
        for kind, handler in duty.handlers().items():
            assert kind not in self._handlers, kind  # noqa: S101
            self._handlers[kind] = handler
        self._duties.append(duty)

    def serve(self) -> None:
        """Answer until the controller goes away."""
        for descriptor in (self._in, self._out):
            os.set_blocking(descriptor, False)
        self._unsent += MAGIC
        clocks = {"mono": time.monotonic(), "wall": time.time()}
        self._reply("hello", {"protocol": PROTOCOL, "pid": os.getpid(), **clocks})
        try:
            while time.monotonic() - self._heard < self._wire.silence_s and self._wait():
                self._wire.work.advance()
                for duty in self._duties:
                    duty.advance()
        finally:
            self._wire.work.give_up("the controller left")
            for duty in self._duties:
                duty.close()

    def _wait(self) -> bool:
        """Sleep until there is something to do; False when the controller has left."""
        work = self._wire.work
        busy = any(duty.busy for duty in self._duties)
        patience = 0.0 if work else BUSY_S if busy else IDLE_S
        writable = [self._out] if self._unsent else []
        readable = [] if work.full else [self._in]
        if self._wire.room():
            readable += [descriptor for duty in self._duties for descriptor in duty.pipes]
        ready = select.select(readable, writable, [], patience)
        try:
            if ready[1]:
                sent = os.write(self._out, memoryview(self._unsent)[: 1 << 20])
                del self._unsent[:sent]
            if work.full:
                self._heard = time.monotonic()  # we do not listen
            if self._in in ready[0]:
                chunk = os.read(self._in, 1 << 18)
                if not chunk:
                    return False
                self._heard = time.monotonic()
                for frame in self._unpacker.feed(chunk):
                    self._dispatch(frame)
                    self._heard = time.monotonic()  # some answers take longer than our patience
        except BlockingIOError:
            pass
        except OSError:
            return False
        return True

    def _dispatch(self, frame: Frame) -> None:
        if frame.kind not in self._handlers and frame.kind in LATER:
            self._take_up(_duty_for(frame.kind, self._wire))
        handler = self._handlers.get(frame.kind)
        if handler is None:
            self._wire.refuse(frame, f"this link knows no request {frame.kind!r}")
            return
        try:
            handler(frame)
        except Exception as error:  # noqa: BLE001 (the controller is told, whatever it is)
            self._wire.refuse(frame, said(error))

    def _reply(self, kind: str, data: Dict[str, Any], payload: bytes = b"") -> None:
        self._unsent += Frame(kind, data, payload).pack()


def _duty_for(kind: str, wire: Wire) -> Duty:
    """Return what answers a kind of request that no launch makes: it shall not wait for this code.

    A host compiles it anew for every link.
    """
    if LATER[kind] == "commands":
        from runner.host.agent.exec import Commands

        return Commands(wire)
    if LATER[kind] == "fetching":
        from runner.host.agent.fetch import Fetching

        return Fetching(wire)
    if LATER[kind] == "dumping":
        from runner.host.agent.stacks import Dumping

        return Dumping(wire)
    if LATER[kind] == "probing":
        from runner.host.agent.netcheck import Probing

        return Probing(wire)
    from runner.host.agent.runs import Keeping

    return Keeping(wire)


def main(programs: Mapping[str, str]) -> NoReturn:
    """Take over the standard streams and serve; nothing else may write to them.

    `programs` are the texts of those of our files that become files on this host.
    """
    inbound, outbound = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Link(inbound, outbound, programs).serve()
    sys.exit(0)
