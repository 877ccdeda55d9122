"""Channels to the agents of a job's nodes: all of them go over one session with its login node."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Protocol

from runner.core.protocol.frames import Frame


class LoginSession(Protocol):
    """The session that carries the channels."""

    def request(self, kind: str, data: dict[str, int], payload: bytes = b"") -> int:
        """Queue a request."""

    @property
    def closed(self) -> bool:
        """Whether the connection has ended."""


class JobChannel:
    """A `Channel` to the agent of one node."""

    def __init__(self, session: LoginSession, number: int) -> None:
        self._session, self._number = session, number
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._has_ended = False
        session.request("open_channel", {"channel": number})

    def put(self, data: bytes) -> None:
        """Take bytes from the agent; b"" is its end."""
        self._received.put(data)

    def recv(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        data = b"" if self._has_ended else self._received.get()
        self._has_ended = not data
        return data

    def send(self, data: bytes) -> None:
        """Pass on all of `data`; raise OSError when the connection is gone."""
        if self._session.closed or self._has_ended:
            raise BrokenPipeError("the connection to the login node is gone")
        self._session.request("to_channel", {"channel": self._number}, data)

    def close(self) -> None:
        """End the agent."""
        self._session.request("close_channel", {"channel": self._number})
        self.put(b"")


class ChannelHub:
    """The channels over one session; `next_frame` waits for its next frame."""

    def __init__(self, session: LoginSession, next_frame: Callable[[], Frame]) -> None:
        self._session, self._next_frame = session, next_frame
        self._channels: dict[int, JobChannel] = {}
        self._numbers = itertools.count(1)
        self._has_ended = False
        threading.Thread(target=self._pump, daemon=True, name="channels").start()

    @property
    def closed(self) -> bool:
        """Whether the session has ended: channels need another one."""
        return self._session.closed

    def open(self) -> JobChannel:
        """Open a channel."""
        number = next(self._numbers)
        channel = self._channels[number] = JobChannel(self._session, number)
        if self._has_ended:  # perhaps before the channel was among those that are told
            channel.put(b"")
        return channel

    def _pump(self) -> None:
        while True:
            frame = self._next_frame()
            if frame.kind == "from_channel":
                number = frame.data["channel"]
                channel = self._channels.get(number)
                if channel is not None:
                    channel.put(frame.payload)
                if not frame.payload:
                    self._channels.pop(number, None)
            elif frame.kind == "closed":
                self._has_ended = True
                for channel in list(self._channels.values()):
                    channel.put(b"")
                return
