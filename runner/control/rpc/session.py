"""Session with the agent on one host, and the connector that opens it.

Every frame goes to one inbox that all sessions share, as (session, frame); a frame of kind
"closed" is the last one of a session and says why it ended.
"""

from __future__ import annotations

import functools
import itertools
import queue
import re
import threading
import time
from collections.abc import Callable
from typing import Any

from runner.control.rpc import bootstrap
from runner.core.errors import NotReady
from runner.core.replies import checked_reply
from runner.core.spec import Node, Spec
from runner.core.wire.codec import INITIAL_CREDIT, MAGIC, Frame, FrameDecoder, FrameError
from runner.transport.base import Channel, Transport

MAX_BANNER = 64 << 10

SEND_SLICE = 64 << 10
"""Bytes sent at once: the progress of a long push is known after each slice."""

MAX_UNREAD = 64 << 20
"""Bytes that a host may have in the inbox: far more than it is asked for at once."""

MAX_DRIFT_S = 0.05
"""How far two clocks may drift apart during a session without having been set."""

REBOOT_THRESHOLD_S = 600.0
"""A larger change between the two clocks of a host means that it was rebooted."""

MIN_PROGRESS_BYTES = 1 << 10
"""A dead connection accepts less than this too, so it is no sign of life."""

CLOSE_WAIT_S = 0.1
"""The time that a channel usually takes to close; that of a silent host is left to itself."""

AHEAD_S = 0.5
MAX_AHEAD = 8 << 20
"""How far a stream may be ahead: in seconds of its speed, and in bytes."""

MEASURE_S = 0.25
"""How long the speed of a stream is measured."""


class Inbox:
    """The queue of all sessions; signal handlers put into it too (session None)."""

    def __init__(self) -> None:
        self._frames: queue.SimpleQueue[tuple[HostSession | None, Frame]] = queue.SimpleQueue()

    def put(self, item: tuple[HostSession | None, Frame]) -> None:
        self._frames.put(item)  # which is reentrant

    def get(self, timeout: float) -> tuple[HostSession | None, Frame]:
        """Return the next frame, and tell its session; raise queue.Empty."""
        session, frame = self._frames.get(timeout=timeout)
        if session is not None:
            session.on_taken(frame)
        return session, frame

    def empty(self) -> bool:
        return self._frames.empty()


class Window:
    """How many bytes of one stream, up or down, are under way, and how many may be.

    It is ahead by what is taken of it in half a second, so that a stop overtakes the rest.
    """

    def __init__(self, ahead: int = 0) -> None:
        self.ahead = ahead
        self._limit = INITIAL_CREDIT
        self._taken = 0
        self._since = time.monotonic()

    @property
    def room(self) -> int:
        return max(0, self._limit - self.ahead)

    def on_taken(self, size: int) -> None:
        self.ahead = max(0, self.ahead - size)
        self._taken += size
        elapsed_s = time.monotonic() - self._since
        if elapsed_s >= MEASURE_S:
            limit = int(AHEAD_S * self._taken / elapsed_s)
            self._limit = min(MAX_AHEAD, max(INITIAL_CREDIT, limit))
            self._taken = 0
            self._since += elapsed_s

    def grant(self) -> int:
        """Return how many bytes more may be sent, which are under way then; 0 while it is few."""
        size = self.room
        if size < self._limit // 4:
            return 0
        self.ahead += size
        return size


