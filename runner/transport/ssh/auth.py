"""Authentication of both sides of a login: the host's key, and the user's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import paramiko

from runner.transport.ssh import known_hosts
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import SLACK_S, DeadlineTask
from runner.transport.ssh.errors import FailureMessages
from runner.transport.ssh.keys import KeyOffers, KeyRing, SshAgent
from runner.transport.ssh.known_hosts import HostKey, KeyStatus, KnownHosts


@dataclass(frozen=True)
class HostKeyVerifier:
    """The rule about host keys, the same for every hop.

    Attributes:
        known_hosts: The known-hosts files.
        new_keys_file: The file to which new keys are added.
        accept_new: Whether the first key of a host is trusted and added.
        on_note: Called with a note about each key added.
    """

    known_hosts: KnownHosts
    new_keys_file: str
    accept_new: bool
    on_note: Callable[[str], None]

    def key_types(self, endpoint: Endpoint) -> tuple[str, ...]:
        """Return the known key types of a machine, which it is asked for first."""
        return self.known_hosts.key_types(_lookup_names(endpoint), endpoint.known_hosts_files)

    def check(self, endpoint: Endpoint, key: HostKey, messages: FailureMessages) -> None:
        """Accept a machine's key, or raise LoginFailure."""
        result = self.known_hosts.check(_lookup_names(endpoint), key, endpoint.known_hosts_files)
        if result.status is KeyStatus.REVOKED:
            raise messages.key_revoked(key, result.entries[0])
        if result.status is KeyStatus.CHANGED:
            raise messages.key_changed(key, result.entries, _lookup_names(endpoint)[0])
        if result.status is KeyStatus.UNKNOWN:
            if not self.accept_new:
                raise messages.key_unknown(key)
            self._add_key(endpoint, key)

    def _add_key(self, endpoint: Endpoint, key: HostKey) -> None:
        name = _lookup_names(endpoint)[0]
        try:
            self.known_hosts.add(name, key, self.new_keys_file)
        except OSError as error:
            self.on_note(
                f"{self.new_keys_file}: cannot be written ({error.strerror}); "
                f"the key of {name} is not added"
            )
        else:
            self.on_note(f"{self.new_keys_file}: added {name} {key.type} {key.fingerprint}")


@dataclass(frozen=True)
class HostKeyPolicy:
    """Calls the verifier when paramiko asks its policy: between key exchange and login."""

    verifier: HostKeyVerifier
    endpoint: Endpoint
    messages: FailureMessages

    def missing_host_key(self, _client: object, _name: str, key: Any) -> None:
        """Accept a key, or raise; paramiko's own lists stay empty, so all keys come here."""
        self.verifier.check(self.endpoint, HostKey(key.get_name(), key.asbytes()), self.messages)


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
            offers = self.key_ring.collect_offers(self.endpoint, agent)
            self.task.begin_step(timeout, self.messages.login_timeout(), transport.close)
            further_methods = self._try_keys(transport, offers)
        if further_methods:
            raise self.messages.second_factor_required(further_methods)
        return []

    def _open_agent(self, timeout: float) -> SshAgent | None:
        if not self.endpoint.agent_socket:
            return None
        with contextlib.suppress(OSError, paramiko.SSHException):
            return SshAgent(self.endpoint.agent_socket, timeout)
        return None

    def _try_keys(self, transport: Any, offers: KeyOffers) -> Sequence[str]:
        """Return the methods that the host wants besides the key it accepted; usually none."""
        tried: list[str] = []
        for offer in offers.usable:
            tried.append(offer.label)
            try:
                return cast("list[str]", transport.auth_publickey(self.endpoint.user, offer.key))
            except paramiko.BadAuthenticationType as error:
                raise self.messages.keys_refused(offers, tried, error.allowed_types) from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    raise self.messages.too_many_keys(tried) from None
            except (paramiko.SSHException, OSError) as error:
                raise self.messages.key_failed(offer.label, error) from None
        if tried:
            raise self.messages.keys_refused(offers, tried, ())
        try:  # some servers accept known addresses; the others name the methods they accept
            return cast("list[str]", transport.auth_none(self.endpoint.user))
        except paramiko.BadAuthenticationType as error:
            raise self.messages.keys_refused(offers, tried, error.allowed_types) from None


def _lookup_names(endpoint: Endpoint) -> tuple[str, ...]:
    return known_hosts.lookup_names(endpoint.host, endpoint.port, endpoint.host_key_alias)
