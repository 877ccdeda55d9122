"""Port forward: listening sockets here, whose connections a node carries on to ports of its own."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from runner.core.dataclass import dataclass
from runner.core.errors import NotReady, Problem
from runner.core.model.spec import Node
from runner.transport.base import PortConnection, PortRefused, Transport

LOOPBACK = "127.0.0.1"
MAX_CONNECTIONS = 128
"""Connections at once; more wait until one of them ends."""

READ_SIZE = 1 << 16
CHECK_S, PING_S = 0.5, 10.0
"""How often to look whether the connection to the node is up, and to ask the node itself."""

PING_TIMEOUT_S = 15.0
MAX_BACKOFF_S = 30.0
ACCEPT_PAUSE_S = 0.1
REPEAT_S = 5.0
"""The same text is not said again before."""

JOIN_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class PortPair:
    """A port of this machine, 0 for any free one, and the port of the node that it stands for."""

    local: int
    remote: int


@dataclass(frozen=True)
class ForwardTarget:
    """A node, and the address at which its ports are reached from where our connection ends."""

    name: str
    contact: Node
    host: str = LOOPBACK  # another one if that is not the node itself

    @property
    def refusal_hint(self) -> str:
        """What a program there may have to do to be reached."""
        return "" if self.host == LOOPBACK else f"; it has to listen at {self.host}, not 127.0.0.1"


def listen(port: int) -> socket.socket:
    """Listen on a port of this machine's loopback address; raise NotReady."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((LOOPBACK, port))
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        is_taken = error.errno == errno.EADDRINUSE
        reason = "is taken" if is_taken else f"cannot be opened ({error.strerror})"
        hint = "LOCAL:REMOTE takes another one here, such as 0:REMOTE for any that is free"
        raise NotReady(
            [Problem("forward", f"port {port} of this machine {reason}", hint)]
        ) from None
    return listener


