"""Transfer of a release from a host that holds it to one that lacks it, over TCP.

Both ends authenticate with the push's token, as supervisors do with their run's. The contents
follow as raw bytes: whoever receives them has the manifest from the controller, and verifies the
hash of each file.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import threading
import time
from typing import Any, Callable, Dict, Generator, Iterator, List, Sequence, Tuple

from runner.core.dataclass import dataclass
from runner.core.model.release import File, Manifest
from runner.core.protocol.paths import CODE_FOLDER, release_folder
from runner.host.facts import ports
from runner.host.peers.connection import (
    CLIENT,
    Identity,
    Listener,
    PeerConnection,
    PeerDisconnected,
)
from runner.host.peers.dialler import Dialler
from runner.host.process.event_loop import EventLoop
from runner.host.storage import release_store

MAX_TRANSFERS = 8  # at once from one host
MAX_PEERS, MAX_LINE = 16, 1 << 20
"""Connections that have no transfer yet, and bytes of a request, which lists the files."""

CONNECT_TIMEOUT_S = 3.5  # SYNs go out after 0, 1 and 3 s
STALL_TIMEOUT_S = 10.0
"""For either end to send nothing: the controller sends the release then."""

MIN_RATE, GRACE_S, MAX_WAIT_S = 1_000_000, 60.0, 1800.0
"""How long a receiver waits in all: for so many bytes per second, and a little longer."""

POLL_S = 0.05
RECEIVE_BYTES = 1 << 18

Ranges = List[List[int]]
"""Indices into the files of a manifest, as the first and last of each run of them."""


class HolderUnreachable(OSError):
    """No connection to the holder: it is down, or something between the hosts is in the way."""


@dataclass(frozen=True)
class Holder:
    """Where a release is served: the address and port of the node that holds it."""

    node: str
    address: str
    port: int
    token: str


def serve(
    workdir: str,
    release: str,
    identity: Tuple[str, str],
    allowed_ports: Tuple[int, int],
    parent_pid: int,
    report: Callable[..., None],
) -> None:
    """Serve a release to hosts that know the token, until the parent ends.

    `identity` is our node and the token; `allowed_ports` the first and last port to listen on, 0
    for any. `report` takes `port`, or `error` if there is none; then `ready`.
    """
    node, token = identity
    sock = ports.reserve_extra(*allowed_ports)
    if sock is None:
        report(error="no port is free", ready=True)
        return
    server = _Server(sock, Identity(node, _subject(release), token.encode(), MAX_LINE))
    try:
        server.open(workdir, release)
    except OSError as error:
        report(error=error.strerror or str(error), ready=True)
        return
    report(port=sock.getsockname()[1], ready=True)
    while os.getppid() == parent_pid:
        server.poll_once()


class _Server:
    """The connections that have not asked yet, and the transfers, one thread each."""

    def __init__(self, sock: socket.socket, identity: Identity) -> None:
        self._sock, self._identity, self._loop = sock, identity, EventLoop()
        self._requested: Dict[PeerConnection, List[File]] = {}  # [] before the request
        self._transfers: List[threading.Thread] = []

    def open(self, workdir: str, release: str) -> None:
        """Listen; OSError if that is impossible, or the release is not here (any more)."""
        root = release_folder(workdir, release)
        manifest = release_store.load_manifest(root)
        if manifest is None:
            raise OSError(errno.ENOENT, f"release {release} is not here")
        self._code, self._manifest = os.path.join(root, CODE_FOLDER), manifest
        self._listener = Listener(
            *(self._sock, self._identity, self._loop),
            *(self._on_message, lambda peer, _: self._drop(peer)),
        )

    def poll_once(self) -> None:
        """Wait for a moment, handle what has arrived, and drop those who ask for nothing."""
        self._loop.wait(POLL_S)
        self._listener.tick()
        oldest = time.monotonic() - STALL_TIMEOUT_S
        for peer in [peer for peer in self._requested if peer.connected_at < oldest]:
            self._drop(peer)

    def _on_message(self, peer: PeerConnection, message: Dict[str, Any]) -> None:
        self._transfers = [each for each in self._transfers if each.is_alive()]
        kind = message.get("type")
        if kind == "hello" and len(self._requested) < MAX_PEERS:
            self._requested[peer] = []
            peer.send(type="hello")
        elif kind == "request" and peer in self._requested:
            files = [self._manifest.files[i] for i in _from_ranges(message, self._manifest)]
            self._requested[peer] = files
            peer.send(type="offer", bytes=sum(file.size for file in files))
        elif kind == "send" and self._requested.get(peer) and len(self._transfers) < MAX_TRANSFERS:
            arguments = (peer.detach(), self._code, self._requested.pop(peer))
            thread = threading.Thread(target=_send_files, args=arguments, daemon=True)
            self._transfers.append(thread)
            thread.start()
        else:
            self._drop(peer)

    def _drop(self, peer: PeerConnection) -> None:
        self._requested.pop(peer, None)
        peer.close()


def receive(
    holder: Holder, release: str, node: str, missing: Sequence[int], size: int
) -> Generator[bytes, None, None]:
    """Yield the contents of the missing files, in that order, and b"" while nothing arrives.

    `missing` are indices into the manifest's files, `size` is how many bytes those have.

    Raises:
        HolderUnreachable: There is no connection to the holder.
        OSError: It refuses, or sends too little.
    """
    sock = yield from _connect(holder)
    with sock:
        try:
            yield from _handshake(sock, holder, release, node, missing, size)
        except PeerDisconnected as error:
            raise OSError(errno.ECONNRESET, f"{holder.node} refused: {error}") from error
        yield from _receive_bytes(sock, holder.node, size)


def _connect(holder: Holder) -> Generator[bytes, None, socket.socket]:
    dialler = Dialler(holder.address, holder.port, CONNECT_TIMEOUT_S)
    while True:
        sock = dialler.poll()
        if sock is not None:
            return sock
        if dialler.error:
            where = f"{holder.node} at {holder.address} port {holder.port}"
            raise HolderUnreachable(dialler.error, f"cannot connect to {where}: {dialler.reason}")
        _wait(dialler.fileno(), select.POLLOUT)
        yield b""


def _handshake(
    sock: socket.socket,
    holder: Holder,
    release: str,
    node: str,
    missing: Sequence[int],
    size: int,
) -> Generator[bytes, None, None]:
    """Authenticate, request the files, and have the holder begin."""
    identity = Identity(node, _subject(release), holder.token.encode())
    peer = PeerConnection(sock, identity, CLIENT)
    answers: Dict[str, Dict[str, Any]] = {
        "hello": {"type": "request", "missing": _ranges(missing)},  # long, so not the first
        "offer": {"type": "send"},
    }
    peer.send(type="hello")
    deadline = time.monotonic() + STALL_TIMEOUT_S
    while answers or peer.has_unsent:
        if time.monotonic() > deadline:
            raise PeerDisconnected(f"no answer for {STALL_TIMEOUT_S:g} s")
        _wait(peer.fileno(), select.POLLOUT if peer.has_unsent else select.POLLIN)
        peer.flush()
        for message in peer.receive() if answers else ():
            if peer.name != holder.node or message.get("bytes", size) != size:
                raise PeerDisconnected("it is another node, or has another release")
            peer.send(**answers.pop(str(message.get("type")), {"type": "none"}))
        yield b""


def _receive_bytes(sock: socket.socket, holder: str, size: int) -> Iterator[bytes]:
    """Yield the bytes; what counts is how long we wait for them, not how long our disk takes."""
    remaining, waited_s, silent_s = size, 0.0, 0.0
    limit_s = min(MAX_WAIT_S, GRACE_S + size / MIN_RATE)
    while remaining:
        began = time.monotonic()
        _wait(sock.fileno(), select.POLLIN)
        waited_s += time.monotonic() - began
        silent_s += time.monotonic() - began
        if silent_s > STALL_TIMEOUT_S or waited_s > limit_s:
            message = f"{holder} sent {size - remaining} of {size} bytes in {waited_s:.0f} s"
            raise OSError(errno.ETIMEDOUT, message)
        try:
            chunk = sock.recv(min(RECEIVE_BYTES, remaining))
        except BlockingIOError:
            yield b""
            continue
        if not chunk:
            raise OSError(errno.ECONNRESET, f"{holder} ended the transfer")
        silent_s = 0.0
        remaining -= len(chunk)
        yield chunk


def _send_files(sock: socket.socket, folder: str, files: Sequence[File]) -> None:
    """Send the contents; a file that is not what it was ends the connection."""
    try:
        with sock:
            sock.settimeout(STALL_TIMEOUT_S)
            for file in filter(lambda file: file.size, files):
                path = os.path.join(folder, file.path)
                with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as content:
                    if sock.sendfile(content, 0, file.size) != file.size:
                        return
    except OSError:
        return  # the receiver says so


def _wait(descriptor: int, events: int) -> None:
    poll = select.poll()
    poll.register(descriptor, events)
    poll.poll(1000 * POLL_S)


def _subject(release: str) -> str:
    return f"release {release}"


def _ranges(indices: Sequence[int]) -> Ranges:
    ranges: Ranges = []
    for index in indices:
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ranges


def _from_ranges(message: Dict[str, Any], manifest: Manifest) -> Iterator[int]:
    """Yield the indices that a request names; PeerDisconnected if it is illegal."""
    last_index = -1
    try:
        for first, last in message["missing"]:
            if not last_index < first <= last < len(manifest.files):
                raise ValueError("the files are out of order")
            yield from range(first, last + 1)
            last_index = last
    except (KeyError, TypeError, ValueError) as error:
        raise PeerDisconnected(f"it sent what is no message: {error}") from error
