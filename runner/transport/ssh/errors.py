"""Every way a log-in fails, in words a person can act on. All messages of the ssh transport."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import paramiko

from runner.core import shell
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import Failure, Lost
from runner.transport.ssh.keys import Offers
from runner.transport.ssh.known_hosts import Entry, HostKey

_PROHIBITED = 1
"""A server's reason not to open a channel (RFC 4254, 5.1)."""

_NO_NAME_WORDS = ("not known", "not resolve", "No address", "name resolution")


@dataclass(frozen=True)
class Reasons:
    """What can go wrong on the way to one machine, and what to do about it.

    Attributes:
        at: The machine.
        timeout: Seconds each step may take.
        jump: The jump host just before it, if any.
        node: The node it is; "" for a jump host.
        known_hosts: The file new host keys belong into.
    """

    at: Endpoint
    timeout: float
    jump: Endpoint | None = None
    node: str = ""
    known_hosts: str = ""

    @property
    def place(self) -> str:
        """The machine in words: what the problem's heading leaves open about it."""
        name, host = self.at.name, self.at.host
        where = host if name in (host, self.node) else f"{name} ({host})"
        return f"{'' if self.node else 'jump host '}{where} port {self.at.port}"

    @property
    def _name(self) -> str:
        return f"{self.at.host!r}" if self.node else f"{self.at.host!r} of jump host {self.at.name}"

    def unknown_name(self, error: OSError) -> Failure:
        """Its name means nothing to this machine, or to the jump host."""
        is_down = error.errno == socket.EAI_AGAIN
        return self._failure(
            f"{'no name server answers for' if is_down else 'nobody here knows'}"
            f" the name {self._name} ({error.strerror})",
            self._set("host", "a name or an address that can be looked up here"),
        )

    def slow_name(self) -> Failure:
        """Nothing came back from the name server."""
        return self._late(f"the name {self._name} could not be looked up")

    def refused(self) -> Failure:
        """The machine is there, its sshd is not."""
        return self._failure(
            f"{self.place} refused the connection",
            "no sshd listens there, or a firewall turns us away\n"
            + self._set("port", "the port of its sshd, if it has another one"),
        )

    def no_answer(self) -> Failure:
        """Nothing came back at all."""
        return self._late(
            f"{self.place} did not answer",
            "it is down, the address is wrong, or a firewall drops the packets",
        )

    def no_route(self, error: OSError) -> Failure:
        """Our own machine knows no way to it, or a router says there is none."""
        return self._failure(
            f"{self.place} cannot be reached ({error.strerror or error})",
            "it is down, or this machine has no way to its network (VPN, routes)",
        )

    def no_banner(self) -> Failure:
        """It takes the connection and says nothing."""
        return self._late(
            f"{self.place} took the connection but did not begin to speak SSH",
            "something else may listen there, or sshd has too many log-ins going on (MaxStartups)",
        )

    def hung_up_early(self) -> Failure:
        """It takes the connection and ends it."""
        return self._failure(
            f"{self.place} closed the connection before SSH began",
            "sshd has too many log-ins going on (MaxStartups), or turns this address away"
            " (PerSourcePenalties), or something else listens there",
        )

    def not_ssh(self) -> Failure:
        """It speaks, but not SSH."""
        return self._failure(
            f"{self.place} is not an SSH server", self._set("port", "the port of its sshd")
        )

    def slow_handshake(self) -> Failure:
        """The key exchange stopped half-way."""
        return self._late(
            f"{self.place} began to speak SSH, but did not come to an end",
            "the host is overloaded, or the network drops large packets (MTU)",
        )

    def dropped(self, error: BaseException | None = None) -> Failure:
        """The connection was there, then it was gone."""
        cause = f" ({error})" if error is not None and str(error) else ""
        return self._failure(f"the connection to {self.place} was lost{cause}")

    def proxy_failed(self, said: str) -> Failure:
        """The ProxyCommand ended, or something else is behind it."""
        return self._failure(
            f"no SSH came through the ProxyCommand of {self.place}: {self.at.proxy_command}",
            said or "see ProxyCommand in your ssh config",
        )

    def slow_agent(self) -> Failure:
        """The ssh agent hangs, as one of a lost forwarding does."""
        return Failure(
            f"the ssh agent behind {self.at.agent} did not answer within {self.timeout:g} s",
            "unset SSH_AUTH_SOCK, or start another: eval $(ssh-agent); ssh-add",
        )

    def slow_login(self) -> Failure:
        """The server thinks about our keys for too long."""
        agent = ", or your ssh agent for a confirmation" if self.at.agent else ""
        return self._late(
            f"{self.place} did not answer to the log-in as {self.at.user}",
            f"sshd may wait for a name server (UseDNS) or for a directory of users{agent}",
        )

    def keys_refused(self, offers: Offers, tried: Sequence[str], accepts: Sequence[str]) -> Failure:
        """None of the keys opened the door, or there was none to try."""
        encrypted = [each for each in offers.left_out if each.encrypted]
        if tried:
            what = f"{self.place} refused every key offered for user {self.at.user}: "
            what += ", ".join(tried)
        elif encrypted:
            what = f"the key {encrypted[0].path} cannot be used: {encrypted[0].why}"
        else:
            what = f"there is no key to log in to {self.place} with as user {self.at.user}"
        hints = [f"not offered: {e.path}: {e.why}" for e in offers.left_out if e.path not in what]
        hints += [each.cure for each in offers.left_out if each.cure]
        if accepts and "publickey" not in accepts:
            hints.append(f"it accepts {', '.join(accepts)} only; we log in with keys")
        if tried or not encrypted:
            hints.append(
                f"put your public key into ~{self.at.user}/.ssh/authorized_keys there,"
                " or set cluster.ssh.key to the right one"
            )
        return self._failure(what, "\n".join(hints))

    def too_many_keys(self, tried: Sequence[str]) -> Failure:
        """The server hung up before the right key had its turn."""
        return self._failure(
            f"{self.place} hung up while keys were offered for user {self.at.user}:"
            f" {', '.join(tried)}",
            "it may allow few tries (MaxAuthTries):"
            " set cluster.ssh.key to the right key, or IdentitiesOnly yes in your ssh config",
        )

    def key_failed(self, label: str, error: BaseException) -> Failure:
        """A key could not be used, for one because the agent was told not to sign."""
        return self._failure(f"the log-in to {self.place} with the key {label} failed ({error})")

    def second_factor(self, accepts: Sequence[str]) -> Failure:
        """The key is right, and not enough."""
        return self._failure(
            f"{self.place} took the key of {self.at.user} and wants {' or '.join(accepts)} as well",
            "nobody can be asked while many hosts are opened at once: let keys alone suffice there",
        )

    def key_unreadable(self, path: str, why: str, cure: str) -> Failure:
        """The key the YAML names is of no use."""
        return Failure(f"the key {path} of cluster.ssh.key cannot be used: {why}", cure)

    def key_unknown(self, key: HostKey) -> Failure:
        """Nothing vouches for the machine yet."""
        return Failure(
            f"the host key of {self.place} is not known: {key.type} {key.fingerprint}",
            f"{self._compare(key)}\nif they are equal: {self._record(key)}\n"
            "or let the first key of every host be trusted: cluster.ssh.host_keys=accept-new",
        )

    def key_changed(self, key: HostKey, known: Sequence[Entry], name: str) -> Failure:
        """The machine shows another key than it used to."""
        old = [f"known: {e.key.type} {e.key.fingerprint} ({e.where})" for e in known]
        files = dict.fromkeys(entry.where.rpartition(":")[0] for entry in known)
        forget = [shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files]
        return Failure(
            f"the host key of {self.place} has CHANGED: it is {key.type} {key.fingerprint} now"
            f" ({known[0].where} says otherwise)",
            "\n".join(
                [
                    *old,
                    "someone may be in between, or the machine was installed anew",
                    self._compare(key),
                    f"if they are equal, forget the old one: {'; '.join(forget)}",
                    f"and take the new one: {self._record(key)}",
                ]
            ),
        )

    def key_revoked(self, key: HostKey, entry: Entry) -> Failure:
        """A line of the known hosts forbids this key."""
        return Failure(
            f"the host key of {self.place} is REVOKED by {entry.where}:"
            f" {key.type} {key.fingerprint}",
            "do not log in; give the machine a new host key",
        )

    def old_algorithms(self, error: BaseException) -> Failure:
        """No common ground in the key exchange."""
        return self._failure(
            f"{self.place} speaks no SSH that is safe enough for us: {error}",
            "its sshd is too old, or its Ciphers, KexAlgorithms, MACs or HostKeyAlgorithms too few",
        )

    def slow_jump(self) -> Failure:
        """The jump host took the request and did not answer."""
        return self._late(f"{self.place} did not answer to {self._jump}")

    def beyond_jump(self, error: BaseException) -> Failure:
        """The jump host could not, or would not, connect us."""
        words = getattr(error, "text", "") or str(error)
        if getattr(error, "code", None) == _PROHIBITED:
            return self._failure(
                f"{self._jump} does not let us through to {self.place}",
                "see AllowTcpForwarding, PermitOpen and DisableForwarding in its sshd_config",
            )
        if any(each in words for each in _NO_NAME_WORDS):
            return self._failure(
                f"the name {self.at.host!r} is not known to {self._jump} ({words})",
                self._set("host", "a name or an address that the jump host can look up"),
            )
        return self._failure(f"{self.place} cannot be reached from {self._jump} ({words})")

    def no_channel(self, error: BaseException) -> Failure:
        """Logged in, but no more sessions for us."""
        words = getattr(error, "text", "") or str(error)
        return self._failure(
            f"{self.place} accepted the log-in but no session on it ({words})",
            "its sshd allows too few sessions per connection (MaxSessions)",
        )

    def slow_channel(self) -> Failure:
        """Logged in, and then silence."""
        late = self._late(f"{self.place} accepted the log-in but opened no session")
        return Lost(late.what, late.hint)

    def no_connection(self, error: BaseException) -> Failure:
        """The connection was found dead when it was needed."""
        dropped = self.dropped(error)
        return Lost(dropped.what, dropped.hint)

    def slow_command(self) -> Failure:
        """A session, and then silence."""
        return self._late(f"{self.place} did not start our command")

    def no_command(self) -> Failure:
        """A session, in which we may not start anything."""
        return self._failure(
            f"{self.place} accepted the log-in but would not start our command",
            f"the shell or the limits of user {self.at.user} may forbid it there",
        )

    def from_connect(self, error: OSError) -> Failure:
        """Explain why there is no TCP connection."""
        if isinstance(error, socket.gaierror):
            return self.unknown_name(error)
        if error.errno == errno.ECONNREFUSED:
            return self.refused()
        if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
            return self.no_answer()
        return self.no_route(error)

    def from_handshake(self, error: Exception) -> Failure:
        """Explain what paramiko says between the connection and the log-in."""
        words = str(error)
        if isinstance(error, paramiko.ssh_exception.IncompatiblePeer):
            return self.old_algorithms(error)
        if "Indecipherable" in words or "Invalid SSH banner" in words:
            return self.not_ssh()
        if "banner" in words:
            slow = isinstance(error.__context__, TimeoutError)
            return self.no_banner() if slow else self.hung_up_early()
        return self.dropped(error)

    def _late(self, what: str, hint: str = "") -> Failure:
        more = "for more time, set cluster.ssh.connect_timeout"
        return self._failure(
            f"{what} within {self.timeout:g} s", f"{hint}\n{more}" if hint else more
        )

    def _failure(self, what: str, hint: str = "") -> Failure:
        by_hand = f"try by hand: {self.at.by_hand}"
        return Failure(what, f"{hint}\n{by_hand}" if hint else by_hand)

    def _set(self, name: str, value: str) -> str:
        """Say which YAML key gives the machine another value."""
        if self.node:
            return f"set cluster.nodes.{self.node}.{name} to {value}"
        return f"give {value} in cluster.ssh.jump: [user@]host[:port]"

    @property
    def _jump(self) -> str:
        return f"jump host {self.jump.name}" if self.jump else "its proxy"

    def _compare(self, key: HostKey) -> str:
        return (
            "compare it with what the host itself says:"
            f" ssh-keygen -lf /etc/ssh/ssh_host_{key.family}_key.pub"
        )

    def _record(self, key: HostKey) -> str:
        if self.jump or self.at.proxy_command or self.at.key_alias:  # ssh-keyscan gets no further
            return self.at.by_hand.replace("ssh -v", "ssh", 1)
        scan = ["ssh-keyscan", "-p", str(self.at.port), "-t", key.family, self.at.host]
        return f"{shell.line(scan)} >> {shell.path(self.known_hosts)}"