class PortForward:
    """Carries each connection to `listeners` on to a port of a node, until it is stopped.

    Where the connection to the node is lost, those over it are closed, and it connects again.
    """

    def __init__(
        self,
        transport: Transport,
        target: ForwardTarget,
        listeners: Sequence[tuple[socket.socket, int]],
        say: Callable[[str], None],
    ) -> None:
        self._transport, self._target, self._say = transport, target, say
        self._ports = {listener.fileno(): (listener, port) for listener, port in listeners}
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_write.setblocking(False)
        self._lock = threading.Lock()
        self._open: dict[_Connection, threading.Thread] = {}
        self._stop_requested = False
        self._stopping = threading.Event()
        self._said: dict[str, float] = {}

    def stop(self) -> None:
        """Have `run` return; may be called by a signal handler, so it takes no lock."""
        self._stop_requested = True
        self._wake()

    def run(self) -> None:
        """Connect to the node, and forward; raise NotReady if it cannot be reached at first."""
        keeper = threading.Thread(target=self._keep_connected, daemon=True, name="keeper")
        try:
            self._transport.connect(self._target.contact)
            keeper.start()
            while not self._stop_requested:
                self._accept()
        finally:
            self._stopping.set()
            for listener, _ in self._ports.values():
                listener.close()
            self._close_connections()
            self._transport.close()
            if keeper.ident:
                keeper.join(JOIN_TIMEOUT_S)
            self._wake_read.close()
            self._wake_write.close()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # it is awake, or has ended
            self._wake_write.send(b"!")

    def _accept(self) -> None:
        """Wait for connections, unless there are as many as may be."""
        waited_for = [self._wake_read.fileno()]
        if len(self._open) < MAX_CONNECTIONS:
            waited_for += self._ports
        for ready in select.select(waited_for, [], [])[0]:
            if ready not in self._ports:
                self._wake_read.recv(READ_SIZE)
                continue
            listener, port = self._ports[ready]
            try:
                self._start(listener.accept()[0], port)
            except OSError:  # the other side has left, or there is no descriptor: it is still ready
                time.sleep(ACCEPT_PAUSE_S)

    def _start(self, client: socket.socket, port: int) -> None:
        client.setblocking(True)
        connection = _Connection(client)
        work = threading.Thread(target=self._serve, args=(connection, port), daemon=True)
        with self._lock:
            self._open[connection] = work
        work.start()

    def _serve(self, connection: _Connection, port: int) -> None:
        try:
            if self._transport.is_connected(self._target.contact):
                connection.carry(self._connect(port))
        except PortRefused as refusal:
            target = self._target
            reason = f"nothing answers on its port {port} yet ({refusal}){target.refusal_hint}"
            self._say_once(f"{target.name}: {reason}")
        except NotReady as error:
            if self._transport.is_connected(self._target.contact):
                self._say_once(str(error))
        finally:
            connection.close()
            with self._lock:
                self._open.pop(connection, None)
            self._wake()

    def _connect(self, port: int) -> PortConnection:
        opened = self._transport.connect_port(self._target.contact, self._target.host, port)
        self._said.clear()
        return opened

    def _close_connections(self) -> None:
        with self._lock:
            connections = {**self._open}
        for connection in connections:
            connection.close()
        deadline = time.monotonic() + JOIN_TIMEOUT_S
        for work in connections.values():
            work.join(max(0.0, deadline - time.monotonic()))

    def _keep_connected(self) -> None:
        """Look after the connection to the node until the end."""
        contact, ping_at = self._target.contact, time.monotonic() + PING_S
        while not self._stopping.wait(CHECK_S):
            timeout = PING_TIMEOUT_S if time.monotonic() >= ping_at else 0.0
            if timeout:
                ping_at = time.monotonic() + PING_S
            if not self._transport.is_connected(contact, timeout) and not self._stopping.is_set():
                self._say(f"the connection to {self._target.name} was lost; connecting again")
                self._close_connections()
                self._reconnect()

    def _reconnect(self) -> None:
        for delay_s in _backoff():
            try:
                self._transport.connect(self._target.contact)
            except NotReady as error:
                if not self._stopping.is_set():
                    self._say_once(str(error.problems[0].message))
            else:
                self._say(f"connected to {self._target.name} again")
                return
            if self._stopping.wait(delay_s):
                return

    def _say_once(self, text: str) -> None:
        """Say a text, but not as often as a browser tries again."""
        now = time.monotonic()
        if now >= self._said.get(text, 0.0):
            self._said[text] = now + REPEAT_S
            self._say(text)


def _backoff() -> Iterator[float]:
    """Yield the pauses between attempts to connect, in seconds."""
    delay_s = 1.0
    while True:
        yield delay_s
        delay_s = min(MAX_BACKOFF_S, 2 * delay_s)


class _Connection:
    """One connection from here, and its other half over the node."""

    def __init__(self, client: socket.socket) -> None:
        self._client = client
        self._remote: PortConnection | None = None
        self._lock = threading.Lock()
        self._closed = False

    def carry(self, remote: PortConnection) -> None:
        """Carry both directions until both have ended, each by itself, or one of them fails."""
        with self._lock:
            self._remote, is_late = remote, self._closed
        if is_late:
            remote.close()
            return
        back = threading.Thread(target=self._carry_back, args=(remote,), daemon=True)
        back.start()
        try:
            while data := self._client.recv(READ_SIZE):
                remote.send(data)
            remote.end_sending()
        except OSError:
            self.close()
        back.join()

    def _carry_back(self, remote: PortConnection) -> None:
        try:
            while data := remote.recv():
                self._client.sendall(data)
            self._client.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()

    def close(self) -> None:
        """End both halves; may be called by any thread, and twice."""
        with self._lock:
            is_first, self._closed, remote = not self._closed, True, self._remote
        if not is_first:
            return
        with contextlib.suppress(OSError):  # the other side was quicker
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()
        if remote:
            remote.close()
