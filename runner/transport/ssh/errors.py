"""Every way a log-in fails, in words a person can act on. All messages of the ssh transport."""

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
"""A server's reason not to open a channel (RFC 4254, 5.1)."""

_NO_NAME_WORDS = ("not known", "not resolve", "No address", "name resolution")


@dataclass(frozen=True)
class FailureMessages:
    """What can go wrong on the way to one machine, and what to do about it.

    Attributes:
        endpoint: The machine.
        timeout: Seconds each step may take.
        jump: The jump host just before it, if any.
        node: The node it is; "" for a jump host.
        known_hosts: The file new host keys belong into.
    """

    endpoint: Endpoint
    timeout: float
    jump: Endpoint | None = None
    node: str = ""
    known_hosts: str = ""

    @property
    def place(self) -> str:
        """The machine in words: what the problem's heading leaves open about it."""
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
        """Its name means nothing to this machine, or to the jump host."""
        is_down = error.errno == socket.EAI_AGAIN
        return self._failure(
            f"{'no name server answers for' if is_down else 'nobody here knows'}"
            f" the name {self._host_text} ({error.strerror})",
            self._setting_hint("host", "a name or an address that can be looked up here"),
        )

    def lookup_timeout(self) -> LoginFailure:
        """Nothing came back from the name server."""
        return self._timed_out(f"the name {self._host_text} could not be looked up")

    def connection_refused(self) -> LoginFailure:
        """The machine is there, its sshd is not."""
        return self._failure(
            f"{self.place} refused the connection",
            "no sshd listens there, or a firewall turns us away\n"
            + self._setting_hint("port", "the port of its sshd, if it has another one"),
        )

    def connect_timeout(self) -> LoginFailure:
        """Nothing came back at all."""
        return self._timed_out(
            f"{self.place} did not answer",
            "it is down, the address is wrong, or a firewall drops the packets",
        )

    def no_route(self, error: OSError) -> LoginFailure:
        """Our own machine knows no way to it, or a router says there is none."""
        return self._failure(
            f"{self.place} cannot be reached ({error.strerror or error})",
            "it is down, or this machine has no way to its network (VPN, routes)",
        )

    def no_banner(self) -> LoginFailure:
        """It takes the connection and says nothing."""
        return self._timed_out(
            f"{self.place} took the connection but did not begin to speak SSH",
            "something else may listen there, or sshd has too many log-ins going on (MaxStartups)",
        )

    def closed_before_banner(self) -> LoginFailure:
        """It takes the connection and ends it."""
        return self._failure(
            f"{self.place} closed the connection before SSH began",
            "sshd has too many log-ins going on (MaxStartups), or turns this address away"
            " (PerSourcePenalties), or something else listens there",
        )

    def not_ssh(self) -> LoginFailure:
        """It speaks, but not SSH."""
        return self._failure(
            f"{self.place} is not an SSH server", self._setting_hint("port", "the port of its sshd")
        )

    def handshake_timeout(self) -> LoginFailure:
        """The key exchange stopped half-way."""
        return self._timed_out(
            f"{self.place} began to speak SSH, but did not come to an end",
            "the host is overloaded, or the network drops large packets (MTU)",
        )

    def connection_lost(self, error: BaseException | None = None) -> LoginFailure:
        """The connection was there, then it was gone."""
        cause = f" ({error})" if error is not None and str(error) else ""
        return self._failure(f"the connection to {self.place} was lost{cause}")

    def proxy_failed(self, stderr: str) -> LoginFailure:
        """The ProxyCommand ended, or something else is behind it."""
        return self._failure(
            f"no SSH came through the ProxyCommand of {self.place}: {self.endpoint.proxy_command}",
            stderr or "see ProxyCommand in your ssh config",
        )

    def agent_timeout(self) -> LoginFailure:
        """The ssh agent hangs, as one of a lost forwarding does."""
        return LoginFailure(
            f"the ssh agent behind {self.endpoint.agent_socket} did not answer within {self.timeout:g} s",
            "unset SSH_AUTH_SOCK, or start another: eval $(ssh-agent); ssh-add",
        )

    def login_timeout(self) -> LoginFailure:
        """The server thinks about our keys for too long."""
        agent = ", or your ssh agent for a confirmation" if self.endpoint.agent_socket else ""
        return self._timed_out(
            f"{self.place} did not answer to the log-in as {self.endpoint.user}",
            f"sshd may wait for a name server (UseDNS) or for a directory of users{agent}",
        )

    def keys_refused(
        self, offers: KeyOffers, tried: Sequence[str], accepts: Sequence[str]
    ) -> LoginFailure:
        """None of the keys opened the door, or there was none to try."""
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
            hints.append(f"it accepts {', '.join(accepts)} only; we log in with keys")
        if tried or not encrypted:
            hints.append(
                f"put your public key into ~{self.endpoint.user}/.ssh/authorized_keys there,"
                " or set cluster.ssh.key to the right one"
            )
        return self._failure(message, "\n".join(hints))

    def too_many_keys(self, tried: Sequence[str]) -> LoginFailure:
        """The server hung up before the right key had its turn."""
        return self._failure(
            f"{self.place} hung up while keys were offered for user {self.endpoint.user}:"
            f" {', '.join(tried)}",
            "it may allow few tries (MaxAuthTries):"
            " set cluster.ssh.key to the right key, or IdentitiesOnly yes in your ssh config",
        )

    def key_failed(self, label: str, error: BaseException) -> LoginFailure:
        """A key could not be used, for one because the agent was told not to sign."""
        return self._failure(f"the log-in to {self.place} with the key {label} failed ({error})")

    def second_factor_required(self, accepts: Sequence[str]) -> LoginFailure:
        """The key is right, and not enough."""
        return self._failure(
            f"{self.place} took the key of {self.endpoint.user} and wants {' or '.join(accepts)} as well",
            "nobody can be asked while many hosts are opened at once: let keys alone suffice there",
        )

    def key_unusable(self, path: str, reason: str, remedy: str) -> LoginFailure:
        """The key the YAML names is of no use."""
        return LoginFailure(f"the key {path} of cluster.ssh.key cannot be used: {reason}", remedy)

    def key_unknown(self, key: HostKey) -> LoginFailure:
        """Nothing vouches for the machine yet."""
        return LoginFailure(
            f"the host key of {self.place} is not known: {key.type} {key.fingerprint}",
            f"{self._compare_hint(key)}\nif they are equal: {self._add_key_hint(key)}\n"
            "or let the first key of every host be trusted: cluster.ssh.host_keys=accept-new",
        )

    def key_changed(self, key: HostKey, entries: Sequence[Entry], name: str) -> LoginFailure:
        """The machine shows another key than it used to."""
        old_lines = [f"known: {e.key.type} {e.key.fingerprint} ({e.location})" for e in entries]
        files = dict.fromkeys(entry.location.rpartition(":")[0] for entry in entries)
        forget_commands = [shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files]
        return LoginFailure(
            f"the host key of {self.place} has CHANGED: it is {key.type} {key.fingerprint} now"
            f" ({entries[0].location} says otherwise)",
            "\n".join(
                [
                    *old_lines,
                    "someone may be in between, or the machine was installed anew",
                    self._compare_hint(key),
                    f"if they are equal, forget the old one: {'; '.join(forget_commands)}",
                    f"and take the new one: {self._add_key_hint(key)}",
                ]
            ),
        )

    def key_revoked(self, key: HostKey, entry: Entry) -> LoginFailure:
        """A line of the known hosts forbids this key."""
        return LoginFailure(
            f"the host key of {self.place} is REVOKED by {entry.location}:"
            f" {key.type} {key.fingerprint}",
            "do not log in; give the machine a new host key",
        )

    def no_common_algorithm(self, error: BaseException) -> LoginFailure:
        """No common ground in the key exchange."""
        return self._failure(
            f"{self.place} speaks no SSH that is safe enough for us: {error}",
            "its sshd is too old, or its Ciphers, KexAlgorithms, MACs or HostKeyAlgorithms too few",
        )

    def jump_timeout(self) -> LoginFailure:
        """The jump host took the request and did not answer."""
        return self._timed_out(f"{self.place} did not answer to {self._jump_text}")

    def jump_forward_failed(self, error: BaseException) -> LoginFailure:
        """The jump host could not, or would not, connect us."""
        reason = getattr(error, "text", "") or str(error)
        if getattr(error, "code", None) == _PROHIBITED:
            return self._failure(
                f"{self._jump_text} does not let us through to {self.place}",
                "see AllowTcpForwarding, PermitOpen and DisableForwarding in its sshd_config",
            )
        if any(phrase in reason for phrase in _NO_NAME_WORDS):
            return self._failure(
                f"the name {self.endpoint.host!r} is not known to {self._jump_text} ({reason})",
                self._setting_hint("host", "a name or an address that the jump host can look up"),
            )
        return self._failure(f"{self.place} cannot be reached from {self._jump_text} ({reason})")

    def session_refused(self, error: BaseException) -> LoginFailure:
        """Logged in, but no more sessions for us."""
        reason = getattr(error, "text", "") or str(error)
        return self._failure(
            f"{self.place} accepted the log-in but no session on it ({reason})",
            "its sshd allows too few sessions per connection (MaxSessions)",
        )

    def channel_timeout(self) -> LoginFailure:
        """Logged in, and then silence."""
        failure = self._timed_out(f"{self.place} accepted the log-in but opened no session")
        return ConnectionLost(failure.message, failure.hint)

    def stale_connection(self, error: BaseException) -> LoginFailure:
        """The connection was found dead when it was needed."""
        failure = self.connection_lost(error)
        return ConnectionLost(failure.message, failure.hint)

    def command_timeout(self) -> LoginFailure:
        """A session, and then silence."""
        return self._timed_out(f"{self.place} did not start our command")

    def command_refused(self) -> LoginFailure:
        """A session, in which we may not start anything."""
        return self._failure(
            f"{self.place} accepted the log-in but would not start our command",
            f"the shell or the limits of user {self.endpoint.user} may forbid it there",
        )

    def from_connect_error(self, error: OSError) -> LoginFailure:
        """Explain why there is no TCP connection."""
        if isinstance(error, socket.gaierror):
            return self.unknown_name(error)
        if error.errno == errno.ECONNREFUSED:
            return self.connection_refused()
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return self.connect_timeout()
        return self.no_route(error)

    def from_handshake_error(self, error: Exception) -> LoginFailure:
        """Explain what paramiko says between the connection and the log-in."""
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
        timeout_hint = "for more time, set cluster.ssh.connect_timeout"
        return self._failure(
            f"{message} within {self.timeout:g} s",
            f"{hint}\n{timeout_hint}" if hint else timeout_hint,
        )

    def _failure(self, message: str, hint: str = "") -> LoginFailure:
        manual_hint = f"try by hand: {self.endpoint.manual_command}"
        return LoginFailure(message, f"{hint}\n{manual_hint}" if hint else manual_hint)

    def _setting_hint(self, name: str, value: str) -> str:
        """Say which YAML key gives the machine another value."""
        if self.node:
            return f"set cluster.nodes.{self.node}.{name} to {value}"
        return f"give {value} in cluster.ssh.jump: [user@]host[:port]"

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
        ):  # ssh-keyscan gets no further
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
