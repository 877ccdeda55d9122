"""Machines over SSH. Fabric logs in, here and nowhere else; the channels are driven by hand."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import fabric
import paramiko

from runner.core.errors import NotReady, Problem
from runner.core.model.spec import Node, Ssh
from runner.transport.base import Channel
from runner.transport.ssh import protocol as ssh_protocol
from runner.transport.ssh import stream
from runner.transport.ssh.auth import HostKeyPolicy, KeyLogin, Trust
from runner.transport.ssh.channel import SshChannel
from runner.transport.ssh.config import Endpoint, Resolver, at_home
from runner.transport.ssh.deadline import SLACK_S, Attempt, Failure, Lost
from runner.transport.ssh.errors import Reasons
from runner.transport.ssh.keys import KeyRing, Unusable
from runner.transport.ssh.known_hosts import KnownHosts

CLOSE_S = 2.0


class SshTransport:
    """Opens channels over SSH: one connection per node, one per jump host for all behind it."""

    def __init__(self, ssh: Ssh, *, notes: Callable[[str], None]) -> None:
        self._resolver = Resolver(ssh, notes=notes)
        self._tools = Tools.make(ssh, notes)
        self._lock = threading.Lock()
        self._nodes: dict[str, Login] = {}
        self._jumps: dict[tuple[Endpoint, ...], Login] = {}
        self._closed = False

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line on a node and return its streams; raise NotReady."""
        try:
            return self._login(node).session(command)
        except Failure as failure:
            problem = Problem(node.name, failure.what, failure.hint)
        except Exception as error:  # noqa: BLE001 - a person reads this, whatever it is
            problem = Problem(node.name, f"ssh failed ({type(error).__name__}: {error})")
        raise NotReady([problem])

    def close(self) -> None:
        """End every connection; channels still open see their end."""
        with self._lock:
            self._closed = True
            logins = [*self._jumps.values(), *self._nodes.values()]
        # The jump hosts first: what is left of the channels through them cannot block any more.
        closer = threading.Thread(target=_close_all, args=(logins,), daemon=True)
        closer.start()
        closer.join(CLOSE_S)

    def _login(self, node: Node) -> Login:
        with self._lock:
            known = self._nodes.get(node.name)
        if known:
            return known
        route = self._resolver.route(node)
        with self._lock:
            if self._closed:
                raise Failure("the connections are closed")
            via = None
            for count in range(1, len(route)):
                hops = route[:count]
                jump = self._jumps.get(hops) or Login(self._tools, hops[-1], via)
                via = self._jumps[hops] = jump
            return self._nodes.setdefault(
                node.name, Login(self._tools, route[-1], via, node=node.name)
            )


@dataclass(frozen=True)
class Tools:
    """What all log-ins of a run share."""

    ring: KeyRing
    trust: Trust
    timeout: float

    @classmethod
    def make(cls, ssh: Ssh, notes: Callable[[str], None]) -> Tools:
        """Make the tools; nothing is read yet."""
        return cls(
            ring=KeyRing(),
            trust=Trust(
                known=KnownHosts(notes=notes),
                file=at_home(ssh.known_hosts),
                accept_new=ssh.host_keys == "accept-new",
                notes=notes,
            ),
            timeout=ssh.connect_timeout,
        )


@dataclass
class Line:
    """What one log-in holds open, from the bottom up."""

    proxy: stream.Proxy | None = None
    link: Any = None
    protocol: Any = None
    connection: Any = None
    closed: bool = False

    @property
    def alive(self) -> bool:
        """Whether the connection is up, as far as anyone can know without asking it."""
        return bool(not self.closed and self.protocol and self.protocol.is_active())

    def close_if_silent(self, patience: float) -> None:
        """Ask the other end for a sign of life, and hang up if none comes."""
        ask = threading.Thread(
            target=self.protocol.global_request, args=("keepalive@openssh.com",), daemon=True
        )
        ask.start()
        ask.join(patience)
        if ask.is_alive():
            self.close()

    def close(self) -> None:
        """End it all; may be called twice, and while the log-in is still under way."""
        self.closed = True
        with contextlib.suppress(Exception):  # nobody is left whom it would help
            if self.protocol:
                ssh_protocol.end(self.protocol)
        with contextlib.suppress(Exception):
            if self.link:
                self.link.close()
        if self.proxy:
            self.proxy.close()


