"""The two proofs of a log-in: the host's key to us, and ours to the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import paramiko

from runner.transport.ssh import known_hosts
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import SLACK_S, Attempt
from runner.transport.ssh.errors import Reasons
from runner.transport.ssh.keys import Agent, KeyRing, Offers
from runner.transport.ssh.known_hosts import HostKey, KnownHosts, Standing


@dataclass(frozen=True)
class Trust:
    """The one rule about host keys, for every hop alike.

    Attributes:
        known: The known-hosts files.
        file: The one that learns.
        accept_new: Whether the first key of a host is taken and learned.
        notes: Where to tell what was learned.
    """

    known: KnownHosts
    file: str
    accept_new: bool
    notes: Callable[[str], None]

    def key_types(self, at: Endpoint) -> tuple[str, ...]:
        """Return the key types known of a machine, to ask it for one of them first."""
        return self.known.types(_names(at), at.known_hosts)

    def check(self, at: Endpoint, key: HostKey, reasons: Reasons) -> None:
        """Return if a machine may show this key; raise Failure if it may not."""
        judgement = self.known.judge(_names(at), key, at.known_hosts)
        if judgement.standing is Standing.REVOKED:
            raise reasons.key_revoked(key, judgement.entries[0])
        if judgement.standing is Standing.CHANGED:
            raise reasons.key_changed(key, judgement.entries, _names(at)[0])
        if judgement.standing is Standing.UNKNOWN:
            if not self.accept_new:
                raise reasons.key_unknown(key)
            self._learn(at, key)

    def _learn(self, at: Endpoint, key: HostKey) -> None:
        name = _names(at)[0]
        try:
            self.known.learn(name, key, self.file)
        except OSError as error:
            self.notes(f"{self.file}: cannot be written ({error.strerror}); {name} is not learned")
        else:
            self.notes(f"{self.file}: learned {name} {key.type} {key.fingerprint}")


@dataclass(frozen=True)
class HostKeyPolicy:
    """Asks Trust where paramiko asks its policy: after the key exchange, before the log-in."""

    trust: Trust
    at: Endpoint
    reasons: Reasons

    def missing_host_key(self, _client: object, _name: str, key: Any) -> None:
        """Return if the key may be trusted; paramiko's own lists stay empty, so all come here."""
        self.trust.check(self.at, HostKey(key.get_name(), key.asbytes()), self.reasons)


@dataclass(frozen=True)
class KeyLogin:
    """Logs in with keys, and never asks anybody anything."""

    ring: KeyRing
    at: Endpoint
    reasons: Reasons
    attempt: Attempt[Any]

    def authenticate(self, transport: Any) -> list[Any]:
        """Offer the keys one by one; raise Failure if none opens. Called by paramiko."""
        timeout = self.reasons.timeout
        self.attempt.step(timeout, self.reasons.slow_agent())
        agent = self._agent(timeout + SLACK_S)
        with contextlib.closing(agent) if agent else contextlib.nullcontext():
            offers = self.ring.offers(self.at, agent)
            self.attempt.step(timeout, self.reasons.slow_login(), transport.close)
            still_wanted = self._offer(transport, offers)
        if still_wanted:
            raise self.reasons.second_factor(still_wanted)
        return []

    def _agent(self, timeout: float) -> Agent | None:
        if not self.at.agent:
            return None
        with contextlib.suppress(OSError, paramiko.SSHException):
            return Agent(self.at.agent, timeout)
        return None

    def _offer(self, transport: Any, offers: Offers) -> Sequence[str]:
        """Return what the host wants besides the key it took; usually nothing."""
        tried: list[str] = []
        for offer in offers.ready:
            tried.append(offer.label)
            try:
                return cast("list[str]", transport.auth_publickey(self.at.user, offer.key))
            except paramiko.BadAuthenticationType as error:
                raise self.reasons.keys_refused(offers, tried, error.allowed_types) from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    raise self.reasons.too_many_keys(tried) from None
            except (paramiko.SSHException, OSError) as error:
                raise self.reasons.key_failed(offer.label, error) from None
        if tried:
            raise self.reasons.keys_refused(offers, tried, ())
        try:  # some servers let known addresses in; the others say what they would take
            return cast("list[str]", transport.auth_none(self.at.user))
        except paramiko.BadAuthenticationType as error:
            raise self.reasons.keys_refused(offers, tried, error.allowed_types) from None


def _names(at: Endpoint) -> tuple[str, ...]:
    return known_hosts.lookup_names(at.host, at.port, at.key_alias)
