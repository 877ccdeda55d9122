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
from runner.core.protocol.frames import MAGIC, Frame, Unpacker, WireError
from runner.transport.base import Channel

MAX_BANNER = 64 << 10

SLICE = 64 << 10
"""Bytes that are handed on at once: how far a long push is, is known after each."""

DRIFT_S = 0.05
"""What two clocks may drift apart in the life of a session without being set anew."""

BOOT_S = 600.0
"""Two clocks of one host that part by more in the course of a run: it was booted in between."""

BULK = 1 << 10
"""Less than this is taken by a wire that leads nowhere, too, and says nothing of the other side."""

Inbox = queue.SimpleQueue[tuple["Session | None", Frame]]
"""A SimpleQueue: signal handlers put into it too (session None), and its put is reentrant."""


class Session:
    """One wire to one node.

    Attributes:
        node: Where it leads.
        heard: When anything came in last, on our monotonic clock.
        sent: When it last took so much that somebody must be there who takes it.
        unsent: Bytes queued that it has not taken yet.
        banner: What came before the first frame.
        met: Whether our code runs at the other end.
        dropped: Whether we ended it ourselves: what still comes over it means nothing.
    """

    def __init__(self, node: Node, channel: Channel, inbox: Inbox) -> None:
        self.node = node
        self.heard = self.sent = time.monotonic()
        self.unsent = 0
        self.banner = b""
        self.met = False
        self.dropped = False
        self._channel = channel
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._clock = Clock()
        self._closed = threading.Event()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name=f"{work.__name__} {node.name}").start()

    def send_raw(self, data: bytes) -> None:
        """Queue bytes that are no frame (the boot code's stdin)."""
        self._queue(data)

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        """Queue a request; return the id its answer will carry."""
        number = next(self._ids)
        if kind == "ping":
            self._clock.asked(number)
        self._queue(Frame(kind, {"id": number, **(data or {})}, payload).pack())
        return number

    def share(self, head: bytes, payload: bytes) -> None:
        """Queue a packed frame in two parts: many sessions may queue the same payload."""
        self._queue(head)
        self._queue(payload)

    def _queue(self, data: bytes) -> None:
        with self._lock:
            self.unsent += len(data)
        self._outbox.put(data)

    def to_controller_clock(self, mono: float, wall: float) -> float:
        """Return when a moment on the host's two clocks was on our monotonic one."""
        return self._clock.ours(mono, wall)

    @property
    def skew(self) -> float:
        """How far the host's clock is ahead of ours, in seconds."""
        return self._clock.epoch - self._clock.offset - (time.time() - time.monotonic())

    @property
    def silence(self) -> float:
        """Seconds since the other side said anything, or took anything of size."""
        return time.monotonic() - max(self.heard, self.sent)

    @property
    def closed(self) -> bool:
        """Whether the wire has ended."""
        return self._closed.is_set()

    def hand_over(self, inbox: Inbox) -> None:
        """Put all that comes from now on into another inbox."""
        self._inbox = inbox

    def close(self) -> None:
        """End the wire."""
        self.dropped = True
        self._closed.set()
        self._outbox.put(None)
        self._channel.close()

    def _read(self) -> None:
        unpacker = Unpacker()
        try:
            rest = self._skip_banner()
            for frame in unpacker.feed(rest):
                self._take(frame)
            while chunk := self._channel.recv():
                self.heard = time.monotonic()
                for frame in unpacker.feed(chunk):
                    self._take(frame)
            reason = "the link ended"
        except (OSError, WireError, ValueError, TypeError) as error:
            reason = str(error)
        self._closed.set()
        self._outbox.put(None)
        self._inbox.put((self, Frame("closed", {"reason": reason})))

    def _skip_banner(self) -> bytes:
        seen = b""
        while True:
            chunk = self._channel.recv()
            seen += chunk
            banner, magic, rest = seen.partition(MAGIC)
            self.banner = banner[-MAX_BANNER:]
            if magic:
                self.met = True
                self.heard = time.monotonic()
                return rest
            if not chunk:
                return b""
            seen = seen[-MAX_BANNER:]

    def _take(self, frame: Frame) -> None:
        if "mono" in frame.data:
            told = (float(frame.data[clock]) for clock in ("mono", "wall"))
            self._clock.told(frame.data.get("id"), *told)
        self._inbox.put((self, frame))

    def _write(self) -> None:
        try:
            while (data := self._outbox.get()) is not None:
                for start in range(0, len(data), SLICE):
                    part = data[start : start + SLICE]
                    self._channel.send(part)
                    if len(part) >= BULK:
                        self.sent = time.monotonic()
                    with self._lock:
                        self.unsent -= len(part)
        except OSError:
            return  # the reader says so


class Clock:
    """The offset between a host's monotonic clock and ours, from the quickest ping so far."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.epoch = 0.0  # its other clock when the monotonic one said 0
        self._asked: dict[int, float] = {}
        self._best = float("inf")

    def asked(self, number: int) -> None:
        """A ping is on its way."""
        self._asked[number] = time.monotonic()

    def ours(self, mono: float, wall: float) -> float:
        """Return when a moment on the host's clocks was on ours.

        The monotonic one began anew with each boot: what was before the last is told by the other.
        """
        if abs(wall - mono - self.epoch) > BOOT_S:
            mono = wall - self.epoch
        return mono + self.offset

    def told(self, number: int | None, mono: float, wall: float) -> None:
        """The host's clocks said so, half a round trip ago."""
        now = time.monotonic()
        asked = self._asked.pop(number, None) if number is not None else None
        if asked is None:
            if self._best == float("inf"):
                self.offset, self.epoch = now - mono, wall - mono
            return
        trip, offset = now - asked, (now + asked) / 2 - mono
        # Outside of what both trips allow, one of the clocks stood still: a machine was suspended.
        if trip < self._best or abs(offset - self.offset) > (trip + self._best) / 2 + DRIFT_S:
            self._best, self.offset, self.epoch = trip, offset, wall - mono