class HostSession:
    """One connection to one node: a thread reads, a thread writes; it has no state of a run.

    It is large on purpose: both threads, and whoever waits for the host, share it.
    """

    def __init__(self, node: Node, channel: Channel, inbox: Inbox, boot_line: bytes = b"") -> None:
        self.node = node
        self.last_heard = time.monotonic()
        self.last_sent = self.last_heard  # so many bytes that the other side must be reading
        self.banner = b""  # what was received before the first frame
        self.has_shell = False  # a program of ours was started at the other end
        self.handshake_done = False  # the agent runs at the other end
        self.closed_locally = False
        self.rejected = ""  # why the host is not believed any more
        self.abandoned: set[int] = set()  # ids of requests whose replies nobody waits for any more
        self._channel = channel
        self._inbox = inbox
        self._outbox: queue.SimpleQueue[tuple[bytes, ...] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._unread_bytes = 0  # of the frames in the inbox
        self._is_held = False  # what it streams waits to be shown
        self._window = Window(INITIAL_CREDIT)
        self._ids = itertools.count(1)
        self.clock = ClockOffset()
        self._closed = threading.Event()
        self._boot_line = boot_line
        self._boot_answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True, name=f"{work.__name__} {node.name}").start()

    def request(self, kind: str, data: dict[str, Any] | None = None, payload: bytes = b"") -> int:
        request_id = next(self._ids)
        if kind == "ping":
            self.clock.on_ping(request_id)
        frame = Frame(kind, {"id": request_id, **(data or {})}, payload)
        self.send(frame.header_bytes(), payload)
        return request_id

    def send(self, *parts: bytes) -> None:
        """Queue bytes, such as a packed frame in two parts, so that sessions share the payload."""
        self._outbox.put(parts)

    def on_taken(self, frame: Frame) -> None:
        """Note that a frame was taken out of the inbox: of a stream, more may come."""
        with self._lock:
            self._unread_bytes -= frame.size
        if frame.kind == "data":
            self._window.on_taken(len(frame.payload))
            self._grant()

    def hold(self, *, is_held: bool) -> None:
        """Have the host stream no more than is under way, or go on."""
        self._is_held = is_held
        self._grant()

    def _grant(self) -> None:
        if not self._is_held and (size := self._window.grant()):
            self.request("credit", {"bytes": size})

    @property
    def clock_offset(self) -> float:
        """How far the host's clock is ahead of this machine's, in seconds."""
        return self.clock.mono_epoch - self.clock.offset - (time.time() - time.monotonic())

    @property
    def idle_s(self) -> float:
        """Seconds since the last sign of life of the other side."""
        return time.monotonic() - max(self.last_heard, self.last_sent)

    @property
    def closed(self) -> bool:
        return self._closed.is_set()

    def close(self) -> None:
        self.closed_locally = True
        self._closed.set()
        self._stop_writing()
        closer = threading.Thread(target=self._channel.close, daemon=True)
        closer.start()
        closer.join(CLOSE_WAIT_S)

    def _stop_writing(self) -> None:
        self._boot_answers.put("")
        self._outbox.put(None)

    def reject(self, error: Exception) -> None:
        """Close the connection to a host that sent what cannot be processed."""
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        self.rejected = self.rejected or f"it sent {reason:.500}"
        self._channel.close()

    def _read(self) -> None:
        reason = "the connection ended"
        try:
            self._read_frames()
            if self._channel.ended:
                reason = self._channel.ended.reason
        except OSError as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 (whatever a host sends, its end is reported)
            self.reject(error)
        self._closed.set()
        self._stop_writing()
        self._inbox.put((self, Frame("closed", {"reason": self.rejected or reason})))

    def _read_frames(self) -> None:
        decoder = FrameDecoder()
        rest = self._skip_banner()
        for chunk in itertools.chain([rest], iter(self._channel.read, b"")):
            self.last_heard = time.monotonic()
            for frame in decoder.feed(chunk):
                self._on_frame(checked_reply(frame))

    def _skip_banner(self) -> bytes:
        buffer = b""
        while True:
            chunk = self._channel.read()
            buffer = bootstrap.BOOT_ANSWER.sub(self._on_boot_answer, buffer + chunk)
            if bootstrap.SHELL_STARTED in buffer:
                self.has_shell = True
                buffer = buffer.replace(bootstrap.SHELL_STARTED, b"")
            banner, magic, rest = buffer.partition(MAGIC)
            self.banner = banner[-MAX_BANNER:]
            if magic:
                self._boot_answers.put("")
                self.handshake_done = True
                self.last_heard = time.monotonic()
                return rest
            if not chunk:
                return b""
            buffer = buffer[-MAX_BANNER:]

    def _on_frame(self, frame: Frame) -> None:
        if "mono" in frame.data:
            self.clock.on_pong(frame.data["id"], frame.data["mono"], frame.data["wall"])
        if frame.data.get("id") in self.abandoned:
            return
        with self._lock:
            self._unread_bytes += frame.size
            if self._unread_bytes > MAX_UNREAD:
                raise FrameError("more than it may")
        self._inbox.put((self, frame))

    def _on_boot_answer(self, answer: re.Match[bytes]) -> bytes:
        self._boot_answers.put(answer[1].decode())
        return b""

    def _write(self) -> None:
        try:
            if self._boot_line:
                self._send_now(self._boot_line)
                if key := self._boot_answers.get():
                    self._send_now(bootstrap.archive_for(key))
            while (parts := self._outbox.get()) is not None:
                for data in parts:
                    self._send_now(data)
        except OSError:
            return  # the reader reports it

    def _send_now(self, data: bytes) -> None:
        for start in range(0, len(data), SEND_SLICE):
            part = data[start : start + SEND_SLICE]
            self._channel.write(part)
            if len(part) >= MIN_PROGRESS_BYTES:
                self.last_sent = time.monotonic()


