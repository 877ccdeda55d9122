"""Keys: those to log in with, and those of hosts, in known-hosts files."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import os
import re
import socket
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from runner.core.shell import expand_home
from runner.transport.endpoint import TRIES_HINT, Endpoint, Kind
from runner.transport.logins import run_query

_USUAL = ("dsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "rsa", "xmss")
"""The files that OpenSSH looks for by itself, as `~/.ssh/id_…`."""


class UnusableKey(Exception):
    """A file holds no key that can be offered: what it is, and what to do."""


@dataclass(frozen=True)
class Offer:
    """A key to offer, and its name in messages."""

    label: str
    key: Any
    certificate: Any = None  # of paramiko's; None for the key alone


def offer_keys(transport: Any, endpoint: Endpoint, timeout_s: float) -> None:
    """Log in with a key, without ever a prompt; raise LoginFailed."""
    user = endpoint.user
    try:
        transport.auth_none(user)
    except paramiko.BadAuthenticationType as refusal:
        methods = refusal.allowed_types
    else:
        return
    if "publickey" not in methods:
        raise endpoint.denied(methods, f"takes no key of user {user}, but {' or '.join(methods)}")
    agent = _open_agent(endpoint, timeout_s)
    try:
        offers, notes = collect_offers(endpoint, agent)
        labels = ", ".join(offer.label for offer in offers)
        for offer in offers:
            offer.key.public_blob = offer.certificate
            try:
                others = transport.auth_publickey(user, offer.key)
            except paramiko.AuthenticationException:
                if transport.is_active():
                    continue
                what = f"closed the connection while keys were offered for user {user}: {labels}"
                raise endpoint.failed(Kind.DENIED, what, TRIES_HINT) from None
            except (paramiko.SSHException, OSError) as error:
                notes.append(f"{offer.label} failed ({error})")
                if not transport.is_active():
                    raise
                continue
            if others:
                what = f"accepted the key of user {user}, and wants {' or '.join(others)} as well"
                raise endpoint.denied(others, what)
            return
    finally:
        agent._close()  # noqa: SLF001 - it has no other way
    what = f"refused every key offered for user {user}: {labels}"
    if not offers:
        what = f"cannot be logged in to as user {user}: there is no key to offer"
    raise endpoint.denied(methods, what, notes)


def _open_agent(endpoint: Endpoint, timeout_s: float) -> AgentSSH:
    """Return the user's agent at any socket, with a deadline; where none is, it has no keys."""
    agent = AgentSSH()
    path = endpoint.settings.get("identityagent", ["SSH_AUTH_SOCK"])[0]
    if path == "SSH_AUTH_SOCK":
        path = os.environ.get(path, "none")
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        sock.connect(endpoint.expand(path))
        agent._connect(sock)  # noqa: SLF001 - paramiko's own class knows SSH_AUTH_SOCK alone
    except TimeoutError:
        sock.close()
        what = f"cannot be logged in to: your ssh agent at {path} does not answer"
        hint = "unset SSH_AUTH_SOCK, or start another: eval $(ssh-agent); ssh-add"
        raise endpoint.failed(Kind.SILENT, what, hint) from None
    except (OSError, paramiko.SSHException):
        sock.close()
    return agent


