"""Authentication of both sides of a login: the host's key, and the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import paramiko

from runner.core.model.spec import Ssh
from runner.transport.ssh.config import Endpoint, expand_home
from runner.transport.ssh.deadline import SLACK_S, DeadlineTask
from runner.transport.ssh.errors import Failure, FailureMessages, Timeout
from runner.transport.ssh.keys import KeyOffer, KeyRing, SshAgent, UnusableKey
from runner.transport.ssh.known_hosts import HostKey, KeyStatus, KnownHosts


class SshContext:
    """What all logins of a run share; `on_note` is called with a note about each key added."""

    def __init__(self, ssh: Ssh, on_note: Callable[[str], None]) -> None:
        self.key_ring = KeyRing()
        self.known_hosts = KnownHosts(on_note=on_note)
        self.new_keys_file = expand_home(ssh.known_hosts)
        self.accept_new = ssh.host_keys == "accept-new"
        self.on_note = on_note
        self.timeout = ssh.connect_timeout


@dataclass(frozen=True)
class HostKeyPolicy:
    """Checks the host key of one machine; paramiko asks between key exchange and login."""

    context: SshContext
    endpoint: Endpoint
    messages: FailureMessages

    def missing_host_key(self, _client: object, _name: str, key: Any) -> None:
        """Accept a key, or raise LoginFailure; paramiko's own lists stay empty."""
        endpoint, messages = self.endpoint, self.messages
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
        file = self.context.new_keys_file
        note = f"{file}: added {name} {key.type} {key.fingerprint}"
        try:
            self.context.known_hosts.add(name, key, file)
        except OSError as error:
            note = f"{file}: cannot be written ({error.strerror}); the key of {name} is not added"
        self.context.on_note(note)


@dataclass(frozen=True)
class PublicKeyAuth:
    """Logs in with keys, and never prompts."""

    key_ring: KeyRing
    endpoint: Endpoint
    messages: FailureMessages
    task: DeadlineTask[Any]

    def authenticate(self, transport: Any) -> list[Any]:
        """Offer the keys one by one; raise LoginFailure if none is accepted. Called by paramiko."""
        timeout = self.messages.timeout
        self.task.begin_step(timeout, self.messages.agent_timeout())
        agent = self._open_agent(timeout + SLACK_S)
        with contextlib.closing(agent) if agent else contextlib.nullcontext():
            offers, unusable = self.key_ring.collect_offers(self.endpoint, agent)
            self.task.begin_step(timeout, self.messages.timed_out(Timeout.LOGIN), transport.close)
            further_methods = self._try_keys(transport, offers, unusable)
        if further_methods:
            raise self.messages.failed(Failure.SECOND_FACTOR, " or ".join(further_methods))
        return []

    def _open_agent(self, timeout: float) -> SshAgent | None:
        if not self.endpoint.agent_socket:
            return None
        with contextlib.suppress(OSError, paramiko.SSHException):
            return SshAgent(self.endpoint.agent_socket, timeout)
        return None

    def _try_keys(
        self, transport: Any, offers: list[KeyOffer], unusable: list[UnusableKey]
    ) -> Sequence[str]:
        """Return the methods that the host wants besides the key it accepted; usually none."""
        tried: list[str] = []
        for offer in offers:
            tried.append(offer.label)
            try:
                return cast("list[str]", transport.auth_publickey(self.endpoint.user, offer.key))
            except paramiko.BadAuthenticationType as error:
                raise self.messages.keys_refused(unusable, tried, error.allowed_types) from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    raise self.messages.failed(Failure.TOO_MANY_KEYS, ", ".join(tried)) from None
            except (paramiko.SSHException, OSError) as error:
                cause = f"{offer.label} failed ({error})"
                raise self.messages.failed(Failure.KEY_FAILED, cause) from None
        if tried:
            raise self.messages.keys_refused(unusable, tried, ())
        try:  # some servers accept known addresses; the others name the methods they accept
            return cast("list[str]", transport.auth_none(self.endpoint.user))
        except paramiko.BadAuthenticationType as error:
            raise self.messages.keys_refused(unusable, tried, error.allowed_types) from None
