"""Requests that have this host talk to others: it tests the connections, and answers theirs.

What listens or dials is a child.
"""

from __future__ import annotations

import errno
import functools
import os
import select
import socket
import struct
import time
from collections import deque
from typing import Any, Callable, Dict, List, Optional, Sequence

from runner.core.codec import decode, encode
from runner.core.model.network_probe import HostProbe, Outcome, ProbeResult, Target
from runner.core.protocol.frames import Frame
from runner.host.agent.server import RequestHandler
from runner.host.facts import ports
from runner.host.peers.connection import (
    BACKLOG,
    CLIENT,
    Identity,
    Listener,
    PeerConnection,
    PeerDisconnected,
)
from runner.host.peers.dialler import Dialler
from runner.host.process.bounded_child import BoundedChild, report_facts, wait_all
from runner.host.process.event_loop import EventLoop
from runner.host.process.jobs import pause

LISTEN_TIMEOUT_S = 60.0  # after which a listener ends by itself
DIAL_TIMEOUT_S = 20.0
SUBJECT = "check"
MAX_CONCURRENT = 32  # on a slow line more of them would make each other look stalled
CONNECT_TIMEOUT_S = 3.5  # SYNs go out after 0, 1 and 3 s; the kernel waits 3 s for a neighbour
HANDSHAKE_TIMEOUT_S = 2.5
STALL_TIMEOUT_S = 2.5  # for the large packets to make no progress
PAD_BYTES = 7 << 10  # enough for packets of full size, also with jumbo frames
PAD_COUNT = 4
AUTH_TIMEOUT_S = 2.0  # for a connection to authenticate
MAX_UNAUTHENTICATED = 512  # far more than come at once: a refusal would look like a fault
POLL_S = 0.1
_POLL_MS = 50.0
_OUTCOME_BY_ERRNO = {
    errno.ECONNREFUSED: Outcome.REFUSED,
    errno.ETIMEDOUT: Outcome.TIMED_OUT,
    errno.ENETUNREACH: Outcome.NO_ROUTE,
    errno.EHOSTUNREACH: Outcome.UNREACHABLE,
    errno.ECONNRESET: Outcome.RESET,
    errno.EPIPE: Outcome.RESET,
}


def test_all(
    node: str,
    targets: Sequence[Target],
    token: bytes,
    on_result: Callable[[int, ProbeResult], None],
) -> None:
    """Test the connection to every target but `node`, our own; they know the same `token`.

    `on_result` takes the index of a target, and its result. The targets after our own come first,
    or all hosts would begin with the same.
    """
    start = next((index for index, target in enumerate(targets) if target.node == node), 0)
    order = [*range(start, len(targets)), *range(start)]
    pending = deque(index for index in order if targets[index].node != node)
    active: Dict[int, ConnectionTest] = {}
    while pending or active:
        while pending and len(active) < MAX_CONCURRENT:
            index = pending.popleft()
            active[index] = ConnectionTest(targets[index], node, token)
        poll = select.poll()
        by_fd = {test.register(poll): test for test in active.values() if test.result is None}
        for fd, _ in poll.poll(_POLL_MS if by_fd else 0):
            by_fd[fd].advance()
        for index, test in list(active.items()):
            test.check_timeout()
            if test.result is not None:
                on_result(index, test.result)
                del active[index]


