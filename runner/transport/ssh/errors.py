"""Classification of SSH failures: each as final or as a refusal for now, with its message."""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import paramiko

from runner.core import shell
from runner.core.errors import Shared
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import LoginFailure, RefusedForNow
from runner.transport.ssh.known_hosts import Entry, HostKey
from runner.transport.ssh.login_budget import MAX_WAIT_S

_PROHIBITED, _SHORTAGE = 1, 4
"""Reasons for not opening a channel: "administratively prohibited", "resource shortage"
(RFC 4254, 5.1)."""

_CLOSED_BY_SSHD = re.compile(r"_exchange_identification: .*Connection (closed|reset)")
_NOT_REACHED = re.compile(r"connect to host|open failed|resolve hostname")
"""What ssh as a ProxyCommand says of a bastion's sshd that closes the connection at once, and of
machines that it does not reach."""

_DENIED_BY_SSHD = re.compile(
    r"Permission denied \(|Host key verification failed|Too many authentication failures"
)
"""What it says of a bastion that accepts no key of ours, or whose key we do not accept."""

_NO_NAME_WORDS = ("not known", "not resolve", "No address", "name resolution")


class Timeout(Enum):
    """A step of a login that takes too long: message, and on a second line the hint."""

    LOOKUP = "the name {host} could not be looked up"
    CONNECT = (
        "{place} did not answer\nit is down, the address is wrong, or a firewall drops the packets"
    )
    BANNER = (
        "{place} accepted the connection but sent no SSH banner\n"
        "another program may listen there, or sshd has too many logins in progress (MaxStartups)"
    )
    HANDSHAKE = (
        "{place} began the SSH handshake but did not finish it\n"
        "the host is overloaded, or the network drops large packets (MTU)"
    )
    LOGIN = (
        "{place} did not answer the login as {user}\n"
        "sshd may wait for a name server (UseDNS) or a user directory (LDAP){agent}"
    )
    JUMP = "{place} did not answer {jump}"
    SESSION = "{place} accepted the login but opened no session"
    COMMAND = "{place} did not start the command"


class Failure(Enum):
    """A step of a login that fails, for a `cause`: message, and on a second line the hint."""

    NO_ROUTE = (
        "{place} cannot be reached ({cause})\n"
        "it is down, or this machine has no route to its network (VPN, routes)"
    )
    REFUSED_FOR_NOW = (
        "{cause} but refuses logins for now\n"
        "its sshd has too many logins in progress (MaxStartups), or rejects this address for 15 s"
        " to 10 min after failed logins (PerSourcePenalties of OpenSSH 9.8 and later); its log says"
        " which, or nothing, if something else listens there\n"
        "wait and try again, raise MaxStartups in its sshd_config, or allow more time:"
        " cluster.ssh.connect_timeout"
    )
    NO_COMMON_ALGORITHM = (
        "{place} supports no SSH algorithm that the runner accepts: {cause}\n"
        "its sshd is too old, or its Ciphers, KexAlgorithms, MACs or HostKeyAlgorithms are too "
        "restricted"
    )
    TOO_MANY_KEYS = (
        "{place} closed the connection while keys were offered for user {user}: {cause}\n"
        "it may allow few attempts (MaxAuthTries):"
        " set cluster.ssh.key to the right key, or IdentitiesOnly yes in your ssh config"
    )
    KEY_FAILED = "the login to {place} with the key {cause}"
    SECOND_FACTOR = (
        "{place} accepted the key of {user} and requires {cause} as well\n"
        "the runner does not prompt while it connects to many hosts: allow login by key alone "
        "there"
    )
    SESSION_REFUSED = (
        "{place} accepted the login but refused a session ({cause})\n"
        "its sshd allows too few sessions per connection (MaxSessions)"
    )
    COMMAND_REFUSED = (
        "{place} accepted the login but refused to start the command\n"
        "the shell or the limits of user {user} there may forbid it"
    )


