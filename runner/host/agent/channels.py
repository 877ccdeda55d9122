"""Channel requests: several agents in one process on a login node, each about a node of a job.

A thread serves each of them, over one end of a pair of sockets; the other end is read here, and
what comes from it is passed on with the number of its channel.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Dict, Sequence

from runner.core.protocol.frames import Frame
from runner.host.agent.server import AgentContext, AgentServer, RequestHandler

if TYPE_CHECKING:
    from runner.host.process.importer import HostCode

READ_SIZE = 1 << 18
PRELOADED = ("facts", "runs", "follow", "fetch", "dump_stacks", "kill_leftovers")
"""Kinds of requests whose modules are loaded before threads would load them at once."""


class Handler(RequestHandler):
    """The open channels of one connection."""

    def __init__(self, context: AgentContext) -> None:
        super().__init__(context)
        self._sockets: Dict[int, socket.socket] = {}
        self._unsent: Dict[int, bytearray] = {}

    def on_open_channel(self, frame: Frame) -> None:
        """Start an agent for a channel."""
        for kind in PRELOADED:
            self.context.get_handler(kind)
        near, far = socket.socketpair()
        near.setblocking(False)
        number = int(frame.data["channel"])
        self._sockets[number], self._unsent[number] = near, bytearray()
        serve = threading.Thread(target=_serve, args=(far, self.context.code), daemon=True)
        serve.start()

    def on_to_channel(self, frame: Frame) -> None:
        """Take bytes for the agent of a channel."""
        number = int(frame.data["channel"])
        if number in self._unsent:
            self._unsent[number] += frame.payload
            self._send(number)

    def on_close_channel(self, frame: Frame) -> None:
        """End the agent of a channel."""
        self._close(int(frame.data["channel"]))

    @property
    def pipes(self) -> Sequence[int]:
        """The sockets of all channels."""
        return [each.fileno() for each in self._sockets.values()]

    @property
    def busy(self) -> bool:
        """Whether a channel has not taken all that was sent to it."""
        return any(self._unsent.values())

    def advance(self) -> None:
        """Pass on what the agents have sent."""
        for number in [*self._sockets]:
            self._send(number)
            if number in self._sockets and self.context.can_send():
                self._receive(number)

    def _send(self, number: int) -> None:
        unsent = self._unsent[number]
        try:
            while unsent:
                del unsent[: self._sockets[number].send(unsent)]
        except BlockingIOError:  # its agent takes no more for now
            return
        except OSError:  # its agent has ended
            unsent.clear()

    def _receive(self, number: int) -> None:
        try:
            data = self._sockets[number].recv(READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self.context.reply("from_channel", {"channel": number}, data)
        if not data:
            self._close(number)

    def _close(self, number: int) -> None:
        if number in self._sockets:
            self._sockets.pop(number).close()
            del self._unsent[number]

    def close(self) -> None:
        """End all channels."""
        for number in [*self._sockets]:
            self._close(number)


def _serve(far: socket.socket, code: HostCode) -> None:
    with far, far.dup() as output:  # one descriptor can be polled for one thing
        AgentServer(far.fileno(), output.fileno(), code).serve()
