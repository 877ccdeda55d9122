"""The user's ssh configuration, as OpenSSH itself reads it: `ssh -G`."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from runner.core import shell
from runner.core.shell import expand_home
from runner.core.spec import Node, Ssh
from runner.transport.endpoint import SSH_PORT, Endpoint, local_user
from runner.transport.failures import Failures, Kind

MAX_HOPS = 8

_QUERIES = threading.BoundedSemaphore(2 * (os.cpu_count() or 1))
"""More of them at once would only slow each other down."""

_OF_SOME_HOSTS = re.compile(
    r"(?im)^\s*"
    r"(match|canonical\w*|hostname|hostkeyalias|proxyjump|host(?![\s=]+\*\s*$|\w)|[^#\s].*%)"
)
"""What may hold for some hosts only, in a file of the configuration."""

Answer = tuple[int, str, str]
"""Exit code, output and errors."""


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
        self._lock = threading.Lock()
        self._answers: dict[tuple[str, ...], Answer] = {}
        self._is_uniform: bool | None = None  # not known yet

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
        options = (*self._common, *words)
        jump = ("-J", ",".join(hops)) if hops else ()
        code, out, err = self._ask(options, jump, name)
        if "jumphost loop" in err:  # it is its own jump host: `Host *`, or cluster.ssh.jump
            jump = ("-J", ",".join(hops[:-1]) or "none")
            code, out, err = self._ask(options, jump, name)
        settings: dict[str, list[str]] = {}
        for line in out.splitlines():
            keyword, _, value = line.strip().partition(" ")
            settings.setdefault(keyword.lower(), []).append(value)
        endpoint = Endpoint(
            name=name,
            options=options,
            jump=jump,
            settings=settings,
            is_jump=is_jump,
            host=settings.get("hostname", [name])[0],
            port=int(settings.get("port", [SSH_PORT])[0]),
            user=settings.get("user", [local_user()])[0],
        )
        if code:
            what = f"cannot be resolved by `{shell.line(['ssh', '-G', *endpoint.words])}`"
            lines = err.strip().splitlines()
            hint = "\n".join([*lines[:3], "see your ssh config, and cluster.ssh"])
            raise Failures(node.name, endpoint).failed(Kind.CONFIG, what, hint)
        return endpoint

    def _ask(self, options: tuple[str, ...], jump: tuple[str, ...], name: str) -> Answer:
        """Ask `ssh -G` about a host, or once for all hosts where nothing tells them apart."""
        words = (*options, *jump)
        argv = ["ssh", "-T", "-G", *words, "--", name]
        with self._lock:
            if self._is_uniform is None:
                code, out, err = run_query([*argv[:1], "-v", *argv[1:]], self._ssh.connect_timeout)
                self._is_uniform = not code and _treats_hosts_alike(err)
                return code, out, re.sub(r"(?m)^(debug1: |OpenSSH_).*\n", "", err)
        is_plain = re.fullmatch(r"[a-z0-9][a-z0-9._:-]*", name)
        if not self._is_uniform or not is_plain or name in "".join(jump).lower():
            return run_query(argv, self._ssh.connect_timeout)
        with self._lock:
            if words not in self._answers:
                self._answers[words] = run_query(argv, self._ssh.connect_timeout)
            code, out, err = self._answers[words]
        return code, re.sub(r"(?m)^hostname .*", f"hostname {name}", out), err


def _treats_hosts_alike(said: str) -> bool:
    """Return whether the files that `ssh -v` has named tell no host from others; False in doubt."""
    files = re.findall(r"Reading configuration data (.*)", said)
    try:
        texts = [Path(file.strip()).read_text(encoding="utf-8") for file in files]
    except (OSError, ValueError):
        return False
    return bool(files) and not any(_OF_SOME_HOSTS.search(text) for text in texts)


def run_query(argv: Sequence[str], timeout_s: float) -> Answer:
    """Run a program of OpenSSH's that contacts nobody."""
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
