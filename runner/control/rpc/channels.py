"""Channels to the agents of a job's nodes: all of them go over one session with its login node."""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from runner.core.protocol.frames import Frame, FrameError
from runner.transport.base import Ending

if TYPE_CHECKING:
    from runner.control.rpc.session import HostSession

MAX_UNREAD = 64 << 20
"""Bytes kept for a channel: its agent is never asked for so many that are not in the inbox yet."""


class JobChannel:
    """A `Channel` to the agent of one node."""

    def __init__(
        self, session: HostSession, number: int, forget: Callable[[int], object] = id
    ) -> None:
        self._session = session
        self._number = number
        self._forget = forget
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._unread = 0  # bytes in memory
        self._lock = threading.Lock()
        self._has_ended = False
        self.is_flooded = False
        self.ended: Ending | None = None  # the reason is the session's with the login node

    def put(self, data: bytes) -> None:
        """Take bytes from the agent; b"" is its end."""
        with self._lock:
            self._unread += sys.getsizeof(data)
            self.is_flooded = self.is_flooded or self._unread > MAX_UNREAD
        self._received.put(data)

    def read(self) -> bytes:
        """Return the next bytes, b"" at the end; raise FrameError at that of a flood."""
        if self._has_ended:
            return b""
        data = self._received.get()
        with self._lock:
            self._unread -= sys.getsizeof(data)
        self._has_ended = not data
        if self._has_ended and self.is_flooded:
            raise FrameError("more than it was asked for")
        return data

    def write(self, data: bytes) -> None:
        """Pass on all of `data`; raise OSError when the connection is gone."""
        if self._session.closed or self._has_ended:
            raise BrokenPipeError("the connection to the login node is gone")
        self._session.request("to_channel", {"channel": self._number}, data)

    def close(self) -> None:
        """End the agent."""
        self._forget(self._number)
        self._session.request("close_channel", {"channel": self._number})
        self.put(b"")


class ChannelHub:
    """The channels over one session; `next_frame` waits for its next frame."""

    def __init__(self, session: HostSession, next_frame: Callable[[], Frame]) -> None:
        self._session = session
        self._next_frame = next_frame
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
        channel = self._channels[number] = JobChannel(self._session, number, self._forget)
        self._session.request("open_channel", {"channel": number})
        if self._has_ended:  # perhaps before the channel was among those that are told
            channel.put(b"")
        return channel

    def _forget(self, number: int) -> None:
        self._channels.pop(number, None)

    def _pump(self) -> None:
        while self._pass_on(self._next_frame()):
            pass
        self._has_ended = True
        for channel in list(self._channels.values()):
            channel.put(b"")

    def _pass_on(self, frame: Frame) -> bool:
        """Give a frame to its channel; return False at the end of the session."""
        if frame.kind == "from_channel":
            number = frame.data["channel"]
            channel = self._channels.get(number)
            if channel is not None:
                channel.put(frame.payload)
                if channel.is_flooded:  # others share the session: it cannot wait for one
                    self._session.close()
                    return False
            if not frame.payload:
                self._forget(number)
        return frame.kind != "closed"
