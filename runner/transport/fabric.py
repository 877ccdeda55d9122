"""The ssh transport: connections of Fabric's, as the user's ssh configuration says."""

from __future__ import annotations

import contextlib
import errno
import logging
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fabric
import paramiko
from paramiko.common import cMSG_SERVICE_REQUEST

from runner.core import shell
from runner.core.spec import Ssh
from runner.transport.base import READ_SIZE, Ending
from runner.transport.endpoint import BY_OPENSSH, REVOKED_HINT, Endpoint, Kind, LoginFailed
from runner.transport.keys import HostKey, add_known_key, known_keys, offer_keys
from runner.transport.logins import Login

for _name in ("paramiko", "fabric", "invoke"):
    # Without a handler, logging's last resort prints tracebacks, as do handlers of the root.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

WRITE_SIZE = 1 << 15
CLOSE_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 60.0
STATUS_TIMEOUT_S = 1.0
TCP_USER_TIMEOUT_MS = 120_000
"""Without it, Linux needs 15 minutes to give up a connection that nobody acknowledges."""


class HostConnection(Login, fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection to one machine; several threads may open it."""

    def __init__(
        self,
        ssh: Ssh,
        on_note: Callable[[str], None],
        endpoint: Endpoint,
        via: HostConnection | None = None,
    ) -> None:
        self._set(
            node=endpoint.node,
            _ssh=ssh,
            _on_note=on_note,
            _endpoint=endpoint,
            _timeout_s=ssh.connect_timeout,
            _lock=threading.Lock(),
            _known=[],
        )
        fabric.Connection.__init__(
            self,
            endpoint.host,
            user=endpoint.user,
            port=endpoint.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # `ssh -G` has it all
            gateway=via or False,
            forward_agent=False,
            connect_kwargs={
                "timeout": ssh.connect_timeout,
                "transport_factory": self._make_transport,
                "auth_strategy": self,
            },
        )
        self.client.set_missing_host_key_policy(self)

    def start(self, words: Sequence[str]) -> SshChannel:
        with self._explained(self._timeout_s):
            channel = self.transport.open_session(timeout=self._timeout_s)
            channel.set_combine_stderr(True)
            channel.exec_command(f"exec {shell.line(words)}")
        return SshChannel(channel, self)

    def close(self) -> None:
        """End the connection; may be called twice, and during the login."""
        closer = threading.Thread(target=self._close, daemon=True)
        closer.start()
        closer.join(CLOSE_TIMEOUT_S)  # it blocks where the machine is frozen

    def open_gateway(self) -> Any:
        """Return a stream to this machine that its jump host opened; called by Fabric."""
        try:
            return super().open_gateway()
        except (paramiko.SSHException, EOFError, OSError) as error:
            asking = threading.Thread(
                target=self.gateway.transport.global_request,
                args=("keepalive@openssh.com",),
                daemon=True,
            )
            asking.start()
            asking.join(self._timeout_s)
            if asking.is_alive():  # it fell silent itself, and would fail all later nodes, too
                self.gateway.close()
            cause = getattr(error, "text", None) or str(error) or "it left"
            where = f"from jump host {self.gateway.host}"
            raise self._endpoint.by_words([cause], where) from None

    def authenticate(self, transport: Any) -> list[Any]:
        """Log in, or raise LoginFailed; called by paramiko."""
        offer_keys(transport, self._endpoint, self._timeout_s)
        return []

    def missing_host_key(self, _client: object, _name: str, shown: Any) -> None:
        """Accept the key of the machine, or raise LoginFailed; called by paramiko."""
        endpoint = self._endpoint
        key = HostKey(shown.get_name(), shown.asbytes())
        markers = {known.marker: known for known in self._known if known.blob == key.blob}
        if revoked := markers.get("@revoked"):
            what = f"shows a host key that {revoked.location} revokes"
            raise endpoint.failed(Kind.HOST_KEY_CHANGED, what, REVOKED_HINT, detail=str(key))
        if "" in markers:
            return
        for known in self._known:
            if known.marker == "@cert-authority":
                hint = f"{known.location} trusts those with a certificate, which your own ssh"
                hint += " client can verify: cluster.transport=openssh"
                raise endpoint.unknown_key(f"{key}", hint)
        if others := [known for known in self._known if not known.marker]:
            raise endpoint.changed_key(
                f"{key}; known: {', '.join(f'{known} in {known.location}' for known in others)}",
                {known.location.rpartition(":")[0]: None for known in others},
            )
        if self._ssh.host_keys != "accept-new":
            raise endpoint.unknown_key(f"{key}")
        try:
            file = add_known_key(endpoint, key)
        except OSError as error:
            self._on_note(f"the host key of {endpoint.name} is not added ({error})")
        else:
            self._on_note(f"{file}: added {endpoint.lookup_names[0]} {key}")

    def _is_open(self) -> bool:
        return bool(self.is_connected)

    def _log_in(self) -> None:
        endpoint = self._endpoint
        if endpoint.first("proxycommand"):
            what = "is reached by a ProxyCommand of your ssh config"
            raise endpoint.failed(Kind.CONFIG, what, f"your own client runs it: {BY_OPENSSH}")
        if self.gateway:
            self.gateway.open()
        self._set(_known=known_keys(endpoint, self._timeout_s))
        with self._explained(3 * self._timeout_s):
            if not self.gateway:
                self.connect_kwargs["sock"] = dial(endpoint, self._timeout_s)
            fabric.Connection.open(self)
            # Paramiko's thread would wake up ten times a second to see whether it was closed.
            self.transport.sock.settimeout(READ_TIMEOUT_S)

    def _make_transport(self, sock: Any, **kwargs: Any) -> Protocol:
        transport = Protocol(sock, **kwargs)
        options = transport.get_security_options()
        # 300 MB/s instead of 200 with AES-CTR and its separate MAC, for half the CPU time.
        options.ciphers = sorted(options.ciphers, key=lambda cipher: "gcm" not in cipher)
        known = {key.type.replace("ssh-rsa", "rsa-sha2-512") for key in self._known}
        options.key_types = sorted(options.key_types, key=lambda kind: kind not in known)
        transport.banner_timeout = self._timeout_s
        transport.handshake_timeout = self._timeout_s
        transport.auth_timeout = self._timeout_s
        transport.channel_timeout = self._timeout_s
        return transport

    @contextlib.contextmanager
    def _explained(self, limit_s: float) -> Iterator[None]:
        """Raise errors as LoginFailed; end what takes too long, since not all has a deadline."""
        deadline = time.monotonic() + limit_s
        timer = threading.Timer(limit_s, self.close)
        timer.daemon = True
        timer.start()
        try:
            yield
        except LoginFailed:
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - paramiko raises what its threads met
            failure = self._failure(error, is_late=time.monotonic() >= deadline)
            self.close()
            raise failure from None
        finally:
            timer.cancel()

    def _failure(self, error: Exception, *, is_late: bool) -> LoginFailed:
        transport = self.client.get_transport()
        cause = getattr(error, "strerror", None) or getattr(error, "text", None) or str(error)
        causes = (error, error.__context__)
        is_late = is_late or any(isinstance(each, TimeoutError) for each in causes)
        if is_late or cause == "No existing session":
            cause = f"timed out after {self._timeout_s:g} s"
        elif transport and transport.is_authenticated():
            what = f"accepted the login and started nothing ({cause})"
            return self._endpoint.failed(Kind.NO_SESSION, what)
        step = "while connecting"
        if transport:
            step = "while waiting for its SSH banner"
            if transport.remote_version:
                step = "in the SSH handshake"
            if transport.initial_kex_done:
                step = f"as user {self.user}"
        return self._endpoint.by_words([cause or "closed by the other side"], step)

    def _close(self) -> None:
        transport = self.client.get_transport()
        with contextlib.suppress(Exception):  # an error would help no caller
            sock = transport.sock
            if isinstance(sock, socket.socket):
                sock.shutdown(socket.SHUT_RDWR)
            else:  # a stream that a jump host opened
                sock.close()
        if transport:
            transport.close()
            transport.packetizer.complete_handshake()  # its timer would keep this process alive


class Protocol(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """Paramiko's transport, which asks for the service of logins once, not again for each key.

    OpenSSH allows that; servers that are written in Go or Python end the connection.
    """

    _has_service = False

    def _send_message(self, data: Any) -> None:
        if not self.is_authenticated() and data.asbytes()[:1] == cMSG_SERVICE_REQUEST:
            if self._has_service:
                accepted = paramiko.Message()
                accepted.add_string("ssh-userauth")
                accepted.rewind()
                self.auth_handler._parse_service_accept(accepted)  # noqa: SLF001 - as if it came
                return
            self._has_service = True
        super()._send_message(data)

    def run(self) -> None:
        """Serve the connection; at its end, the one to a jump host that carries it may be dead."""
        with contextlib.suppress(EOFError):
            super().run()


class SshChannel:
    def __init__(self, channel: Any, connection: HostConnection) -> None:
        self.ended: Ending | None = None
        self._channel = channel
        self._connection = connection

    def read(self) -> bytes:
        data = b""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            data = bytes(self._channel.recv(READ_SIZE))
        if not data:
            self._channel.status_event.wait(STATUS_TIMEOUT_S)
            self.ended = Ending(None, "the ssh connection was lost")
            if self._channel.exit_status >= 0:
                self.ended = Ending.of_status(self._channel.exit_status)
            elif self._connection.is_connected:
                self.ended = Ending(None, "the program was ended by a signal")
        return data

    def write(self, data: bytes) -> None:
        sent = 0
        try:
            while sent < len(data):
                sent += self._channel.send(data[sent : sent + WRITE_SIZE])
        except (paramiko.SSHException, EOFError) as error:
            raise BrokenPipeError(f"the ssh connection was lost ({error})") from None

    def close(self) -> None:
        """End the streams, with their connection: it is used for nothing else."""
        self.ended = self.ended or Ending(None, "it was closed here")
        self._connection.close()


def dial(endpoint: Endpoint, timeout_s: float) -> socket.socket:
    """Connect to the first address that answers, within `timeout_s` for each step; raise OSError.

    Of several errors a refusal is raised rather than that nobody answered.
    """
    errors: list[OSError] = []
    addresses = _look_up(endpoint, timeout_s)
    source = (endpoint.first("bindaddress"), 0)
    for family, kind, protocol, _, address in addresses:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(timeout_s / len(addresses))
            if source[0]:
                sock.bind(source)
            sock.connect(address)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, TCP_USER_TIMEOUT_MS)
        except OSError as error:
            sock.close()
            errors.append(error)
        else:
            return sock
    raise min(errors, key=lambda error: not isinstance(error, ConnectionRefusedError))


def _look_up(endpoint: Endpoint, timeout_s: float) -> list[Any]:
    """Return the addresses of a host; a look-up that hangs cannot be ended, and is left behind."""
    families = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}
    family = families.get(endpoint.first("addressfamily"), socket.AF_UNSPEC)
    answers: queue.SimpleQueue[list[Any] | OSError] = queue.SimpleQueue()

    def look_up() -> None:
        try:
            answers.put(
                socket.getaddrinfo(endpoint.host, endpoint.port, family, socket.SOCK_STREAM)
            )
        except OSError as error:
            answers.put(error)

    threading.Thread(target=look_up, daemon=True).start()
    try:
        answer = answers.get(timeout=timeout_s)
    except queue.Empty:
        answer = OSError(errno.EHOSTUNREACH, f"could not resolve its name within {timeout_s:g} s")
    if isinstance(answer, OSError):
        raise answer
    return answer