def collect_offers(endpoint: Endpoint, agent: AgentSSH) -> tuple[list[Offer], list[str]]:
    """Return the keys to offer, and of each file that cannot be used the reason.

    Certificates come first, then the keys of files, that of the YAML before others, and then what
    else the agent holds.
    """
    held = {key.asbytes(): key for key in agent.get_keys()}
    offers: list[Offer] = []
    notes: list[str] = []
    names = [path for path in endpoint.settings.get("identityfile", ()) if path != "none"]
    paths = [*dict.fromkeys(map(endpoint.expand, names))]
    usual = [expand_home(f"~/.ssh/id_{kind}") for kind in _USUAL]
    for path in paths:
        public = _public(f"{path.removesuffix('.pub')}.pub")  # the key itself may be encrypted
        agent_key = held.pop(public.key_blob, None) if public else None
        try:
            offers.append(Offer(path, agent_key or load_key(path)))
        except UnusableKey as reason:
            if Path(path).exists() or path not in usual:
                notes.append(f"not offered: {path}: {reason}")
    if endpoint.first("identitiesonly") != "yes":
        offers += [Offer(f"{each.comment} (ssh agent)", each) for each in held.values()]
    certificates = [endpoint.expand(path) for path in endpoint.settings.get("certificatefile", ())]
    certified: list[Offer] = []
    for path in dict.fromkeys([*certificates, *(f"{path}-cert.pub" for path in paths)]):
        certified += _certified(path, offers)
    return [*certified, *offers], notes


def load_key(path: str) -> Any:
    try:
        status = Path(path).stat()
        text = Path(path).read_bytes()
    except OSError as error:
        raise UnusableKey(f"it cannot be read ({error.strerror}); see IdentityFile") from None
    if text.startswith((b"ssh-", b"ecdsa-", b"sk-")):
        private = path.removesuffix(".pub")
        raise UnusableKey(f"it is a public key; name the private one, such as {private}")
    if text.startswith(b"PuTTY-"):
        convert = f"puttygen {path} -O private-openssh -o {path}.openssh"
        raise UnusableKey(f"it is a key of PuTTY's; convert it: {convert}")
    if status.st_uid == os.getuid() and status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise UnusableKey(f"other users may read it: chmod 600 {path}")
    try:
        return paramiko.PKey.from_path(path)
    except (TypeError, paramiko.PasswordRequiredException):  # cryptography says TypeError
        reason = f"it is encrypted and the ssh agent does not hold it: ssh-add {path}"
        raise UnusableKey(reason) from None
    except Exception as error:  # noqa: BLE001 - whatever it holds, it is no key for us
        reason = f"it holds no private key that runner can read ({type(error).__name__})"
        raise UnusableKey(f"{reason}: try cluster.transport=openssh") from None


def _certified(path: str, offers: list[Offer]) -> list[Offer]:
    """Return a certificate with the key that it was made for, if that is there."""
    certificate = _public(path)
    for offer in offers:
        blob = offer.key.asbytes()
        numbers = blob[4 + int.from_bytes(blob[:4], "big") :]  # what follows the type
        if certificate and numbers in certificate.key_blob:
            return [Offer(path, offer.key, certificate)]
    return []


def _public(path: str) -> Any:
    """Return the public key or the certificate of a file; None where there is none."""
    try:
        return paramiko.pkey.PublicBlob.from_file(path)
    except (OSError, ValueError):
        return None


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


def known_keys(endpoint: Endpoint, timeout_s: float) -> list[HostKey]:
    """Return the keys that known-hosts files have of a machine, as `ssh-keygen -F` finds them."""
    keys: list[HostKey] = []
    files = [file for file in endpoint.known_hosts_files if Path(file).is_file()]
    for name in endpoint.lookup_names:
        for file in files:
            _, out, _ = run_query(["ssh-keygen", "-F", name, "-f", file], timeout_s)
            for found in re.finditer(r"(?m)^# Host .* found: line (\d+).*\n(.*)", out):
                words = found[2].split()
                marker = words.pop(0) if words[:1] and words[0].startswith("@") else ""
                with contextlib.suppress(ValueError, IndexError):
                    blob = base64.b64decode(words[2])
                    keys.append(HostKey(words[1], blob, marker, f"{file}:{found[1]}"))
        if any(key.marker != "@revoked" for key in keys):
            break
    return keys


def add_known_key(endpoint: Endpoint, key: HostKey) -> str:
    """Write a key to the user's known hosts as `ssh` does; return the file; raise OSError."""
    name = endpoint.lookup_names[0].lower()
    if endpoint.first("hashknownhosts") == "yes":
        name = paramiko.HostKeys.hash_host(name)
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
