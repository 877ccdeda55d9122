"""Logins over SSH: the way to each node, and one connection to each jump host on it."""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from runner.core import shell
from runner.core.shell import expand_home
from runner.core.spec import Node, Ssh
from runner.transport.base import Channel
from runner.transport.endpoint import SSH_PORT, Endpoint, Kind, LoginFailed, local_user

MAX_HOPS = 8

PAUSE_SHARES = (0.1, 0.5, None)
"""The pauses after a refusal for now, before jitter, as shares of the time for a login."""

_QUERIES = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""More of them at once would only slow each other down."""


class Login:
    """A login at a machine, which may be made again once it is lost."""

    _endpoint: Endpoint
    _timeout_s: float
    _lock: threading.Lock
    _refusal: LoginFailed | None = None
    _refused_at = 0.0

    def open(self) -> None:
        """Log in if that is not done, one thread at a time; raise LoginFailed.

        Where it is refused for now, it is tried again. The failure at a jump host is also that of
        those who come soon after.
        """
        with self._lock:
            if self._is_open():
                return
            if self._refusal and time.monotonic() < self._refused_at + self._timeout_s:
                raise self._refusal
            for share in PAUSE_SHARES:
                try:
                    self._log_in()
                except LoginFailed as error:
                    if share and error.kind is Kind.NOT_NOW:
                        time.sleep(self._timeout_s * share * random.uniform(0.5, 1.5))  # noqa: S311
                        continue
                    if self._endpoint.is_jump:
                        self._refusal = error
                        self._refused_at = time.monotonic()
                    raise
                return

    def start(self, words: Sequence[str]) -> Channel:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def _is_open(self) -> bool:
        raise NotImplementedError

    def _log_in(self) -> None:
        raise NotImplementedError


Make = Callable[[Endpoint, Any], Login]
"""Makes one of where to log in, and the login at the jump host before it."""


class SshTransport:
    """A Transport: resolves nodes as OpenSSH itself does, by `ssh -G`."""

    def __init__(self, ssh: Ssh, make: Make) -> None:
        self._ssh = ssh
        self._make = make
        self._lock = threading.Lock()
        self._jumps: dict[tuple[tuple[str, ...], ...], Login] = {}
        self._common: list[str] = []
        if expand_home(ssh.config) != expand_home(Ssh().config):
            self._common += ["-F", expand_home(ssh.config)]
        if ssh.key:
            self._common += ["-i", expand_home(ssh.key)]
        if ssh.known_hosts != Ssh().known_hosts:
            path = expand_home(ssh.known_hosts)
            quoted = f'"{path}"' if " " in path else path
            self._common += ["-o", f"UserKnownHostsFile={quoted}"]

    def connect(self, node: Node) -> Login:
        login = self.login(node, self._make)
        try:
            login.open()
        except LoginFailed as error:  # a jump host may have failed for another node's sake
            login.close()
            raise LoginFailed(error.kind, replace(error.problems[0], subject=node.name)) from None
        return login

    def login(self, node: Node, make: Make) -> Login:
        """Return the login at a node, which is not open yet; raise LoginFailed."""
        route = self.route(node)
        via: Login | None = None
        with self._lock:
            for count in range(1, len(route)):
                hops = tuple(endpoint.words for endpoint in route[:count])
                if hops not in self._jumps:
                    self._jumps[hops] = self._make(route[count - 1], via)
                via = self._jumps[hops]
        return make(route[-1], via)

    def close(self) -> None:
        for login in self._jumps.values():
            login.close()

    def route(self, node: Node) -> tuple[Endpoint, ...]:
        """Return the machines on the way to a node, that itself last; raise LoginFailed."""
        words: list[str] = []
        if user := node.user or self._ssh.user:
            words += ["-l", user]
        if port := node.port or self._ssh.port:
            words += ["-p", str(port)]
        hops = [hop for text in self._ssh.jump for hop in text.split(",")]
        target = Endpoint(node.name, node.host, options=(*self._common, *words))
        route = [self._resolve(target, hops)]
        while route[0].hops:
            if len(route) > MAX_HOPS:
                raise route[-1].failed(Kind.CONFIG, "has jump hosts that form a circle")
            *before, hop = route[0].hops
            user, _, place = hop.removeprefix("ssh://").rpartition("@")
            found = re.fullmatch(r"\[?(?P<host>.+?)\]?(?::(?P<port>\d+))?/?", place)
            name = found["host"] if found else place
            words = ["-l", user] if user else []
            if found and found["port"]:
                words += ["-p", found["port"]]
            jump = Endpoint(node.name, name, options=(*self._common, *words), is_jump=True)
            route.insert(0, self._resolve(jump, before))
        return tuple(route)

    def _resolve(self, endpoint: Endpoint, hops: Sequence[str]) -> Endpoint:
        """Return a machine as `ssh -G` describes it behind such jump hosts."""
        endpoint = replace(endpoint, jump=("-J", ",".join(hops)) if hops else ())
        code, out, err = self._ask(endpoint)
        if "jumphost loop" in err:  # it is its own jump host: `Host *`, or cluster.ssh.jump
            endpoint = replace(endpoint, jump=("-J", ",".join(hops[:-1]) or "none"))
            code, out, err = self._ask(endpoint)
        settings: dict[str, list[str]] = {}
        for line in out.splitlines():
            keyword, _, value = line.strip().partition(" ")
            settings.setdefault(keyword.lower(), []).append(value)
        endpoint = replace(
            endpoint,
            settings=settings,
            host=settings.get("hostname", [endpoint.name])[0],
            port=int(settings.get("port", [SSH_PORT])[0]),
            user=settings.get("user", [local_user()])[0],
        )
        if code:
            what = f"cannot be resolved by `{shell.line(['ssh', '-G', *endpoint.words])}`"
            lines = err.strip().splitlines()
            hint = "\n".join([*lines[:3], Kind.CONFIG.value])
            raise endpoint.failed(Kind.CONFIG, what, hint)
        return endpoint

    def _ask(self, endpoint: Endpoint) -> tuple[int, str, str]:
        words = [*endpoint.options, *endpoint.jump, "--", endpoint.name]
        return run_query(["ssh", "-T", "-G", *words], self._ssh.connect_timeout)


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
