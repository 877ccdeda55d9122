"""Event streams: the server-sent events of all viewers, written by one thread that never blocks.

A viewer that has left is noticed at once, one that does not read when its buffer is full.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
import time

from runner.workflows.live.document import Document

MAX_STREAMS = 64
PING_S = 15.0
"""How often a stream says something: proxies and viewers drop silent ones."""

RETRY_MS = 2000
"""How long a browser waits before it connects again."""

STOPPED = b'data: {"stopped": true}\n\n'
"""The last event."""


class Stream:
    """One viewer's stream."""

    def __init__(self, connection: socket.socket, document: Document) -> None:
        self.connection, self.document = connection, document
        self.last_message = b""
        self.next_ping = 0.0

    def send_news(self, now: float) -> bool:
        """Send what is new, or due; return False if the viewer does not take it."""
        message = self.document.message()
        if self.last_message == message and now < self.next_ping:
            return True
        first = b"" if self.last_message else f"retry: {RETRY_MS}\n\n".encode()
        self.last_message, self.next_ping = message, now + PING_S
        return self.connection.send(first + message) == len(first + message)


class EventStreams(threading.Thread):
    """The thread that has all streams."""

    def __init__(self) -> None:
        super().__init__(daemon=True, name="events")
        self._selector = selectors.DefaultSelector()
        self._woken, self._waker = socket.socketpair()
        self._new = queue.SimpleQueue[Stream]()
        self._streams: dict[socket.socket, Stream] = {}
        self._count, self._lock, self._ended = 0, threading.Lock(), False
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._selector.register(self._woken, selectors.EVENT_READ)

    def reserve(self) -> bool:
        """Return whether there is room for one more stream, which is kept for it."""
        with self._lock:
            has_room = self._count < MAX_STREAMS and not self._ended
            self._count += has_room
        return has_room

    def release(self) -> None:
        """Give up a reservation."""
        with self._lock:
            self._count -= 1

    def add(self, connection: socket.socket, document: Document) -> None:
        """Take a connection, whose response has begun, in a place that was reserved."""
        connection.setblocking(False)
        document.touch()
        self._new.put(Stream(connection, document))
        self.wake()

    def wake(self) -> None:
        """Send what is new to all."""
        with contextlib.suppress(OSError):  # it is woken already, or has ended
            self._waker.send(b".")

    def close(self) -> None:
        """End all streams and the thread."""
        self._ended = True
        self.wake()

    def run(self) -> None:
        """Serve the streams until it is closed."""
        while not self._ended:
            for key, _ in self._selector.select(self._pause_s()):
                self._take_input(key.fileobj)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._begin(self._new.get_nowait())
            now = time.monotonic()
            for stream in list(self._streams.values()):
                try:
                    is_taken = stream.send_news(now)
                except OSError:
                    is_taken = False
                if not is_taken:
                    self._drop(stream)
        for stream in list(self._streams.values()):
            with contextlib.suppress(OSError):
                stream.connection.send(STOPPED)
            self._drop(stream)
        self._selector.close()
        for end in (self._woken, self._waker):
            end.close()

    def _pause_s(self) -> float:
        due_at = min((each.next_ping for each in self._streams.values()), default=None)
        return PING_S if due_at is None else max(0.0, due_at - time.monotonic())

    def _take_input(self, end: object) -> None:
        if end is self._woken:
            with contextlib.suppress(BlockingIOError):
                while self._woken.recv(4096):
                    pass
        elif isinstance(end, socket.socket):
            data = b""
            with contextlib.suppress(OSError):
                data = end.recv(4096)
            if not data:
                self._drop(self._streams[end])

    def _begin(self, stream: Stream) -> None:
        stream.document.stream_count += 1
        self._streams[stream.connection] = stream
        self._selector.register(stream.connection, selectors.EVENT_READ)

    def _drop(self, stream: Stream) -> None:
        stream.document.stream_count -= 1
        stream.document.touch()
        del self._streams[stream.connection]
        self._selector.unregister(stream.connection)
        stream.connection.close()
        self.release()
