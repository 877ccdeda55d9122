"""The SSH transport: Fabric logs in, and channels are opened on its connections."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import fabric
import paramiko

from runner.core.errors import NotReady, Problem
from runner.core.spec import Node, Ssh
from runner.transport.base import Channel
from runner.transport.ssh import protocol as ssh_protocol
from runner.transport.ssh.auth import PublicKeyAuth, SshContext
from runner.transport.ssh.config import Endpoint, Resolver
from runner.transport.ssh.deadline import SLACK_S, ConnectionLost, DeadlineTask, LoginFailure
from runner.transport.ssh.errors import Failure, FailureMessages, Timeout, UnusableKey
from runner.transport.ssh.known_hosts import HostKey, KeyStatus
from runner.transport.ssh.login_budget import MAX_WAIT_S
from runner.transport.ssh.protocol import SshChannel

CLOSE_TIMEOUT_S = 2.0


@dataclass(frozen=True)
class HostKeyPolicy:
    """Checks the host key of one machine; paramiko asks between key exchange and login."""

    context: SshContext
    endpoint: Endpoint
    messages: FailureMessages

    def missing_host_key(self, _client: object, _name: str, key: Any) -> None:
        """Accept a key, or raise LoginFailure; paramiko's own lists stay empty."""
        endpoint = self.endpoint
        messages = self.messages
        shown = HostKey(key.get_name(), key.asbytes())
        names = endpoint.lookup_names
        result = self.context.known_hosts.check(names, shown, endpoint.known_hosts_files)
        if result.status is KeyStatus.REVOKED:
            raise messages.key_revoked(shown, result.entries[0])
        if result.status is KeyStatus.CHANGED:
            raise messages.key_changed(shown, result.entries, names[0])
        if result.status is KeyStatus.UNKNOWN:
            if not self.context.accept_new:
                raise messages.key_unknown(shown)
            self._add_key(names[0], shown)

    def _add_key(self, name: str, key: HostKey) -> None:
        file = self.endpoint.known_hosts_files[0]
        note = f"{file}: added {name} {key.type} {key.fingerprint}"
        try:
            self.context.known_hosts.add(name, key, file)
        except OSError as error:
            note = f"{file}: cannot be written ({error.strerror}); the key of {name} is not added"
        self.context.on_note(note)


class SshTransport:
    """Opens channels over SSH: one connection per node, one per jump host for all behind it."""

    def __init__(self, ssh: Ssh, *, on_note: Callable[[str], None]) -> None:
        self._resolver = Resolver(ssh)
        self._context = SshContext(ssh, on_note)
        self._lock = threading.Lock()
        self._node_logins: dict[str, SharedLogin] = {}
        self._jump_logins: dict[tuple[Endpoint, ...], SharedLogin] = {}
        self._closed = False

    def open(self, node: Node, command: str) -> Channel:
        """Run a shell command line on a node and return its streams; raise NotReady."""
        with _as_problem_of(node):
            return self._login(node).start_command(command)

    def connect(self, node: Node) -> SshConnection:
        """Log in to a node, or return the connection that is open; raise NotReady."""
        with _as_problem_of(node):
            return self._login(node).connect()

    def endpoint(self, node: Node) -> Endpoint:
        """Return where a node is, by the ssh configuration too; raise NotReady."""
        with _as_problem_of(node):
            return self._login(node).endpoint

    def close(self) -> None:
        """End every connection; channels still open see their end."""
        with self._lock:
            self._closed = True
            logins = [*self._jump_logins.values(), *self._node_logins.values()]

        def close_all() -> None:  # jump hosts first: then no channel through them can block
            for login in logins:
                login.close()

        closer = threading.Thread(target=close_all, daemon=True)
        closer.start()
        closer.join(CLOSE_TIMEOUT_S)

    def _login(self, node: Node) -> SharedLogin:
        with self._lock:
            existing = self._node_logins.get(node.name)
        if existing:
            return existing
        route = self._resolver.route(node)
        with self._lock:
            if self._closed:
                raise LoginFailure("the connections are closed")
            via = None
            for count in range(1, len(route)):
                hops = route[:count]
                jump = self._jump_logins.get(hops) or SharedLogin(self._context, hops[-1], via)
                via = self._jump_logins[hops] = jump
            login = SharedLogin(self._context, route[-1], via, node=node.name)
            return self._node_logins.setdefault(node.name, login)


@contextlib.contextmanager
def _as_problem_of(node: Node) -> Iterator[None]:
    """Raise whatever happens as NotReady, with the node's name."""
    try:
        yield
    except LoginFailure as failure:
        problem = Problem(node.name, failure.message, failure.hint, failure.shared)
    except Exception as error:  # noqa: BLE001 - a person reads this, whatever it is
        problem = Problem(node.name, f"ssh failed ({type(error).__name__}: {error})")
    else:
        return
    raise NotReady([problem])