class ConnectionTest:
    """One connection: made, authenticated, and filled with large packets."""

    def __init__(self, target: Target, node: str, token: bytes) -> None:
        self.result: Optional[ProbeResult] = None  # as long as it runs
        self._target = target
        self._identity = Identity(node, SUBJECT, token)
        self._last_progress = time.monotonic()
        self._connection: Optional[PeerConnection] = None
        self._pads_left = PAD_COUNT
        self._count_requested = False
        self._bytes_acked = 0
        self._dialler = Dialler(target.address, target.port, CONNECT_TIMEOUT_S)
        self._socket: Optional[socket.socket] = None
        self._dial()

    def register(self, poll: select.poll) -> int:
        """Have our descriptor watched for what we wait for; return it."""
        peer = self._connection
        descriptor = (peer or self._dialler).fileno()
        events = select.POLLOUT
        if peer is not None:
            wants_write = peer.name and (self._pads_left or not peer.flushed)
            events = select.POLLIN | (select.POLLOUT if wants_write else 0)
        poll.register(descriptor, events)
        return descriptor

    def advance(self) -> None:
        """Continue: the connection can be read, or written to."""
        if self._connection is None:
            self._dial()
            return
        peer = self._connection
        peer.flush()
        try:
            self._receive(peer)
        except PeerDisconnected as disconnect:
            cause = disconnect.__cause__
            if isinstance(cause, OSError):
                self._fail(cause.errno or 0)
            else:
                self._finish(Outcome.RESET if peer.name else Outcome.WRONG_PEER)
        if self.result is None:
            self._send_padding(peer)

    def _dial(self) -> None:
        self._socket = self._dialler.poll()
        if self._dialler.error:
            self._fail(self._dialler.error)
        elif self._socket is not None:
            self._last_progress = time.monotonic()
            self._connection = PeerConnection(self._socket, self._identity, CLIENT)
            self._connection.send(type="hello")

    def check_timeout(self) -> None:
        """End the test if a step has taken too long."""
        if self.result is not None:
            return
        now = time.monotonic()
        if self._connection is None:
            self._dial()
        elif not self._connection.name:
            if now > self._last_progress + HANDSHAKE_TIMEOUT_S:
                self._finish(Outcome.NO_GREETING)
        else:
            acked = self._tcp_info_field("=Q", 120)
            if acked != self._bytes_acked:
                self._bytes_acked = acked
                self._last_progress = now
            elif now > self._last_progress + STALL_TIMEOUT_S:
                self._finish(Outcome.STALLED)

    def _receive(self, peer: PeerConnection) -> None:
        for message in peer.receive():
            if peer.name != self._target.node:
                self._finish(Outcome.WRONG_PEER, peer.name)
                return
            self._last_progress = time.monotonic()
            if message.get("type") == "count":
                complete = message.get("bytes") == PAD_BYTES * PAD_COUNT
                self._finish(Outcome.REACHED if complete else Outcome.FAILED)
                return

    def _send_padding(self, peer: PeerConnection) -> None:
        while peer.name and self._pads_left and peer.flushed:
            peer.send(type="padding", padding="x" * PAD_BYTES)
            self._pads_left -= 1
        if peer.name and not self._pads_left and not self._count_requested:
            self._count_requested = True
            peer.send(type="count_request")

    def _fail(self, error: int) -> None:
        outcome = _OUTCOME_BY_ERRNO.get(error, Outcome.FAILED)
        self._finish(outcome, os.strerror(error) if outcome is Outcome.FAILED else "")

    def _finish(self, outcome: Outcome, detail: str = "") -> None:
        rtt_s = 0.0
        if self._connection is not None:
            least_us, last_us = (self._tcp_info_field("=I", offset) for offset in (148, 68))
            rtt_s = (least_us if 0 < least_us < 0xFFFFFFFF else last_us) / 1e6
            self._connection.close()
        self.result = ProbeResult(self._target, outcome, rtt_s, detail)

    def _tcp_info_field(self, struct_format: str, offset: int) -> int:
        """Return a field of the kernel's `struct tcp_info` (linux/tcp.h), 0 where it has none."""
        if self._socket is None:
            return 0
        tcp_info = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
        if len(tcp_info) < offset + struct.calcsize(struct_format):
            return 0
        return int(struct.unpack_from(struct_format, tcp_info, offset)[0])


