"""Public key authentication: keys of files and of the ssh agent, offered in OpenSSH's order."""

from __future__ import annotations

import base64
import contextlib
import copy
import os
import socket
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import paramiko
from paramiko.agent import AgentSSH

from runner.core.spec import Ssh
from runner.transport.ssh.config import Endpoint
from runner.transport.ssh.deadline import SLACK_S, DeadlineTask
from runner.transport.ssh.errors import Failure, FailureMessages, Timeout, UnusableKey
from runner.transport.ssh.known_hosts import KnownHosts
from runner.transport.ssh.login_budget import LoginBudget


@dataclass(frozen=True)
class KeyOffer:
    """A key to offer, and its name in messages."""

    label: str
    key: Any


class KeyRing:
    """Private key files, each read once for all hosts; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, list[KeyOffer] | UnusableKey] = {}

    def load(self, path: str) -> list[KeyOffer] | UnusableKey:
        """Return the key of a file, its certificate first if it has one, or the reason why not."""
        with self._lock:
            if path not in self._loaded:
                self._loaded[path] = _load_key(path)
            return self._loaded[path]

    def collect_offers(
        self, endpoint: Endpoint, agent: SshAgent | None
    ) -> tuple[list[KeyOffer], list[UnusableKey]]:
        """Return the keys to offer, as OpenSSH orders them, and the files that cannot be used.

        The key of the YAML comes first, then key files that the agent holds, the agent's other
        keys, and other key files.
        """
        agent_keys = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
        chosen: list[KeyOffer] = []
        from_agent: list[KeyOffer] = []
        from_files: list[KeyOffer] = []
        unusable: list[UnusableKey] = []
        for path in dict.fromkeys(filter(None, (endpoint.chosen_key, *endpoint.key_files))):
            in_agent = agent_keys.pop(_public_key_blob(path), None)
            loaded = self.load(path)
            file_keys = [] if isinstance(loaded, UnusableKey) else loaded
            if in_agent is not None:
                certificates = (offer for offer in file_keys if offer.key.public_blob)
                file_keys = [*certificates, _agent_offer(in_agent)]
            elif isinstance(loaded, UnusableKey):
                unusable.append(loaded)
            if path == endpoint.chosen_key:
                chosen = file_keys
            else:
                (from_files if in_agent is None else from_agent).extend(file_keys)
        other_keys = [] if endpoint.identities_only else agent_keys.values()
        return [*chosen, *from_agent, *map(_agent_offer, other_keys), *from_files], unusable


class SshAgent(AgentSSH):  # type: ignore[misc]  # paramiko has no types
    """The ssh agent at any socket, with a deadline: paramiko's own knows SSH_AUTH_SOCK only."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(timeout)
        try:
            sock.connect(path)
            self._connect(sock)
        except BaseException:
            sock.close()
            raise

    def close(self) -> None:
        """Close the connection to the agent."""
        self._close()


class SshContext:
    """What all logins of a run share; `on_note` is called with a note about each key added."""

    def __init__(self, ssh: Ssh, on_note: Callable[[str], None]) -> None:
        self.key_ring = KeyRing()
        self.known_hosts = KnownHosts(on_note=on_note)
        self.accept_new = ssh.host_keys == "accept-new"
        self.on_note = on_note
        self.timeout = ssh.connect_timeout
        self._budgets: dict[object, LoginBudget] = {}

    def budget(self, sshd: object) -> LoginBudget:
        """Return what all logins at one sshd share."""
        return self._budgets.setdefault(sshd, LoginBudget(self.timeout))


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
            methods = " or ".join(further_methods)
            raise self.messages.failed(Failure.SECOND_FACTOR, methods)
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


def _load_key(path: str) -> list[KeyOffer] | UnusableKey:
    try:
        status = Path(path).stat()
        if status.st_uid == os.getuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            return UnusableKey(path, f"other users may read it (mode {mode})", f"chmod 600 {path}")
        key = paramiko.PKey.from_path(path)
        without_certificate = copy.copy(key)
        without_certificate.public_blob = None
    except OSError as error:
        return UnusableKey(path, f"it cannot be read ({error.strerror})")
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError
        reason = "it is encrypted and the ssh agent does not hold it"
        return UnusableKey(path, reason, f"ssh-add {path}", encrypted=True)
    except Exception as error:  # noqa: BLE001 - whatever the file holds, it is no key for us
        return UnusableKey(path, f"it holds no supported private key ({type(error).__name__})")
    certificates = [KeyOffer(f"{path} (certificate)", key)] if key.public_blob else []
    return [*certificates, KeyOffer(path, without_certificate)]


def _public_key_blob(path: str) -> bytes:
    """Return the public key beside a private one, which may be encrypted, or only in the agent."""
    try:
        return base64.b64decode(Path(f"{path.removesuffix('.pub')}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


def _agent_offer(key: Any) -> KeyOffer:
    return KeyOffer(f"{key.comment or key.get_name()} (ssh agent)", key)
