"""The user's ssh configuration, as OpenSSH itself reads it: `ssh -G` and `ssh-keygen -F`."""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runner.core import shell
from runner.core.shell import expand_home
from runner.core.spec import Node, Ssh
from runner.transport.endpoint import SSH_PORT, Endpoint, local_user
from runner.transport.failures import Failures, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_HOPS = 8

_QUERIES = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""More of them at once would only slow each other down."""


class Resolver:
    """Resolves nodes into the machines to log in to."""

    def __init__(self, ssh: Ssh) -> None:
        self._ssh = ssh
        self._common: list[str] = []
        if expand_home(ssh.config) != expand_home(Ssh().config):
            self._common += ["-F", expand_home(ssh.config)]
        if ssh.key:
            self._common += ["-i", expand_home(ssh.key)]
        if ssh.known_hosts != Ssh().known_hosts:
            path = expand_home(ssh.known_hosts)
            quoted = f'"{path}"' if " " in path else path
            self._common += ["-o", f"UserKnownHostsFile={quoted}"]

    def route(self, node: Node) -> tuple[Endpoint, ...]:
        """Return the machines on the way to a node, that itself last; raise LoginFailed."""
        words: list[str] = []
        if user := node.user or self._ssh.user:
            words += ["-l", user]
        if port := node.port or self._ssh.port:
            words += ["-p", str(port)]
        hops = [hop for text in self._ssh.jump for hop in text.split(",")]
        route = [self._resolve(node, words, node.host, hops)]
        while route[0].hops:
            if len(route) > MAX_HOPS:
                what = "has jump hosts that form a circle"
                raise Failures(node.name, route[-1]).failed(Kind.CONFIG, what)
            *before, hop = route[0].hops
            user, _, place = hop.removeprefix("ssh://").rpartition("@")
            found = re.fullmatch(r"\[?(?P<host>.+?)\]?(?::(?P<port>\d+))?/?", place)
            name = found["host"] if found else place
            words = ["-l", user] if user else []
            if found and found["port"]:
                words += ["-p", found["port"]]
            route.insert(0, self._resolve(node, words, name, before, is_jump=True))
        return tuple(route)

    def _resolve(
        self,
        node: Node,
        words: Sequence[str],
        name: str,
        hops: Sequence[str],
        *,
        is_jump: bool = False,
    ) -> Endpoint:
        words = [*self._common, *words]
        jump = ["-J", ",".join(hops)] if hops else []
        argv = ["ssh", "-T", "-G", *words, *jump, "--", name]
        code, out, err = run_query(argv, self._ssh.connect_timeout)
        if "jumphost loop" in err:  # it is its own jump host: `Host *`, or cluster.ssh.jump
            jump = ["-J", ",".join(hops[:-1]) or "none"]
            argv = ["ssh", "-T", "-G", *words, *jump, "--", name]
            code, out, err = run_query(argv, self._ssh.connect_timeout)
        settings: dict[str, list[str]] = {}
        for line in out.splitlines():
            keyword, _, value = line.strip().partition(" ")
            settings.setdefault(keyword.lower(), []).append(value)
        endpoint = Endpoint(
            name=name,
            options=tuple(words),
            jump=tuple(jump),
            settings=settings,
            is_jump=is_jump,
            host=settings.get("hostname", [name])[0],
            port=int(settings.get("port", [SSH_PORT])[0]),
            user=settings.get("user", [local_user()])[0],
        )
        if code:
            lines = err.strip().splitlines()
            what = f"cannot be resolved by `{shell.line(argv)}`"
            hint = "\n".join([*lines[:3], "see your ssh config, and cluster.ssh"])
            raise Failures(node.name, endpoint).failed(Kind.CONFIG, what, hint)
        return endpoint


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
    """Return the keys that known-hosts files have of a machine, by `ssh-keygen -F`."""
    keys: list[HostKey] = []
    for name in endpoint.lookup_names:
        for file in endpoint.known_hosts_files:
            if not Path(file).exists():
                continue
            argv = ["ssh-keygen", "-F", name, "-f", file]
            _, out, _ = run_query(argv, timeout_s)
            keys += _parse_keys(out, file)
        if any(key.marker != "@revoked" for key in keys):
            break
    return keys


def _parse_keys(text: str, file: str) -> list[HostKey]:
    """Read what `ssh-keygen -F` prints: a comment with the line's number, then the line."""
    keys: list[HostKey] = []
    location = file
    for line in text.splitlines():
        if found := re.match(r"# Host .* found: line (\d+)", line):
            location = f"{file}:{found[1]}"
            continue
        fields = line.split()
        marker = fields.pop(0) if line.startswith("@") else ""
        with contextlib.suppress(ValueError, IndexError):
            keys.append(HostKey(fields[1], base64.b64decode(fields[2]), marker, location))
    return keys


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


def run_query(argv: Sequence[str], timeout_s: float) -> tuple[int, str, str]:
    """Return exit code, output and errors of a program of OpenSSH's that contacts nobody."""
    pipe = subprocess.PIPE
    with _QUERIES:
        try:
            process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, start_new_session=True
            )
        except OSError as error:
            return 127, "", f"{argv[0]}: {error.strerror}; install OpenSSH's client here"
        with process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                return 124, "", f"no answer within {timeout_s:g} s: a slow `Match exec`?"
    return process.returncode, out.decode(errors="replace"), err.decode(errors="replace")