@dataclass
class SshConnection:
    """The open parts of one login, from the bottom up."""

    proxy: ssh_protocol.ProxyCommand | None = None
    sock: Any = None
    transport: Any = None
    fabric_connection: Any = None
    closed: bool = False

    @property
    def alive(self) -> bool:
        """Whether the connection is up, as far as is known without a request."""
        return bool(not self.closed and self.transport and self.transport.is_active())

    def close_if_unresponsive(self, timeout: float) -> None:
        """Send a keep-alive request, and close the connection if there is no answer."""
        work = functools.partial(self.transport.global_request, "keepalive@openssh.com")
        ping = threading.Thread(target=work, daemon=True)
        ping.start()
        ping.join(timeout)
        if ping.is_alive():
            self.close()

    def close(self) -> None:
        """Close everything; may be called twice, and during the login."""
        self.closed = True
        with contextlib.suppress(Exception):  # an error would help no caller
            if self.transport:
                ssh_protocol.close_transport(self.transport)
        with contextlib.suppress(Exception):
            if self.sock:
                self.sock.close()
        if self.proxy:
            self.proxy.close()


class SharedLogin:
    """One SSH connection, opened when first needed, and shared by all callers.

    The failure of a jump host is kept for `connect_timeout` seconds, since the nodes behind it
    need it at about the same time. A node's failure is not kept: each call tries again.
    """

    def __init__(
        self, context: SshContext, endpoint: Endpoint, via: SharedLogin | None, node: str = ""
    ) -> None:
        self._context = context
        self.endpoint = endpoint
        self._via = via
        self._failure_ttl_s = 0.0 if node else context.timeout
        jump = via.endpoint if via else None
        self._messages = FailureMessages(endpoint, context.timeout, jump, node)
        # All logins through one ProxyCommand are logins at the same bastion, too.
        proxy = endpoint.proxy_command and endpoint.proxy_template
        self._budget = context.budget(proxy or (via, endpoint.host, endpoint.port))
        self._lock = threading.Lock()
        self._task: DeadlineTask[SshConnection] | None = None
        self._connection: SshConnection | None = None
        self._closed = False

    def connect(self) -> SshConnection:
        """Return the open connection; raise LoginFailure."""
        return self._get_connection()[0]

    def start_command(self, command: str) -> SshChannel:
        """Start a command and return its channel; raise LoginFailure.

        Where the connection that was there turns out dead, it is started on a new one.
        """
        connection, is_new = self._get_connection()
        try:
            return self._exec_with_deadline(command, connection)
        except ConnectionLost:
            connection.close()
            if is_new:
                raise
        return self._exec_with_deadline(command, self._get_connection()[0])

    def close(self) -> None:
        """End the connection, for good."""
        with self._lock:
            self._closed = True
            connection, self._connection = self._connection, None
        if connection:
            connection.close()

    def _get_connection(self) -> tuple[SshConnection, bool]:
        """Return the open connection, and whether this call opened it; raise LoginFailure."""
        with self._lock:
            if self._closed:
                raise LoginFailure("the connection is closed")
            task, is_new = self._task, False
            if task is None or self._is_stale(task):
                task = self._task = DeadlineTask(self._connect, discard=SshConnection.close)
                is_new = True
        return task.result(), is_new

    def _is_stale(self, task: DeadlineTask[SshConnection]) -> bool:
        failed_for_s = task.seconds_since_failure()
        if failed_for_s is not None:
            return failed_for_s >= self._failure_ttl_s
        connection = task.result_or_none()
        return connection is not None and not connection.alive

    def _exec_with_deadline(self, command: str, connection: SshConnection) -> SshChannel:
        work = functools.partial(self._exec_command, command, connection)
        return DeadlineTask(work, discard=SshChannel.close).result()

    def _exec_command(
        self, command: str, connection: SshConnection, task: DeadlineTask[SshChannel]
    ) -> SshChannel:
        transport, timeout, messages = connection.transport, self._context.timeout, self._messages
        too_late = ConnectionLost(*messages.timed_out(Timeout.SESSION).args)
        task.begin_step(timeout, too_late, connection.close)
        try:
            channel = transport.open_session(timeout=timeout + SLACK_S)
        except paramiko.ChannelException as error:
            raise messages.failed(Failure.SESSION_REFUSED, error.text or error) from None
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise ConnectionLost(*messages.connection_lost(error).args) from None
        ssh_channel = SshChannel(channel, connection.close)
        channel.set_combine_stderr(True)
        task.begin_step(timeout, messages.timed_out(Timeout.COMMAND), ssh_channel.close)
        try:
            channel.exec_command(command)
        except (paramiko.SSHException, EOFError, OSError) as error:
            ssh_channel.close()
            if connection.alive:
                raise messages.failed(Failure.COMMAND_REFUSED) from None
            raise messages.connection_lost(error) from None
        return ssh_channel

    def _connect(self, task: DeadlineTask[SshConnection]) -> SshConnection:
        if self._via:
            self._via.connect()
        attempt = functools.partial(self._connect_once, task)
        too_late = self._messages.waited_too_long()
        return self._budget.run(attempt, lambda: task.begin_step(MAX_WAIT_S, too_late))

    def _connect_once(self, task: DeadlineTask[SshConnection]) -> SshConnection:
        with self._lock:
            if self._closed:
                raise LoginFailure("the connection is closed")
            connection = self._connection = SshConnection()
        try:
            if self._via:
                connection.sock = self._open_tunnel(self._via, task)
            else:
                self._open_socket(connection, task)
            self._log_in(connection, task)
        except BaseException:
            connection.close()
            raise
        if connection.closed:
            connection.close()
            raise LoginFailure("the connection was closed")
        ssh_protocol.wait_without_polling(connection.transport)
        return connection

    def _open_socket(self, connection: SshConnection, task: DeadlineTask[SshConnection]) -> None:
        timeout, messages = self._context.timeout, self._messages
        if self.endpoint.proxy_command:
            connection.proxy = ssh_protocol.ProxyCommand(self.endpoint.proxy_command)
            connection.sock = connection.proxy.socket
            return
        try:
            task.begin_step(timeout, messages.timed_out(Timeout.LOOKUP))
            addresses = ssh_protocol.resolve(self.endpoint.host, self.endpoint.port)
            task.begin_step(timeout + SLACK_S, messages.timed_out(Timeout.CONNECT))
            connection.sock = ssh_protocol.connect(addresses, timeout)
        except OSError as error:
            raise messages.from_connect_error(error) from None

    def _open_tunnel(self, via: SharedLogin, task: DeadlineTask[SshConnection]) -> Any:
        timeout, messages = self._context.timeout, self._messages
        jump = via.connect()
        # Either end may be unresponsive; a jump host that is would fail all later nodes, too.
        cancel = functools.partial(jump.close_if_unresponsive, timeout)
        task.begin_step(timeout, messages.timed_out(Timeout.JUMP), cancel)
        addresses, limit_s = ((self.endpoint.host, self.endpoint.port), ("", 0)), timeout + SLACK_S
        try:
            return jump.transport.open_channel("direct-tcpip", *addresses, timeout=limit_s)
        except (paramiko.SSHException, EOFError, OSError) as error:
            if not jump.alive:
                raise via._messages.connection_lost(error) from None
            raise messages.jump_forward_failed(error) from None

    def _log_in(self, connection: SshConnection, task: DeadlineTask[SshConnection]) -> None:
        context, endpoint, messages = self._context, self.endpoint, self._messages
        key = context.key_ring.load(endpoint.chosen_key) if endpoint.chosen_key else None
        if isinstance(key, UnusableKey) and not key.encrypted:
            message = f"the key {key.path} of cluster.ssh.key cannot be used: {key.reason}"
            raise LoginFailure(message, key.remedy)

        def make_transport(sock: Any, **_: object) -> ssh_protocol.SshProtocol:
            names, files = endpoint.lookup_names, endpoint.known_hosts_files
            key_types = context.known_hosts.key_types(names, files)
            transport = ssh_protocol.make_transport(sock, key_types, context.timeout)
            connection.transport = transport
            return transport

        connection.fabric_connection = fabric.Connection(
            endpoint.host,
            user=endpoint.user,
            port=endpoint.port,
            # Neither fabric.yaml nor ssh_config: the endpoint has all settings already.
            # One per connection, because Fabric changes it in place.
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=False,
            forward_agent=False,
            connect_kwargs={
                "sock": connection.sock,
                "transport_factory": make_transport,
                "auth_strategy": PublicKeyAuth(context.key_ring, endpoint, messages, task),
            },
        )
        policy = HostKeyPolicy(context, endpoint, messages)
        connection.fabric_connection.client.set_missing_host_key_policy(policy)
        too_late = messages.timed_out(Timeout.HANDSHAKE)
        task.begin_step(context.timeout + SLACK_S, too_late, connection.close)
        try:
            connection.fabric_connection.open()
        except LoginFailure:
            raise
        except Exception as error:  # noqa: BLE001 - paramiko raises what its threads met
            last_line = connection.transport.last_line if connection.transport else ""
            if connection.proxy and not connection.transport.remote_version:
                raise messages.proxy_failed(*connection.proxy.ending(), last_line) from None
            raise messages.from_handshake_error(error, last_line) from None
