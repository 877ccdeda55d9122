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
from runner.host.peers.dialler import Dialler
from runner.host.peers.links import BACKLOG, Link, LinkClosed, Listener, seal
from runner.host.process.bounded_child import BoundedChild, report_facts
from runner.host.process.event_loop import EventLoop

LISTEN_TIMEOUT_S = 60.0  # after which a listener ends by itself
DIAL_TIMEOUT_S = 20.0
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
        self._token = token
        self._hello = seal(token, {"node": node})
        self._padding = seal(token, {"node": node, "padding": "x" * PAD_BYTES})
        self._last_progress = time.monotonic()
        self._link: Optional[Link] = None
        self._pads_left = PAD_COUNT
        self._bytes_acked = 0
        self._dialler = Dialler(target.address, target.port, CONNECT_TIMEOUT_S)
        self._socket: Optional[socket.socket] = None
        self._dial()

    def register(self, poll: select.poll) -> int:
        """Have our descriptor watched for what we wait for; return it."""
        link = self._link
        descriptor = (link or self._dialler).fileno()
        events = select.POLLOUT
        if link is not None:
            wants_write = link.is_known and (self._pads_left or link.has_unsent)
            events = select.POLLIN | (select.POLLOUT if wants_write else 0)
        poll.register(descriptor, events)
        return descriptor

    def advance(self) -> None:
        """Continue: the connection can be read, or written to."""
        link = self._link
        if link is None:
            self._dial()
            return
        link.flush()
        try:
            self._receive(link)
        except LinkClosed as closed:
            cause = closed.__cause__
            if isinstance(cause, OSError):
                self._fail(cause.errno or 0)
            else:
                self._finish(Outcome.RESET if link.is_known else Outcome.WRONG_PEER)
        while self.result is None and link.is_known and self._pads_left and not link.has_unsent:
            link.send(self._padding)
            self._pads_left -= 1

    def _dial(self) -> None:
        self._socket = self._dialler.poll()
        if self._dialler.error:
            self._fail(self._dialler.error)
        elif self._socket is not None:
            self._last_progress = time.monotonic()
            self._link = Link(self._socket, self._token)
            self._link.send(self._hello)

    def check_timeout(self) -> None:
        """End the test if a step has taken too long."""
        if self.result is not None:
            return
        now = time.monotonic()
        if self._link is None:
            self._dial()
        elif not self._link.is_known:
            if now > self._last_progress + HANDSHAKE_TIMEOUT_S:
                self._finish(Outcome.NO_GREETING)
        else:
            acked = self._tcp_info_field("=Q", 120)
            if acked != self._bytes_acked:
                self._bytes_acked = acked
                self._last_progress = now
            elif now > self._last_progress + STALL_TIMEOUT_S:
                self._finish(Outcome.STALLED)

    def _receive(self, link: Link) -> None:
        for message in link.receive():
            if message.get("node") != self._target.node:
                self._finish(Outcome.WRONG_PEER, str(message.get("node")))
                return
            link.is_known = True
            self._last_progress = time.monotonic()
            if message.get("bytes") == PAD_BYTES * PAD_COUNT:
                self._finish(Outcome.REACHED)
                return

    def _fail(self, error: int) -> None:
        outcome = _OUTCOME_BY_ERRNO.get(error, Outcome.FAILED)
        self._finish(outcome, os.strerror(error) if outcome is Outcome.FAILED else "")

    def _finish(self, outcome: Outcome, detail: str = "") -> None:
        rtt_s = 0.0
        if self._link is not None:
            least_us, last_us = (self._tcp_info_field("=I", offset) for offset in (148, 68))
            rtt_s = (least_us if 0 < least_us < 0xFFFFFFFF else last_us) / 1e6
            self._link.close()
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
        self._sockets = sockets
        self._node = node
        self._token = token
        self._byte_counts: Dict[Link, int] = {}
        self._loop = EventLoop()
        self._listeners = [
            Listener(
                sock,
                token,
                self._loop,
                self,
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

    def close(self) -> None:
        """Listen no more."""
        for listener in self._listeners:
            listener.close()
        for sock in self._sockets:
            sock.close()

    def first_line(self) -> bytes:
        """Return who answers."""
        return seal(self._token, {"node": self._node})

    def take(self, link: Link, message: Dict[str, Any]) -> str:
        """Count what a host sends; tell it the sum."""
        count = self._byte_counts.get(link, 0) + len(str(message.get("padding", "")))
        self._byte_counts[link] = count
        if count:
            link.send(seal(self._token, {"node": self._node, "bytes": count}))
        return f"{message.get('node')} {link.fileno()}"  # each of its links counts

    def on_refused(self) -> None:
        """Do nothing: it opens no link."""


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

    _listen_request: Optional[Frame] = None
    _probe_request: Optional[Frame] = None

    def on_listen(self, frame: Frame) -> None:
        """Listen for the other hosts until this agent ends; the answer is the port."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        address = frame.data["addresses"][node]
        agent_pid = os.getpid()
        reserved_port, _ = self.context.require_facts().reserved.numbers
        arguments = (node, token, address, reserved_port, agent_pid, report_facts)
        self._listen_request = frame
        self._start("listener", lambda: serve(*arguments), LISTEN_TIMEOUT_S)

    def on_probe(self, frame: Frame) -> None:
        """Dial the other hosts; the answer is a HostProbe."""
        node = frame.data["node"]
        token = str(frame.data["token"]).encode()
        targets = [decode(Target, target) for target in frame.data["targets"]]

        def report_result(target_index: int, result: ProbeResult) -> None:
            report_facts(**{str(target_index): encode(result)})

        self._probe_request = frame
        dial = functools.partial(test_all, node, targets, token, report_result)
        self._start("dialer", dial if targets else None, DIAL_TIMEOUT_S)

    def _start(self, name: str, body: Optional[Callable[[], None]], limit_s: float) -> None:
        if name in self.children:
            self.children.pop(name).kill()
        if body is not None:
            self.children[name] = BoundedChild(body, limit_s)

    @property
    def busy(self) -> bool:
        """Whether an answer is pending."""
        return self._listen_request is not None or self._probe_request is not None

    def advance(self) -> None:
        """Answer with the results that are complete."""
        for child in self.children.values():
            child.advance()
        if self._listen_request is not None:
            self._reply_listening(self._listen_request)
        if self._probe_request is not None:
            self._reply_results(self._probe_request)

    def _reply_listening(self, frame: Frame) -> None:
        child = self.children["listener"]
        report = child.report()
        if "ready" not in report and child.code is None:
            return
        self._listen_request = None
        failure = "" if "ready" in report else child.text or "its listener ended"
        error = failure or report.get("error", "")
        self.context.answer(frame, "listening", port=report.get("port", 0), error=error)

    def _reply_results(self, frame: Frame) -> None:
        dialer = self.children.get("dialer")
        if dialer is not None and dialer.code is None:
            return
        self._probe_request = None
        if dialer is not None and dialer.code and not dialer.timed_out:
            self.context.refuse(frame, dialer.text or f"its child ended with {dialer.code}")
            return
        results = dialer.report() if dialer is not None else {}
        host_probe = HostProbe(
            results=tuple(decode(ProbeResult, result) for result in results.values())
        )
        self.context.answer(frame, "probed", result=encode(host_probe))