class ClockOffset:
    """The offset of a host's monotonic clock from this machine's, by the fastest ping so far."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.mono_epoch = 0.0  # the host's wall clock when its monotonic clock was 0
        self._pings: dict[int, float] = {}
        self._best_rtt_s = float("inf")

    def on_ping(self, ping_id: int) -> None:
        self._pings[ping_id] = time.monotonic()

    def to_local(self, mono: float, wall: float) -> float:
        """Convert a time on the host's clocks to this machine's monotonic clock.

        A reboot resets the host's monotonic clock; earlier times are converted by its wall clock.
        """
        if abs(wall - mono - self.mono_epoch) > REBOOT_THRESHOLD_S:
            mono = wall - self.mono_epoch
        return mono + self.offset

    def on_pong(self, ping_id: int | None, mono: float, wall: float) -> None:
        """Take the host's clocks as they were half a round trip ago."""
        now = time.monotonic()
        sent_at = self._pings.pop(ping_id, None) if ping_id is not None else None
        if sent_at is None:
            if self._best_rtt_s == float("inf"):
                self.offset = now - mono
                self.mono_epoch = wall - mono
            return
        rtt_s = now - sent_at
        offset = (now + sent_at) / 2 - mono
        # A larger jump than both round trips allow means that a machine was suspended.
        if (
            rtt_s < self._best_rtt_s
            or abs(offset - self.offset) > (rtt_s + self._best_rtt_s) / 2 + MAX_DRIFT_S
        ):
            self._best_rtt_s = rtt_s
            self.offset = offset
            self.mono_epoch = wall - mono


class Connector:
    """Connections to the nodes of one spec; a transport is made when it is first needed."""

    def __init__(self, spec: Spec, on_note: Callable[[str], None]) -> None:
        self.spec = spec
        self._on_note = on_note
        self._transports: dict[str, Transport] = {}
        self._lock = threading.Lock()
        self._opened: list[Channel] = []

    def open(self, node: Node, inbox: Inbox) -> HostSession:
        """Connect to `node` and boot our agent there; raise NotReady if it cannot be reached."""
        words = bootstrap.boot_command(self.spec, node)
        connection = self.transport(node.transport).connect(node)
        try:
            channel = connection.start(words)
        except NotReady:
            connection.close()
            raise
        with self._lock:
            self._opened = [each for each in self._opened if each.ended is None]
            self._opened.append(channel)
        return HostSession(node, channel, inbox, bootstrap.boot_line())

    def transport(self, kind: str) -> Transport:
        with self._lock:
            if kind not in self._transports:
                self._transports[kind] = self._make_transport(kind)
            return self._transports[kind]

    def _make_transport(self, kind: str) -> Transport:
        if kind == "ssh":
            from runner.transport.fabric import HostConnection
            from runner.transport.logins import SshTransport

            make = functools.partial(HostConnection, self.spec.cluster.ssh, self._on_note)
            return SshTransport(self.spec.cluster.ssh, make)
        if kind == "srun":
            from runner.transport.srun import SrunTransport

            return SrunTransport(self.spec.cluster.slurm.job_id)
        from runner.transport.process import LocalTransport

        if kind == "local":
            return LocalTransport()
        from runner.transport.logins import SshTransport
        from runner.transport.process import OpensshConnection

        ssh = self.spec.cluster.ssh
        return SshTransport(ssh, functools.partial(OpensshConnection, ssh))

    def close(self) -> None:
        """End every connection; those to jump hosts first: then none through them can block."""
        with self._lock:
            for transport in self._transports.values():
                transport.close()
        closers = [threading.Thread(target=channel.close) for channel in self._opened]
        for closer in closers:
            closer.start()
        for closer in closers:
            closer.join()
