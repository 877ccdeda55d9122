"""Failure messages of the SSH transport, each with the next step."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import paramiko

from runner.core import shell
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import ConnectionLost, LoginFailure
from runner.transport.ssh.keys import KeyOffers
from runner.transport.ssh.known_hosts import Entry, HostKey

_PROHIBITED = 1
"""The reason "administratively prohibited" for not opening a channel (RFC 4254, 5.1)."""

_NO_NAME_WORDS = ("not known", "not resolve", "No address", "name resolution")


@dataclass(frozen=True)
class FailureMessages:
    """The failures of a login to one machine, each with a remedy.

    Attributes:
        endpoint: The machine.
        timeout: The time limit of each step in seconds.
        jump: The jump host just before it, if any.
        node: The name of its node; "" for a jump host.
        known_hosts: The file to which new host keys are added.
    """

    endpoint: Endpoint
    timeout: float
    jump: Endpoint | None = None
    node: str = ""
    known_hosts: str = ""

    @property
    def place(self) -> str:
        """The machine in words, without what the problem's heading says already."""
        name, host = self.endpoint.name, self.endpoint.host
        host_text = host if name in (host, self.node) else f"{name} ({host})"
        return f"{'' if self.node else 'jump host '}{host_text} port {self.endpoint.port}"

    @property
    def _host_text(self) -> str:
        return (
            f"{self.endpoint.host!r}"
            if self.node
            else f"{self.endpoint.host!r} of jump host {self.endpoint.name}"
        )

    def unknown_name(self, error: OSError) -> LoginFailure:
        """Its name cannot be resolved on this machine."""
        is_down = error.errno == socket.EAI_AGAIN
        return self._failure(
            f"{'no name server answers for' if is_down else 'this machine cannot resolve'}"
            f" the name {self._host_text} ({error.strerror})",
            self._setting_hint("host", "a name or an address that this machine can look up"),
        )

    def lookup_timeout(self) -> LoginFailure:
        """The name server did not answer."""
        return self._timed_out(f"the name {self._host_text} could not be looked up")

    def connection_refused(self) -> LoginFailure:
        """The machine is up, but its sshd is not."""
        return self._failure(
            f"{self.place} refused the connection",
            "no sshd listens there, or a firewall rejects the connection\n"
            + self._setting_hint("port", "the port of its sshd, if it has another one"),
        )

    def connect_timeout(self) -> LoginFailure:
        """There was no answer at all."""
        return self._timed_out(
            f"{self.place} did not answer",
            "it is down, the address is wrong, or a firewall drops the packets",
        )

    def no_route(self, error: OSError) -> LoginFailure:
        """There is no route to the machine."""
        return self._failure(
            f"{self.place} cannot be reached ({error.strerror or error})",
            "it is down, or this machine has no route to its network (VPN, routes)",
        )

    def no_banner(self) -> LoginFailure:
        """It accepts the connection and sends nothing."""
        return self._timed_out(
            f"{self.place} accepted the connection but sent no SSH banner",
            "another program may listen there, or sshd has too many logins in progress "
            "(MaxStartups)",
        )

    def closed_before_banner(self) -> LoginFailure:
        """It accepts the connection and closes it."""
        return self._failure(
            f"{self.place} closed the connection before SSH began",
            "sshd has too many logins in progress (MaxStartups), or rejects this address"
            " (PerSourcePenalties), or something else listens there",
        )

    def not_ssh(self) -> LoginFailure:
        """It sends data, but not SSH."""
        return self._failure(
            f"{self.place} is not an SSH server", self._setting_hint("port", "the port of its sshd")
        )

    def handshake_timeout(self) -> LoginFailure:
        """The key exchange did not finish."""
        return self._timed_out(
            f"{self.place} began the SSH handshake but did not finish it",
            "the host is overloaded, or the network drops large packets (MTU)",
        )

    def connection_lost(self, error: BaseException | None = None) -> LoginFailure:
        """The connection was lost."""
        cause = f" ({error})" if error is not None and str(error) else ""
        return self._failure(f"the connection to {self.place} was lost{cause}")

    def proxy_failed(self, stderr: str) -> LoginFailure:
        """The ProxyCommand ended, or does not lead to an sshd."""
        return self._failure(
            f"no SSH came through the ProxyCommand of {self.place}: {self.endpoint.proxy_command}",
            stderr or "see ProxyCommand in your ssh config",
        )

    def agent_timeout(self) -> LoginFailure:
        """The ssh agent hangs, as a forwarded one does when its connection is lost."""
        return LoginFailure(
            f"the ssh agent at {self.endpoint.agent_socket} did not answer "
            f"within {self.timeout:g} s",
            "unset SSH_AUTH_SOCK, or start another: eval $(ssh-agent); ssh-add",
        )

    def login_timeout(self) -> LoginFailure:
        """The server takes too long over the user's keys."""
        agent = ", or your ssh agent for a confirmation" if self.endpoint.agent_socket else ""
        return self._timed_out(
            f"{self.place} did not answer the login as {self.endpoint.user}",
            f"sshd may wait for a name server (UseDNS) or a user directory (LDAP){agent}",
        )

    def keys_refused(
        self, offers: KeyOffers, tried: Sequence[str], accepts: Sequence[str]
    ) -> LoginFailure:
        """No key was accepted, or there was none to offer."""
        encrypted = [key for key in offers.unusable if key.encrypted]
        if tried:
            message = f"{self.place} refused every key offered for user {self.endpoint.user}: "
            message += ", ".join(tried)
        elif encrypted:
            message = f"the key {encrypted[0].path} cannot be used: {encrypted[0].reason}"
        else:
            message = f"there is no key to log in to {self.place} with as user {self.endpoint.user}"
        hints = [
            f"not offered: {e.path}: {e.reason}" for e in offers.unusable if e.path not in message
        ]
        hints += [key.remedy for key in offers.unusable if key.remedy]
        if accepts and "publickey" not in accepts:
            hints.append(f"it accepts {', '.join(accepts)} only; the runner logs in with keys")
        if tried or not encrypted:
            hints.append(
                f"put your public key into ~{self.endpoint.user}/.ssh/authorized_keys there,"
                " or set cluster.ssh.key to the right one"
            )
        return self._failure(message, "\n".join(hints))

    def too_many_keys(self, tried: Sequence[str]) -> LoginFailure:
        """The server closed the connection before the right key was offered."""
        return self._failure(
            f"{self.place} closed the connection while keys were offered for user "
            f"{self.endpoint.user}: {', '.join(tried)}",
            "it may allow few attempts (MaxAuthTries):"
            " set cluster.ssh.key to the right key, or IdentitiesOnly yes in your ssh config",
        )

    def key_failed(self, label: str, error: BaseException) -> LoginFailure:
        """A key could not be used, for example because the agent refused to sign."""
        return self._failure(f"the login to {self.place} with the key {label} failed ({error})")

    def second_factor_required(self, accepts: Sequence[str]) -> LoginFailure:
        """The key is accepted, but not sufficient."""
        return self._failure(
            f"{self.place} accepted the key of {self.endpoint.user} and requires "
            f"{' or '.join(accepts)} as well",
            "the runner does not prompt while it connects to many hosts: allow login by key alone "
            "there",
        )

    def key_unusable(self, path: str, reason: str, remedy: str) -> LoginFailure:
        """The key named in the YAML cannot be used."""
        return LoginFailure(f"the key {path} of cluster.ssh.key cannot be used: {reason}", remedy)

    def key_unknown(self, key: HostKey) -> LoginFailure:
        """The machine's host key is not known yet."""
        return LoginFailure(
            f"the host key of {self.place} is not known: {key.type} {key.fingerprint}",
            f"{self._compare_hint(key)}\nif they are equal: {self._add_key_hint(key)}\n"
            "or trust the first key of every host: cluster.ssh.host_keys=accept-new",
        )

    def key_changed(self, key: HostKey, entries: Sequence[Entry], name: str) -> LoginFailure:
        """The machine shows another key than before."""
        old_lines = [f"known: {e.key.type} {e.key.fingerprint} ({e.location})" for e in entries]
        files = dict.fromkeys(entry.location.rpartition(":")[0] for entry in entries)
        forget_commands = [shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files]
        return LoginFailure(
            f"the host key of {self.place} has CHANGED: it is {key.type} {key.fingerprint} now"
            f" ({entries[0].location} says otherwise)",
            "\n".join(
                [
                    *old_lines,
                    "someone may intercept the connection, or the machine was reinstalled",
                    self._compare_hint(key),
                    f"if they are equal, forget the old one: {'; '.join(forget_commands)}",
                    f"and take the new one: {self._add_key_hint(key)}",
                ]
            ),
        )

    def key_revoked(self, key: HostKey, entry: Entry) -> LoginFailure:
        """A line of a known-hosts file revokes this key."""
        return LoginFailure(
            f"the host key of {self.place} is REVOKED by {entry.location}:"
            f" {key.type} {key.fingerprint}",
            "do not log in; give the machine a new host key",
        )

    def no_common_algorithm(self, error: BaseException) -> LoginFailure:
        """Both sides share no algorithm."""
        return self._failure(
            f"{self.place} supports no SSH algorithm that the runner accepts: {error}",
            "its sshd is too old, or its Ciphers, KexAlgorithms, MACs or HostKeyAlgorithms are too "
            "restricted",
        )

    def jump_timeout(self) -> LoginFailure:
        """The jump host accepted the request and did not answer."""
        return self._timed_out(f"{self.place} did not answer {self._jump_text}")

    def jump_forward_failed(self, error: BaseException) -> LoginFailure:
        """The jump host could not connect, or refused to."""
        reason = getattr(error, "text", "") or str(error)
        if getattr(error, "code", None) == _PROHIBITED:
            return self._failure(
                f"{self._jump_text} does not allow forwarding to {self.place}",
                "see AllowTcpForwarding, PermitOpen and DisableForwarding in its sshd_config",
            )
        if any(phrase in reason for phrase in _NO_NAME_WORDS):
            return self._failure(
                f"the name {self.endpoint.host!r} is not known to {self._jump_text} ({reason})",
                self._setting_hint("host", "a name or an address that the jump host can look up"),
            )
        return self._failure(f"{self.place} cannot be reached from {self._jump_text} ({reason})")

    def session_refused(self, error: BaseException) -> LoginFailure:
        """Logged in, but no further session is allowed."""
        reason = getattr(error, "text", "") or str(error)
        return self._failure(
            f"{self.place} accepted the login but refused a session ({reason})",
            "its sshd allows too few sessions per connection (MaxSessions)",
        )

    def channel_timeout(self) -> LoginFailure:
        """Logged in, but no session was opened in time."""
        failure = self._timed_out(f"{self.place} accepted the login but opened no session")
        return ConnectionLost(failure.message, failure.hint)

    def stale_connection(self, error: BaseException) -> LoginFailure:
        """An existing connection turned out to be dead."""
        failure = self.connection_lost(error)
        return ConnectionLost(failure.message, failure.hint)

    def command_timeout(self) -> LoginFailure:
        """The session was opened, but the command did not start in time."""
        return self._timed_out(f"{self.place} did not start the command")

    def command_refused(self) -> LoginFailure:
        """The session was opened, but commands are not allowed."""
        return self._failure(
            f"{self.place} accepted the login but refused to start the command",
            f"the shell or the limits of user {self.endpoint.user} there may forbid it",
        )

    def from_connect_error(self, error: OSError) -> LoginFailure:
        """Return the failure for an error of the TCP connection."""
        if isinstance(error, socket.gaierror):
            return self.unknown_name(error)
        if error.errno == errno.ECONNREFUSED:
            return self.connection_refused()
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return self.connect_timeout()
        return self.no_route(error)

    def from_handshake_error(self, error: Exception) -> LoginFailure:
        """Return the failure for an error of paramiko's between connection and login."""
        text = str(error)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            return self.no_common_algorithm(error)
        if "Indecipherable" in text or "Invalid SSH banner" in text:
            return self.not_ssh()
        if "banner" in text:
            is_timeout = isinstance(error.__context__, TimeoutError)
            return self.no_banner() if is_timeout else self.closed_before_banner()
        return self.connection_lost(error)

    def _timed_out(self, message: str, hint: str = "") -> LoginFailure:
        timeout_hint = "to allow more time, set cluster.ssh.connect_timeout"
        return self._failure(
            f"{message} within {self.timeout:g} s",
            f"{hint}\n{timeout_hint}" if hint else timeout_hint,
        )

    def _failure(self, message: str, hint: str = "") -> LoginFailure:
        manual_hint = f"try by hand: {self.endpoint.manual_command}"
        return LoginFailure(message, f"{hint}\n{manual_hint}" if hint else manual_hint)

    def _setting_hint(self, name: str, value: str) -> str:
        """Return which YAML key changes a setting of the machine."""
        if self.node:
            return f"set cluster.nodes.{self.node}.{name} to {value}"
        return f"write {value} in cluster.ssh.jump: [user@]host[:port]"

    @property
    def _jump_text(self) -> str:
        return f"jump host {self.jump.name}" if self.jump else "its proxy"

    def _compare_hint(self, key: HostKey) -> str:
        return (
            "compare it with what the host itself says:"
            f" ssh-keygen -lf /etc/ssh/ssh_host_{key.algorithm}_key.pub"
        )

    def _add_key_hint(self, key: HostKey) -> str:
        if (
            self.jump or self.endpoint.proxy_command or self.endpoint.host_key_alias
        ):  # ssh-keyscan cannot go through these
            return self.endpoint.manual_command.replace("ssh -v", "ssh", 1)
        scan = [
            "ssh-keyscan",
            "-p",
            str(self.endpoint.port),
            "-t",
            key.algorithm,
            self.endpoint.host,
        ]
        return f"{shell.line(scan)} >> {shell.path(self.known_hosts)}"
