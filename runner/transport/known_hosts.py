"""Known-hosts files, read and written as OpenSSH does: see sshd(8).

`ssh-keygen -F` costs as much CPU time as a third of the login.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import hmac
import os
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from runner.transport.endpoint import Endpoint


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type ("ssh-ed25519") and its bytes."""

    type: str
    blob: bytes
    marker: str = ""  # "", "@revoked" or "@cert-authority"
    location: str = ""  # "FILE:LINE"

    def __str__(self) -> str:
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return f"{self.type} SHA256:{digest.rstrip('=')}"


def known_keys(endpoint: Endpoint) -> list[HostKey]:
    """Return the keys that known-hosts files have of a machine."""
    keys: list[HostKey] = []
    files = endpoint.known_hosts_files
    for name in endpoint.lookup_names:
        for file in files:
            with contextlib.suppress(OSError):
                text = Path(file).read_text(encoding="utf-8", errors="replace")
                keys += [key for names, key in _parse(text, file) if _is_of(names, name.lower())]
        if any(key.marker != "@revoked" for key in keys):
            break
    return keys


@functools.lru_cache(maxsize=4)  # all hosts are looked up in the same files
def _parse(text: str, file: str) -> list[tuple[str, HostKey]]:
    """Return the keys of a file, each with its hosts; what OpenSSH cannot read is nobody's."""
    keys: list[tuple[str, HostKey]] = []
    for number, line in enumerate(text.split("\n"), 1):
        fields = line.split()
        marker = fields.pop(0) if line.lstrip().startswith("@") else ""
        with contextlib.suppress(ValueError, IndexError):
            blob = base64.b64decode(fields[2])
            keys.append((fields[0], HostKey(fields[1], blob, marker, f"{file}:{number}")))
    return keys


def _is_of(names: str, name: str) -> bool:
    if names.startswith("|1|"):
        salt, _, digest = names[3:].partition("|")
        try:
            hashed = hmac.digest(base64.b64decode(salt), name.encode(), "sha1")
        except ValueError:
            return False
        return base64.b64encode(hashed).decode() == digest
    is_of = False
    for pattern in names.lower().split(","):
        has_wildcard = "*" in pattern or "?" in pattern
        plain = pattern.lstrip("!")
        if plain == name or (has_wildcard and fnmatchcase(name, plain.replace("[", "[[]"))):
            if plain != pattern:
                return False
            is_of = True
    return is_of and not names.startswith("#")


def add_known_key(endpoint: Endpoint, key: HostKey) -> str:
    """Write a key to the user's known hosts as `ssh` does; return the file; raise OSError."""
    name = endpoint.lookup_names[0].lower()
    if endpoint.first("hashknownhosts") == "yes":
        salt = os.urandom(20)
        digest = hmac.digest(salt, name.encode(), "sha1")
        name = f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"
    line = f"{name} {key.type} {base64.b64encode(key.blob).decode()}\n"
    path = Path(endpoint.known_hosts_files[0])
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "rb+", buffering=0) as file:
        with contextlib.suppress(OSError):  # a home on NFS may have no locks
            fcntl.flock(file, fcntl.LOCK_EX)
        text = file.read()
        separator = "" if text.endswith(b"\n") or not text else "\n"
        file.write(f"{separator}{line}".encode())
    return str(path)
