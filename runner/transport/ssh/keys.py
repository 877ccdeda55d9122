"""The user's keys, and the order in which they are offered to a host."""

from __future__ import annotations

import base64
import copy
import os
import socket
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from runner.transport.ssh.config import Endpoint


@dataclass(frozen=True)
class UnusableKey:
    """A private key file that cannot be offered, the reason, and the remedy."""

    path: str
    reason: str
    remedy: str = ""
    encrypted: bool = False


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