def serve(
    node: str,
    token: bytes,
    address: str,
    reserved_port: int,
    parent_pid: int,
    report: Callable[..., None],
) -> None:
    """Listen at a port of `address`, and at the reserved one; answer until the parent ends.

    The reserved port is the master's, 0 for none. `report` takes `port`, or `error` if there is
    none; then `ready`.
    """
    sockets: List[socket.socket] = []
    try:
        sockets.append(_bind(address))
        report(port=sockets[0].getsockname()[1])
        if reserved_port:
            reserved = ports.bind_wildcard(reserved_port)
            reserved.listen(BACKLOG)
            sockets.append(reserved)
    except OSError as error:
        report(error=error.strerror or str(error))
    server = EchoServer(sockets, node, token)
    report(ready=True)
    while os.getppid() == parent_pid:
        server.poll_once()


class EchoServer:
    """Answers the hosts that know the token, and counts the bytes they send."""

    def __init__(self, sockets: List[socket.socket], node: str, token: bytes) -> None:
        self._byte_counts: Dict[PeerConnection, int] = {}
        self._loop = EventLoop()
        self._listeners = [
            Listener(
                sock,
                Identity(node, SUBJECT, token),
                self._loop,
                self._reply,
                lambda peer, _: self._drop(peer),
                auth_timeout_s=AUTH_TIMEOUT_S,
                max_unauthenticated=MAX_UNAUTHENTICATED,
            )
            for sock in sockets
        ]

    def poll_once(self) -> None:
        """Wait for a moment, and answer what has arrived."""
        self._loop.wait(POLL_S)
        for listener in self._listeners:
            listener.tick()
        for peer in self._byte_counts:
            peer.flush()

    def close(self) -> None:
        """Close all connections."""
        for listener in self._listeners:
            listener.close()
        for peer in [*self._byte_counts]:
            self._drop(peer)

    def _reply(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        self._byte_counts.setdefault(peer, 0)
        if message.get("type") == "hello":
            peer.send(type="hello")
        elif message.get("type") == "padding":
            self._byte_counts[peer] += len(str(message.get("padding", "")))
        elif message.get("type") == "count_request":
            peer.send(type="count", bytes=self._byte_counts[peer])

    def _drop(self, peer: PeerConnection) -> None:
        self._byte_counts.pop(peer, None)
        peer.close()


def _bind(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
    except OSError:
        sock.close()
        raise
    return sock


class Handler(RequestHandler):
    """The part of one host in a probe."""

    _listener: Optional[BoundedChild] = None

    def on_listen(self, frame: Frame) -> None:
        """Listen for the other hosts until this agent ends; the answer is the port."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        address = frame.data["addresses"][node]
        agent_pid = os.getpid()
        reserved_port, _, _ = self.context.require_facts().reserved.numbers
        arguments = (node, token, address, reserved_port, agent_pid, report_facts)
        self.close()
        child = BoundedChild(lambda: serve(*arguments), LISTEN_TIMEOUT_S)
        report = child.report()
        while "ready" not in report and child.code is None:
            pause(POLL_S)
            child.advance()
            report = child.report()
        self._listener = child
        failure = "" if "ready" in report else child.text or "its listener ended"
        error = failure or report.get("error", "")
        self.context.answer(frame, "listening", port=report.get("port", 0), error=error)

    def on_probe(self, frame: Frame) -> None:
        """Dial the other hosts; the answer is a HostProbe."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        targets = [decode(Target, target) for target in frame.data["targets"]]

        def report_result(target_index: int, result: ProbeResult) -> None:
            report_facts(**{str(target_index): encode(result)})

        results: Dict[str, Any] = {}
        if targets:
            dial = functools.partial(test_all, node, targets, token, report_result)
            child = BoundedChild(dial, DIAL_TIMEOUT_S)
            try:
                wait_all([child])
            finally:
                child.kill()
            if child.code and not child.timed_out:
                raise ValueError(child.text or f"its child ended with {child.code}")
            results = child.report()
        host_probe = HostProbe(
            results=tuple(decode(ProbeResult, result) for result in results.values())
        )
        self.context.answer(frame, "probed", result=encode(host_probe))

    def close(self) -> None:
        """End the listener."""
        if self._listener is not None:
            self._listener.kill()
            self._listener = None
