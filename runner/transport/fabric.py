"""The ssh transport: connections of Fabric's, as the user's ssh configuration says."""

from __future__ import annotations

import contextlib
import functools
import logging
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import fabric
import paramiko

from runner.core import shell
from runner.core.spec import Node, Ssh
from runner.transport import ssh_config
from runner.transport.base import READ_SIZE, Ending
from runner.transport.failures import (
    REVOKED_HINT,
    Failures,
    Gate,
    Kind,
    LoginFailed,
    from_client,
    of_node,
)
from runner.transport.keys import KeyLogin
from runner.transport.ssh_config import Endpoint, HostKey, Resolver
from runner.transport.stream import ProxyCommand, dial

for _name in ("paramiko", "fabric", "invoke"):
    # Without a handler, logging's last resort prints tracebacks, as do handlers of the root.
    logging.getLogger(_name).addHandler(logging.NullHandler())
    logging.getLogger(_name).propagate = False

WRITE_SIZE = 1 << 15
CLOSE_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 60.0
MAX_LOGINS = 8
"""Logins at one bastion behind a ProxyCommand: sshd drops some from ten on (MaxStartups)."""
STATUS_TIMEOUT_S = 1.0
PROHIBITED = 1  # RFC 4254, 5.1: "administratively prohibited"


class FabricTransport:
    """Connections of Fabric's; those to jump hosts are shared by the hosts behind them."""

    def __init__(self, ssh: Ssh, *, on_note: Callable[[str], None]) -> None:
        self.ssh = ssh
        self.on_note = on_note
        self.file_lock = threading.Lock()
        self._resolver = Resolver(ssh)
        self._lock = threading.Lock()
        self._jumps: dict[tuple[tuple[str, ...], ...], HostConnection] = {}
        self._bastions: dict[str, threading.BoundedSemaphore] = {}

    def connect(self, node: Node) -> HostConnection:
        """Log in to a node."""
        with of_node(node.name):
            connection = self.connection(node)
            connection.open()
            return connection

    def connection(self, node: Node, kind: type[HostConnection] | None = None) -> HostConnection:
        """Return a connection to a node that is not open yet; raise LoginFailed."""
        route = self._resolver.route(node)
        via: HostConnection | None = None
        with self._lock:
            for count in range(1, len(route)):
                key = tuple(endpoint.words for endpoint in route[:count])
                if key not in self._jumps:
                    self._jumps[key] = HostConnection(self, node.name, route[count - 1], via)
                via = self._jumps[key]
        return (kind or HostConnection)(self, node.name, route[-1], via)

    def bastion(self, command: str) -> threading.BoundedSemaphore:
        """Return what bounds the logins through one ProxyCommand."""
        with self._lock:
            return self._bastions.setdefault(command, threading.BoundedSemaphore(MAX_LOGINS))

    def close(self) -> None:
        """End the connections to jump hosts."""
        for connection in self._jumps.values():
            connection.close()


