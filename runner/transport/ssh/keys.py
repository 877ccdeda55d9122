"""The user's keys: which to offer to a host, in which order, and why one could not be."""

from __future__ import annotations

import base64
import copy
import os
import socket
import stat
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from runner.transport.ssh.config import Endpoint


@dataclass(frozen=True)
class Unusable:
    """A private key file that cannot be offered: why, and what helps."""

    path: str
    why: str
    cure: str = ""
    encrypted: bool = False


@dataclass(frozen=True)
class Offer:
    """A key to offer, under the name a person knows it by."""

    label: str
    key: Any


@dataclass
class Offers:
    """The keys for one log-in, and those that had to be left out."""

    ready: list[Offer] = field(default_factory=list)
    left_out: list[Unusable] = field(default_factory=list)


class KeyRing:
    """Private key files, each read once however many hosts it opens; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loaded: dict[str, list[Offer] | Unusable] = {}

    def load(self, path: str) -> list[Offer] | Unusable:
        """Return the key of a file, its certificate first if there is one, or why not."""
        with self._lock:
            if path not in self._loaded:
                self._loaded[path] = _load(path)
            return self._loaded[path]

    def offers(self, endpoint: Endpoint, agent: Agent | None) -> Offers:
        """Return the keys to offer in OpenSSH's order, but the key of the YAML first.

        The others are: keys of files that the agent holds, the agent's other keys, keys of files.
        """
        offers = Offers()
        held = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
        from_agent: list[Offer] = []
        from_files: list[Offer] = []
        for path in dict.fromkeys(filter(None, (endpoint.chosen_key, *endpoint.keys))):
            in_agent = held.pop(_public_half(path), None)
            found = self.load(path)
            mine = [] if isinstance(found, Unusable) else found
            if in_agent is not None:
                mine = [*(offer for offer in mine if offer.key.public_blob), _agent_offer(in_agent)]
            elif isinstance(found, Unusable):
                offers.left_out.append(found)
            if path == endpoint.chosen_key:
                offers.ready += mine
            else:
                (from_files if in_agent is None else from_agent).extend(mine)
        others = [] if endpoint.only_these_keys else list(held.values())
        offers.ready += [*from_agent, *map(_agent_offer, others), *from_files]
        return offers


class Agent(AgentSSH):  # type: ignore[misc]  # paramiko has no types
    """The ssh agent behind any socket, with a deadline: paramiko's own asks SSH_AUTH_SOCK only."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__()
        link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        link.settimeout(timeout)
        try:
            link.connect(path)
            self._connect(link)
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        """Hang up."""
        self._close()


def _load(path: str) -> list[Offer] | Unusable:
    try:
        status = Path(path).stat()
        if status.st_uid == os.getuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            return Unusable(path, f"others may read it (mode {mode})", f"chmod 600 {path}")
        key = paramiko.PKey.from_path(path)
        plain = copy.copy(key)
        plain.public_blob = None
    except OSError as error:
        return Unusable(path, f"it cannot be read ({error.strerror})")
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError
        return Unusable(
            path,
            "it is encrypted and the ssh agent does not hold it",
            f"ssh-add {path}",
            encrypted=True,
        )
    except Exception as error:  # noqa: BLE001 - whatever the file holds, it is no key for us
        return Unusable(path, f"it holds no private key known here ({type(error).__name__})")
    return (
        [Offer(f"{path} (certificate)", key), Offer(path, plain)]
        if key.public_blob
        else [Offer(path, plain)]
    )


def _public_half(path: str) -> bytes:
    """Return the public key beside a private one, which may be encrypted or in the agent only."""
    try:
        return base64.b64decode(Path(f"{path.removesuffix('.pub')}.pub").read_text().split()[1])
    except (OSError, ValueError, IndexError):
        return b""


def _agent_offer(key: Any) -> Offer:
    return Offer(f"{key.comment or key.get_name()} (ssh agent)", key)
