"""The controller's end of one wire: a thread that reads, a thread that writes, no state of a run.

Everything that comes in goes to one inbox that all sessions share, as (session, frame); a frame
of kind "closed" says that nothing more will come, and why.
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from typing import Any

from runner.core.model.spec import Node
from runner.core.protocol.frames import MAGIC, Frame, FrameDecoder, FrameError
from runner.transport.base import Channel

MAX_BANNER = 64 << 10

SEND_SLICE = 64 << 10
"""Bytes that are handed on at once: how far a long push is, is known after each."""

MAX_DRIFT_S = 0.05
"""What two clocks may drift apart in the life of a session without being set anew."""

REBOOT_THRESHOLD_S = 600.0
"""Two clocks of one host that part by more in the course of a run: it was booted in between."""

MIN_PROGRESS_BYTES = 1 << 10
"""Less than this is taken by a wire that leads nowhere, too, and says nothing of the other side."""

Inbox = queue.SimpleQueue[tuple["HostSession | None", Frame]]
"""A SimpleQueue: signal handlers put into it too (session None), and its put is reentrant."""


class HostSession:
    """One wire to one node.

    Attributes:
        node: Where it leads.
        last_heard: When anything came in last, on our monotonic clock.
        last_sent: When it last took so much that somebody must be there who takes it.
        unsent: Bytes queued that it has not taken yet.
        banner: What came before the first frame.
        handshake_done: Whether our code runs at the other end.
        closed_locally: Whether we ended it ourselves: what still comes over it means nothing.
    """

    def __init__(self, node: Node, channel: Channel, inbox: Inbox) -> None:
        self.node = node
        self.last_heard = self.last_sent = time.monotonic()
        self.unsent = 0
        self.banner = b""
        self.handshake_done = False
        self.closed_locally = False
        self._channel = channel
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._clock = ClockOffset()
        self._closed = threading.Event()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name=f"{work.__name__} {node.name}").start()

    def send_raw(self, data: bytes) -> None:
        """Queue bytes that are no frame (the boot code's stdin)."""
        self._enqueue(data)

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        """Queue a request; return the id its answer will carry."""
        request_id = next(self._ids)
        if kind == "ping":
            self._clock.on_ping(request_id)
        self._enqueue(Frame(kind, {"id": request_id, **(data or {})}, payload).pack())
        return request_id

    def send_shared(self, header: bytes, payload: bytes) -> None:
        """Queue a packed frame in two parts: many sessions may queue the same payload."""
        self._enqueue(header)
        self._enqueue(payload)

    def _enqueue(self, data: bytes) -> None:
        with self._lock:
            self.unsent += len(data)
        self._outbox.put(data)

    def to_controller_clock(self, mono: float, wall: float) -> float:
        """Return when a moment on the host's two clocks was on our monotonic one."""
        return self._clock.to_local(mono, wall)

    @property
    def clock_offset(self) -> float:
        """How far the host's clock is ahead of ours, in seconds."""
        return self._clock.mono_epoch - self._clock.offset - (time.time() - time.monotonic())

    @property
    def idle_s(self) -> float:
        """Seconds since the other side said anything, or took anything of size."""
        return time.monotonic() - max(self.last_heard, self.last_sent)

    @property
    def closed(self) -> bool:
        """Whether the wire has ended."""
        return self._closed.is_set()

    def redirect(self, inbox: Inbox) -> None:
        """Put all that comes from now on into another inbox."""
        self._inbox = inbox

    def close(self) -> None:
        """End the wire."""
        self.closed_locally = True
        self._closed.set()
        self._outbox.put(None)
        self._channel.close()

    def _read(self) -> None:
        unpacker = FrameDecoder()
        try:
            rest = self._skip_banner()
            for frame in unpacker.feed(rest):
                self._on_frame(frame)
            while chunk := self._channel.recv():
                self.last_heard = time.monotonic()
                for frame in unpacker.feed(chunk):
                    self._on_frame(frame)
            reason = "the link ended"
        except (OSError, FrameError, ValueError, TypeError) as error:
            reason = str(error)
        self._closed.set()
        self._outbox.put(None)
        self._inbox.put((self, Frame("closed", {"reason": reason})))

    def _skip_banner(self) -> bytes:
        buffer = b""
        while True:
            chunk = self._channel.recv()
            buffer += chunk
            banner, magic, rest = buffer.partition(MAGIC)
            self.banner = banner[-MAX_BANNER:]
            if magic:
                self.handshake_done = True
                self.last_heard = time.monotonic()
                return rest
            if not chunk:
                return b""
            buffer = buffer[-MAX_BANNER:]

    def _on_frame(self, frame: Frame) -> None:
        if "mono" in frame.data:
            clocks = (float(frame.data[clock]) for clock in ("mono", "wall"))
            self._clock.on_pong(frame.data.get("id"), *clocks)
        self._inbox.put((self, frame))

    def _write(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                for start in range(0, len(data), SEND_SLICE):
                    part = data[start : start + SEND_SLICE]
                    self._channel.send(part)
                    if len(part) >= MIN_PROGRESS_BYTES:
                        self.last_sent = time.monotonic()
                    with self._lock:
                        self.unsent -= len(part)
        except OSError:
            return  # the reader says so


class ClockOffset:
    """The offset between a host's monotonic clock and ours, from the quickest ping so far."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.mono_epoch = 0.0  # its other clock when the monotonic one said 0
        self._pings: dict[int, float] = {}
        self._best_rtt_s = float("inf")

    def on_ping(self, ping_id: int) -> None:
        """A ping is on its way."""
        self._pings[ping_id] = time.monotonic()

    def to_local(self, mono: float, wall: float) -> float:
        """Return when a moment on the host's clocks was on ours.

        The monotonic one began anew with each boot: what was before the last is told by the other.
        """
        if abs(wall - mono - self.mono_epoch) > REBOOT_THRESHOLD_S:
            mono = wall - self.mono_epoch
        return mono + self.offset

    def on_pong(self, ping_id: int | None, mono: float, wall: float) -> None:
        """The host's clocks said so, half a round trip ago."""
        now = time.monotonic()
        sent_at = self._pings.pop(ping_id, None) if ping_id is not None else None
        if sent_at is None:
            if self._best_rtt_s == float("inf"):
                self.offset, self.mono_epoch = now - mono, wall - mono
            return
        rtt_s, offset = now - sent_at, (now + sent_at) / 2 - mono
        # Outside of what both trips allow, one of the clocks stood still: a machine was suspended.
        if (
            rtt_s < self._best_rtt_s
            or abs(offset - self.offset) > (rtt_s + self._best_rtt_s) / 2 + MAX_DRIFT_S
        ):
            self._best_rtt_s, self.offset, self.mono_epoch = rtt_s, offset, wall - mono