class HostConnection(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection to one machine; several threads may open it."""

    node = ""
    """The name of the node for which it is made."""

    def __init__(
        self,
        transport: FabricTransport,
        node: str,
        endpoint: Endpoint,
        via: HostConnection | None = None,
    ) -> None:
        timeout_s = transport.ssh.connect_timeout
        failures = Failures(node, endpoint)
        self._set(
            _shared=transport,
            _endpoint=endpoint,
            _timeout_s=timeout_s,
            _failures=failures,
            _gate=Gate(timeout_s, is_shared=endpoint.is_jump),
            _known=[],
            _proxy=None,
        )
        super().__init__(
            endpoint.host,
            user=endpoint.user,
            port=endpoint.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),  # `ssh -G` has it all
            gateway=via or False,
            forward_agent=False,
            connect_kwargs={
                "timeout": timeout_s,
                "transport_factory": self._make_transport,
                "auth_strategy": KeyLogin(endpoint, failures, timeout_s),
            },
        )
        self.node = node
        self.client.set_missing_host_key_policy(self)

    def open(self) -> None:
        """Log in if that is not done; raise LoginFailed."""
        self._gate.log_in(self._log_in, unless=lambda: self.is_connected)

    def start(self, words: Sequence[str]) -> SshChannel:
        """Start a program."""
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
        self.gateway.open()
        try:
            return super().open_gateway()
        except (paramiko.SSHException, EOFError, OSError) as error:
            jump = f"jump host {self.gateway.original_host}"
            if getattr(error, "code", None) == PROHIBITED:
                hint = "see AllowTcpForwarding, PermitOpen and DisableForwarding in its sshd_config"
                what = f"may not be connected to by {jump}"
                raise self._failures.failed(Kind.UNREACHED, what, hint) from None
            if self.gateway.is_silent():  # or it would fail all later nodes, too
                self.gateway.close()
                raise self._failures.failed(
                    Kind.SILENT, f"is behind {jump}, which fell silent"
                ) from None
            kind = Kind.SILENT if "imeout" in str(error) else Kind.UNREACHED
            what = f"cannot be reached from {jump} ({getattr(error, 'text', error)})"
            raise self._failures.failed(kind, what) from None

    def is_silent(self) -> bool:
        """Return whether the machine does not answer a request within the time of a login."""
        request = functools.partial(self.transport.global_request, "keepalive@openssh.com")
        asking = threading.Thread(target=request, daemon=True)
        asking.start()
        asking.join(self._timeout_s)
        return asking.is_alive()

    def missing_host_key(self, _client: object, _name: str, shown: Any) -> None:
        """Accept the key of the machine, or raise LoginFailed; called by paramiko."""
        endpoint = self._endpoint
        key = HostKey(shown.get_name(), shown.asbytes())
        same = [known for known in self._known if known.blob == key.blob]
        revoked = [known for known in same if known.marker == "@revoked"]
        if revoked:
            what = f"shows a host key that {revoked[0].location} revokes"
            failed = self._failures.failed
            raise failed(Kind.HOST_KEY_CHANGED, what, REVOKED_HINT, detail=str(key))
        if any(known.marker == "" for known in same):
            return
        authorities = [known for known in self._known if known.marker == "@cert-authority"]
        if authorities:
            what = "shows a host key that is not known"
            hint = f"{authorities[0].location} trusts those with a certificate; your own ssh client"
            hint += " can verify that: cluster.transport=openssh"
            raise self._failures.failed(Kind.HOST_KEY_UNKNOWN, what, hint, detail=str(key))
        others = [known for known in self._known if known.marker == ""]
        if others:
            lines = ", ".join(f"{known} in {known.location}" for known in others)
            detail = f"{key}; known: {lines}"
            files = dict.fromkeys(known.location.rpartition(":")[0] for known in others)
            what = "shows another host key than before"
            raise self._failures.changed_key(what, files, detail)
        if self._shared.ssh.host_keys != "accept-new":
            raise self._failures.unknown_key("shows a host key that is not known", str(key))
        with self._shared.file_lock:
            try:
                file = ssh_config.add_known_key(endpoint, key)
            except OSError as error:
                note = f"the host key of {endpoint.name} is not added ({error})"
            else:
                note = f"{file}: added {endpoint.lookup_names[0]} {key}"
        self._shared.on_note(note)

    def _log_in(self) -> None:
        endpoint = self._endpoint
        if self.gateway:
            self.gateway.open()
        self._set(_known=ssh_config.known_keys(endpoint, self._timeout_s))
        command = endpoint.first("proxycommand")
        bastion = self._shared.bastion(command) if command else contextlib.nullcontext()
        with bastion, self._explained(3 * self._timeout_s):
            if command:
                self._set(_proxy=ProxyCommand(endpoint.proxy_command))
                self.connect_kwargs["sock"] = self._proxy.socket
            elif not self.gateway:
                self.connect_kwargs["sock"] = dial(endpoint, self._timeout_s)
            super().open()
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
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self.close()

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except LoginFailed:
            self.close()
            raise
        except Exception as error:  # noqa: BLE001 - paramiko raises what its threads met
            failure = self._failure(error, is_late=late.is_set())
            self.close()
            raise failure from None
        finally:
            timer.cancel()

    def _failure(  # noqa: PLR0911
        self, error: Exception, *, is_late: bool
    ) -> LoginFailed:
        failures: Failures = self._failures
        failed = failures.failed
        transport = self.client.get_transport()
        text = getattr(error, "text", str(error))
        is_late = (
            is_late
            or "imeout" in text
            or text == "No existing session"
            or isinstance(error, TimeoutError)
        )
        is_late = is_late or isinstance(error.__context__, TimeoutError)
        if transport and transport.is_authenticated() and not is_late:
            return failed(Kind.NO_SESSION, f"accepted the login and started nothing ({text})")
        if self._proxy and not (transport and transport.remote_version):
            said = self._proxy.said()
            if said:
                return from_client(self._failures, said, "its ProxyCommand")
        if is_late:
            return failed(
                Kind.SILENT, f"{self._silent_step(transport)} within {self._timeout_s:g} s"
            )
        if isinstance(error, socket.gaierror):
            return failed(Kind.NAME, f"is no name that is known here ({error.strerror})")
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            return failed(Kind.NOT_SSH, f"has no SSH algorithm in common with runner: {text}")
        if "Indecipherable" in text or "Invalid SSH banner" in text:
            return failed(Kind.NOT_SSH, "is no SSH server")
        is_closed = isinstance(error, (EOFError, ConnectionResetError)) or "banner" in text
        if transport and is_closed:
            return failed(Kind.NOT_NOW, "answers, and refuses logins for now")
        if isinstance(error, ConnectionRefusedError):
            return failed(Kind.UNREACHED, "refused the connection")
        cause = getattr(error, "strerror", None) or text or type(error).__name__
        if transport:
            return failed(Kind.UNREACHED, f"was connected, and the connection was lost ({cause})")
        return failed(Kind.UNREACHED, f"cannot be reached ({cause})")

    def _silent_step(self, transport: Any) -> str:
        if transport is None:
            return "did not answer"
        if not transport.remote_version:
            return "accepted the connection but sent no SSH banner"
        if not transport.initial_kex_done:
            return "began the SSH handshake but did not finish it"
        if not transport.is_authenticated():
            return f"did not answer the login as {self.user}"
        return "accepted the login but did not start the program"

    def _close(self) -> None:
        transport = self.client.get_transport()
        with contextlib.suppress(Exception):  # an error would help no caller
            sock = transport.sock
            if isinstance(sock, socket.socket):
                sock.shutdown(socket.SHUT_RDWR)
            else:
                sock.close()
        if transport:
            transport.close()
            transport.packetizer.complete_handshake()  # its timer would keep this process alive
        if self._proxy:
            self._proxy.close()


class Protocol(paramiko.Transport):  # type: ignore[misc]  # paramiko has no types
    """Paramiko's transport."""

    def run(self) -> None:
        """Serve the connection; at its end, the one to a jump host that carries it may be dead."""
        with contextlib.suppress(EOFError):
            super().run()


class SshChannel:
    """A Channel over one of paramiko's."""

    def __init__(self, channel: Any, connection: HostConnection) -> None:
        self.ended: Ending | None = None
        self._channel = channel
        self._connection = connection

    def read(self) -> bytes:
        """Return the next bytes, b"" at the end."""
        data = b""
        with contextlib.suppress(paramiko.SSHException, EOFError, OSError):
            data = bytes(self._channel.recv(READ_SIZE))
        if not data:
            self._channel.status_event.wait(STATUS_TIMEOUT_S)
            status = self._channel.exit_status
            self.ended = Ending(None, "the ssh connection was lost")
            if status >= 0:
                self.ended = Ending(status, f"the program ended with exit code {status}")
            elif self._connection.is_connected:
                self.ended = Ending(None, "the program was ended by a signal")
        return data

    def write(self, data: bytes) -> None:
        """Pass on all of `data`; raise OSError when the other side is gone."""
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