class Login:
    """One SSH connection, opened when it is first needed, shared by all who need it.

    A failure holds for `connect_timeout` seconds on a jump host: the nodes behind it ask at
    about the same time, and all shall hear the same. A node is tried anew whenever it is asked for.
    """

    def __init__(self, tools: Tools, at: Endpoint, via: Login | None, node: str = "") -> None:
        self._tools = tools
        self.at = at
        self._via = via
        self._failure_holds_s = 0.0 if node else tools.timeout
        self._reasons = Reasons(
            at,
            tools.timeout,
            jump=via.at if via else None,
            node=node,
            known_hosts=tools.trust.file,
        )
        self._lock = threading.Lock()
        self._attempt: Attempt[Line] | None = None
        self._lines: list[Line] = []
        self._closed = False

    def session(self, command: str) -> SshChannel:
        """Start a command and return its channel; raise Failure."""
        line, is_new = self._line()
        try:
            return self._session(line, command)
        except Lost:
            line.close()
            if is_new:
                raise
        return self._session(self._line()[0], command)

    def close(self) -> None:
        """End the connection, for good."""
        with self._lock:
            self._closed = True
            lines, self._lines = self._lines, []
        for line in lines:
            line.close()

    def _line(self) -> tuple[Line, bool]:
        """Return the open connection, and whether this call has opened it; raise Failure."""
        with self._lock:
            if self._closed:
                raise Failure("the connection is closed")
            attempt, is_new = self._attempt, False
            if attempt is None or self._is_spent(attempt):
                self._lines = [Line()]
                work = functools.partial(self._open, self._lines[0])
                attempt = self._attempt = Attempt(work, discard=Line.close)
                is_new = True
        return attempt.result(), is_new

    def _is_spent(self, attempt: Attempt[Line]) -> bool:
        failed = attempt.failed_since()
        if failed is not None:
            return failed >= self._failure_holds_s
        line = attempt.value()
        return line is not None and not line.alive

    def _session(self, line: Line, command: str) -> SshChannel:
        work = functools.partial(self._start, line, command)
        return Attempt(work, discard=SshChannel.close).result()

    def _start(self, line: Line, command: str, attempt: Attempt[SshChannel]) -> SshChannel:
        protocol, timeout, reasons = line.protocol, self._tools.timeout, self._reasons
        attempt.step(timeout, reasons.slow_channel(), line.close)
        try:
            channel = protocol.open_session(timeout=timeout + SLACK_S)
        except paramiko.ChannelException as error:
            raise reasons.no_channel(error) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise reasons.no_connection(error) from None
        ours = SshChannel(channel, line.close)
        channel.set_combine_stderr(True)
        attempt.step(timeout, reasons.slow_command(), ours.close)
        try:
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            ours.close()
            raise (reasons.no_command() if line.alive else reasons.dropped(error)) from None
        return ours

    def _open(self, line: Line, attempt: Attempt[Line]) -> Line:
        try:
            if self._via:
                line.link = self._through(self._via, attempt)
            else:
                self._reach(line, attempt)
            self._log_in(line, attempt)
        except BaseException:
            line.close()
            raise
        if line.closed:
            line.close()
            raise Failure("the connection was closed")
        return line

    def _reach(self, line: Line, attempt: Attempt[Line]) -> None:
        """Get bytes to the machine and back, by TCP or by its ProxyCommand."""
        timeout, reasons = self._tools.timeout, self._reasons
        if self.at.proxy_command:
            line.proxy = stream.Proxy(self.at.proxy_command)
            line.link = line.proxy.socket
            return
        try:
            attempt.step(timeout, reasons.slow_name())
            addresses = stream.look_up(self.at.host, self.at.port)
            attempt.step(timeout + SLACK_S, reasons.no_answer())
            line.link = stream.connect(addresses, timeout)
        except OSError as error:
            raise reasons.from_connect(error) from None

    def _through(self, via: Login, attempt: Attempt[Line]) -> Any:
        """Get bytes to the machine through the connection of its jump host."""
        timeout, reasons = self._tools.timeout, self._reasons
        jump, _ = via._line()
        # Either end may be the silent one; a jump host that is would fail all later nodes too.
        attempt.step(timeout, reasons.slow_jump(), functools.partial(jump.close_if_silent, timeout))
        try:
            return jump.protocol.open_channel(
                "direct-tcpip", (self.at.host, self.at.port), ("", 0), timeout=timeout + SLACK_S
            )
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not jump.alive:
                raise via._reasons.dropped(error) from None
            raise reasons.beyond_jump(error) from None

    def _log_in(self, line: Line, attempt: Attempt[Line]) -> None:
        at, timeout, reasons = self.at, self._tools.timeout, self._reasons
        chosen = self._tools.ring.load(at.chosen_key) if at.chosen_key else None
        if isinstance(chosen, Unusable) and not chosen.encrypted:
            raise reasons.key_unreadable(chosen.path, chosen.why, chosen.cure)

        def start(sock: Any, **_: object) -> ssh_protocol.Protocol:
            types = self._tools.trust.key_types(at)
            protocol = line.protocol = ssh_protocol.start(sock, key_types=types, timeout=timeout)
            return protocol

        line.connection = fabric.Connection(
            at.host,
            user=at.user,
            port=at.port,
            # Neither fabric.yaml nor ssh_config: what those say is settled before we come here.
            # One per connection, because Fabric changes it in place.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=False,
            forward_agent=False,
            connect_kwargs={
                "sock": line.link,
                "transport_factory": start,
                "auth_strategy": KeyLogin(self._tools.ring, at, reasons, attempt),
            },
        )
        line.connection.client.set_missing_host_key_policy(
            HostKeyPolicy(self._tools.trust, at, reasons)
        )
        attempt.step(2 * timeout, reasons.slow_handshake(), line.close)
        try:
            line.connection.open()
        except Failure:
            raise
        except Exception as error:  # noqa: BLE001 - paramiko raises what its threads met
            if line.proxy and not line.protocol.remote_version:
                raise reasons.proxy_failed(line.proxy.said()) from None
            raise reasons.from_handshake(error) from None


def _close_all(logins: Iterable[Login]) -> None:
    for login in logins:
        login.close()