@dataclass(frozen=True)
class UnusableKey:
    """A private key file that cannot be offered, the reason, and the remedy."""

    path: str
    reason: str
    remedy: str = ""
    encrypted: bool = False


@dataclass(frozen=True)
class FailureMessages:
    """The failures of a login to one machine, each with a remedy."""

    endpoint: Endpoint
    timeout: float  # of each step
    jump: Endpoint | None = None  # the jump host just before it
    node: str = ""  # "" for a jump host

    @property
    def place(self) -> str:
        """The machine in words, without what the problem's heading says already."""
        name, host = self.endpoint.name, self.endpoint.host
        host_text = host if name in (host, self.node) else f"{name} ({host})"
        return f"{'' if self.node else 'jump host '}{host_text} port {self.endpoint.port}"

    @property
    def _host_text(self) -> str:
        of_jump = "" if self.node else f" of jump host {self.endpoint.name}"
        return f"{self.endpoint.host!r}{of_jump}"

    @property
    def _jump_text(self) -> str:
        return f"jump host {self.jump.name}" if self.jump else "its proxy"

    def timed_out(self, step: Timeout) -> LoginFailure:
        """Return the failure of a step that took too long."""
        message, _, hint = step.value.partition("\n")
        hint += "\n" * bool(hint) + "to allow more time, set cluster.ssh.connect_timeout"
        return self._failure(f"{self._fill(message)} within {self.timeout:g} s", self._fill(hint))

    def failed(self, step: Failure, cause: object = "") -> LoginFailure:
        """Return the failure of a step."""
        message, _, hint = step.value.partition("\n")
        return self._failure(self._fill(message, cause), self._fill(hint))

    def _fill(self, text: str, cause: object = "") -> str:
        agent = ", or your ssh agent for a confirmation" if self.endpoint.agent_socket else ""
        names = {"place": self.place, "host": self._host_text, "user": self.endpoint.user}
        return text.format(**names, jump=self._jump_text, agent=agent, cause=cause)

    def _failure(self, message: str, hint: str = "") -> LoginFailure:
        example = f"try by hand: {self.endpoint.manual_command}"
        own_hint = f"{hint}\n{example}" if hint else example
        shared = message
        if self.node:  # the jump host is that of many nodes, and is named
            shared = shared.replace(self.place, f"its port {self.endpoint.port}")
            shared = shared.replace(f"the name {self._host_text}", "the name of its host")
        return LoginFailure(message, own_hint, Shared(shared, hint, example=example))

    def _setting_hint(self, name: str, value: str) -> str:
        if self.node:
            return f"set cluster.nodes.{self.node}.{name} to {value}"
        return f"write {value} in cluster.ssh.jump: [user@]host[:port]"

    def agent_timeout(self) -> LoginFailure:
        """The ssh agent hangs, as a forwarded one does when its connection is lost."""
        return LoginFailure(
            f"the ssh agent at {self.endpoint.agent_socket} did not answer "
            f"within {self.timeout:g} s",
            "unset SSH_AUTH_SOCK, or start another: eval $(ssh-agent); ssh-add",
        )

    def connection_lost(self, error: BaseException | None) -> LoginFailure:
        """The connection was lost."""
        cause = f" ({error})" if error is not None and str(error) else ""
        return self._failure(f"the connection to {self.place} was lost{cause}")

    def refused_for_now(self, said: str = "", who: str = "") -> RefusedForNow:
        """An sshd is up and closed the connection before it had read a key."""
        way = f" through {self._jump_text}" if self.jump or self.endpoint.proxy_command else ""
        cause = who or f"{self.place} answers{way}"
        message, _, hint = Failure.REFUSED_FOR_NOW.value.partition("\n")
        failure = self._failure(
            self._fill(message, cause), f"it said: {said}\n{hint}" if said else hint
        )
        return RefusedForNow(failure.message, failure.hint, failure.shared)

    def waited_too_long(self) -> LoginFailure:
        """The logins before this one took all the time."""
        message = f"the login to {self.place} had to wait {MAX_WAIT_S:g} s for those before it"
        return self._failure(message, "use cluster.ssh.jump: one login at it serves all hosts")

    def proxy_failed(self, code: int | None, stderr: Sequence[str], last_line: str) -> LoginFailure:
        """The ProxyCommand ended, or does not lead to an sshd.

        Without an error, it led to an sshd that closed the connection after `last_line`.
        """
        text, command = "\n".join(stderr), self.endpoint.proxy_template
        is_reached = not _NOT_REACHED.search(text)
        if is_reached and _CLOSED_BY_SSHD.search(text):
            who = f"the jump host of the ProxyCommand `{command}` of {self.place} answers"
            return self.refused_for_now(who=who)
        denials = [line for line in stderr if _DENIED_BY_SSHD.search(line)]
        if is_reached and denials:
            message = f"the jump host of the ProxyCommand `{command}` denies the login"
            return self._failure(message, denials[-1])
        if code == 0 and (last_line or not stderr):
            return self.refused_for_now(last_line)
        return self._failure(
            f"no SSH came through the ProxyCommand of {self.place}: {self.endpoint.proxy_command}",
            stderr[-1] if stderr else "see ProxyCommand in your ssh config",
        )

    def keys_refused(
        self, unusable: Sequence[UnusableKey], tried: Sequence[str], accepts: Sequence[str]
    ) -> LoginFailure:
        """No key was accepted, or there was none to offer."""
        encrypted = [key for key in unusable if key.encrypted]
        user = self.endpoint.user
        if tried:
            message = f"{self.place} refused every key offered for user {user}: {', '.join(tried)}"
        elif encrypted:
            message = f"the key {encrypted[0].path} cannot be used: {encrypted[0].reason}"
        else:
            message = f"there is no key to log in to {self.place} with as user {user}"
        hints = [f"not offered: {e.path}: {e.reason}" for e in unusable if e.path not in message]
        hints += [key.remedy for key in unusable if key.remedy]
        if accepts and "publickey" not in accepts:
            hints.append(f"it accepts {', '.join(accepts)} only; the runner logs in with keys")
        if tried or not encrypted:
            hints.append(
                f"put your public key into ~{user}/.ssh/authorized_keys there,"
                " or set cluster.ssh.key to the right one"
            )
        return self._failure(message, "\n".join(hints))

    def key_unknown(self, key: HostKey) -> LoginFailure:
        """The machine's host key is not known yet."""
        hint = "if they are equal: {}\nor trust the first key of every host: "
        hint = f"{_compare_hint(key)}\n{hint}cluster.ssh.host_keys=accept-new"
        file = self.endpoint.known_hosts_files[0]
        host = shell.quote(self.endpoint.host)
        key_text = f"{key.type} {key.fingerprint}"
        shared = None
        if not self._needs_own_command:
            shared_hint = hint.replace("{}", self._add_key_hint(key, file, "{}"))
            detail = f"{self.place}: {key_text}"
            shared = Shared("the host keys are not known", shared_hint, host, detail)
        return LoginFailure(
            f"the host key of {self.place} is not known: {key_text}",
            hint.replace("{}", self._add_key_hint(key, file, host)),
            shared,
        )

    def key_changed(self, key: HostKey, entries: Sequence[Entry], name: str) -> LoginFailure:
        """The machine shows another key than before."""
        files = dict.fromkeys(entry.location.rpartition(":")[0] for entry in entries)
        host = shell.quote(self.endpoint.host)
        forget_commands = [shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files]
        hints = [
            *(f"known: {e.key.type} {e.key.fingerprint} ({e.location})" for e in entries),
            "someone may intercept the connection, or the machine was reinstalled",
            _compare_hint(key),
            f"if they are equal, forget the old one: {'; '.join(forget_commands)}",
            f"and take the new one: {self._add_key_hint(key, next(iter(files)), host)}",
        ]
        return LoginFailure(
            f"the host key of {self.place} has CHANGED: it is {key.type} {key.fingerprint} now"
            f" ({entries[0].location} says otherwise)",
            "\n".join(hints),
        )

    def key_revoked(self, key: HostKey, entry: Entry) -> LoginFailure:
        """A line of a known-hosts file revokes this key."""
        return LoginFailure(
            f"the host key of {self.place} is REVOKED by {entry.location}:"
            f" {key.type} {key.fingerprint}",
            "do not log in; give the machine a new host key",
        )

    def jump_forward_failed(self, error: BaseException) -> LoginFailure:
        """The jump host could not connect, or refused to."""
        reason = getattr(error, "text", "") or str(error)
        if getattr(error, "code", None) == _PROHIBITED:
            return self._failure(
                f"{self._jump_text} does not allow forwarding to {self.place}",
                "see AllowTcpForwarding, PermitOpen and DisableForwarding in its sshd_config",
            )
        if getattr(error, "code", None) == _SHORTAGE:
            who = f"{self._jump_text} of {self.place} answers"
            return self.refused_for_now(reason, who)
        if any(phrase in reason for phrase in _NO_NAME_WORDS):
            return self._failure(
                f"the name {self.endpoint.host!r} is not known to {self._jump_text} ({reason})",
                self._setting_hint("host", "a name or an address that the jump host can look up"),
            )
        return self._failure(f"{self.place} cannot be reached from {self._jump_text} ({reason})")

    def from_connect_error(self, error: OSError) -> LoginFailure:
        """Return the failure for an error of the TCP connection."""
        if isinstance(error, socket.gaierror):
            is_down = error.errno == socket.EAI_AGAIN
            who = "no name server answers for" if is_down else "this machine cannot resolve"
            return self._failure(
                f"{who} the name {self._host_text} ({error.strerror})",
                self._setting_hint("host", "a name or an address that this machine can look up"),
            )
        if error.errno == errno.ECONNREFUSED:
            return self._failure(
                f"{self.place} refused the connection",
                "no sshd listens there, or a firewall rejects the connection\n"
                + self._setting_hint("port", "the port of its sshd, if it has another one"),
            )
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return self.timed_out(Timeout.CONNECT)
        return self.failed(Failure.NO_ROUTE, error.strerror or error)

    def from_handshake_error(self, error: Exception, last_line: str) -> LoginFailure:
        """Return the failure for an error of paramiko's between connection and login.

        `last_line` is what came before the error, instead of an SSH banner.
        """
        text = str(error)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            return self.failed(Failure.NO_COMMON_ALGORITHM, error)
        if "Indecipherable" in text or "Invalid SSH banner" in text:  # it sends data, but not SSH
            hint = self._setting_hint("port", "the port of its sshd")
            return self._failure(f"{self.place} is not an SSH server", hint)
        if "banner" in text:
            is_timeout = isinstance(error.__context__, TimeoutError)
            return self.timed_out(Timeout.BANNER) if is_timeout else self.refused_for_now(last_line)
        if isinstance(error, (EOFError, ConnectionResetError)):
            return self.refused_for_now()
        return self.connection_lost(error)

    @property
    def _needs_own_command(self) -> bool:
        endpoint = self.endpoint  # ssh-keyscan goes through none of these
        return bool(self.jump or endpoint.proxy_command or endpoint.host_key_alias)

    def _add_key_hint(self, key: HostKey, file: str, host: str) -> str:
        endpoint = self.endpoint
        if self._needs_own_command:
            return endpoint.manual_command.replace("ssh -v", "ssh", 1)
        scan = shell.line(["ssh-keyscan", "-p", str(endpoint.port), "-t", key.algorithm])
        return f"{scan} {host} >> {shell.path(file)}"


def _compare_hint(key: HostKey) -> str:
    return (
        "compare it with what the host itself says:"
        f" ssh-keygen -lf /etc/ssh/ssh_host_{key.algorithm}_key.pub"
    )
