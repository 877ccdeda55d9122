"""The user's ssh configuration: a node resolved into the hops that lead to it."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core import shell
from runner.core.shell import expand_home
from runner.core.spec import Node, Ssh
from runner.transport.ssh import config_files
from runner.transport.ssh.deadline import LoginFailure
from runner.transport.ssh.known_hosts import lookup_names

QUERY_TIMEOUT_S = 5.0
MAX_HOPS = 8
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"

Settings = Mapping[str, Sequence[str]]
"""The values of ssh options by lower-case name; most have one value."""

_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class Endpoint:
    """One machine to log in to, with all settings resolved."""

    name: str  # as the user wrote it: an alias, a name or an address
    host: str  # the name or address to connect to
    port: int = 22
    user: str = ""
    key_files: tuple[str, ...] = ()
    chosen_key: str = ""  # the key file of the YAML, tried first
    identities_only: bool = False  # the agent's other keys are not offered
    agent_socket: str = ""
    proxy_command: str = ""  # "" for TCP
    proxy_template: str = ""  # the same with its tokens: hosts behind one bastion share it
    host_key_alias: str = ""
    known_hosts_files: tuple[str, ...] = ()  # the user's own first, to which keys are added
    manual_command: str = ""  # the ssh command by which a user can try the same login

    @property
    def lookup_names(self) -> tuple[str, ...]:
        """Its names in known-hosts files, the exact one first."""
        return lookup_names(self.host, self.port, self.host_key_alias)


@dataclass(frozen=True)
class Hop:
    """A jump host as written: `[user@]host[:port]`."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        user = f"{self.user}@" if self.user else ""
        return f"{user}{host}" + (f":{self.port}" if self.port else "")


_HOP = re.compile(
    r"""(?:ssh://)? (?:(?P<user>.+)@)?
    (?: \[ (?P<bracketed>[^\]]+) \] | (?P<plain>[^:@/\[\]]+)
      | (?P<v6>[\da-f.]*:[\da-f.]*:[\da-f:.]*(?:%\w+)?) )
    (?: :(?P<port>\d+) )? /?""",
    re.VERBOSE | re.IGNORECASE,
)


def parse_jump(text: str) -> tuple[Hop, ...]:
    """Read the value of ProxyJump: hops with commas between them, or "none"."""
    if text.strip().lower() in ("", "none"):
        return ()
    hops = []
    for part in text.split(","):
        match = _HOP.fullmatch(part.strip())
        if not match:
            message = f"{part.strip()!r} is not a jump host; the form is [user@]host[:port]"
            raise LoginFailure(message, "set cluster.ssh.jump, or ProxyJump in your ssh config")
        host = match["bracketed"] or match["plain"] or match["v6"]
        hops.append(Hop(host, match["user"], int(match["port"]) if match["port"] else None))
    return tuple(hops)


class Resolver:
    """Resolves a node into the machines to log in to, in order; thread-safe."""

    def __init__(self, ssh: Ssh, *, client: str | None = None) -> None:
        self._ssh = ssh
        self._client = shutil.which("ssh") if client is None else client
        self._lock, self._usual_lock = threading.Lock(), threading.Lock()
        self._cache: dict[Hop, Settings] = {}  # of the usual host, too, whose name is empty

    def route(self, node: Node) -> tuple[Endpoint, ...]:
        """Return the hops to a node in order, the node itself last; raise LoginFailure."""
        user, port = node.user or self._ssh.user, node.port or self._ssh.port
        target = Hop(node.host, user, port)
        jump = tuple(hop for text in self._ssh.jump for hop in parse_jump(text))
        return self._route(target, jump or None, depth=0)

    def _route(self, target: Hop, jump: tuple[Hop, ...] | None, depth: int) -> tuple[Endpoint, ...]:
        if depth > MAX_HOPS:
            message = f"the jump hosts on the way to {target} form a circle"
            raise LoginFailure(message, "see ProxyJump in your ssh config, or set cluster.ssh.jump")
        settings = self._settings(target)
        from_config = jump is None
        if jump is None:
            jump = parse_jump(_first_value(settings, "proxyjump"))
        endpoint = self._endpoint(target, settings, () if from_config else jump)
        own_names, own_ports = (endpoint.name, endpoint.host), (None, endpoint.port)
        while jump and jump[-1].host in own_names and jump[-1].port in own_ports:
            jump = jump[:-1]  # a host is its own jump host under `Host *` with a ProxyJump
        if jump:
            # As in `ssh -J a,b`: b is reached through a, and a as configured for itself.
            previous_hops = self._route(jump[-1], jump[:-1] or None, depth + 1)
            return (*previous_hops, replace(endpoint, proxy_command=""))
        return (endpoint,)

    def _settings(self, target: Hop) -> Settings:
        """Return what `ssh -G` prints: no other program knows all rules of OpenSSH's files."""
        with self._lock:
            if target in self._cache:
                return self._cache[target]
        if not self._client:
            raise LoginFailure(
                "there is no ssh on the PATH of this machine; your ssh config cannot be read",
                "install OpenSSH's client here (Debian, Ubuntu: apt install openssh-client)",
            )
        if not (self._treats_all_alike and config_files.is_plain_name(target.host)):
            return self._query(target)
        usual = replace(target, host="")
        with self._usual_lock:
            settings = self._cache.get(usual) or self._query(target)
            if _first_value(settings, "hostname") not in ("", target.host):
                return settings if target in self._cache else self._query(target)
            self._cache[usual] = {**settings, "hostname": []}
        return self._cache[usual]

    def _query(self, target: Hop) -> Settings:
        argv = [self._client or "ssh", "-G", *self._config_option()]
        argv += ["-l", target.user] if target.user else []
        argv += ["-p", str(target.port)] if target.port else []
        settings = parse_ssh_output(_run_query([*argv, "--", target.host]))
        with self._lock:
            self._cache[target] = settings
        return settings

    @functools.cached_property
    def _treats_all_alike(self) -> bool:
        """Whether one query tells about all hosts."""
        own = expand_home(self._ssh.config)
        return config_files.treat_all_alike(
            [own] if self._config_option() else [own, config_files.SYSTEM_CONFIG]
        )

    def _config_option(self) -> list[str]:
        config = expand_home(self._ssh.config)
        return [] if config == expand_home(Ssh().config) else ["-F", config]

    def _endpoint(self, target: Hop, settings: Settings, jump: Sequence[Hop]) -> Endpoint:
        first = functools.partial(_first_value, settings)
        port = target.port or int(first("port") or 22)
        user = target.user or first("user") or _local_user()
        host, alias = first("hostname") or target.host, first("hostkeyalias")
        tokens = _tokens(target.host, host, port, user, alias)
        template = first("proxycommand")
        proxy = expand_tokens(template, tokens, home=False)
        keys = settings.get("identityfile", _DEFAULT_KEYS)
        return Endpoint(
            name=target.host,
            host=host,
            port=port,
            user=user,
            key_files=_existing_files(expand_tokens(path, tokens) for path in keys),
            chosen_key=expand_home(self._ssh.key or ""),
            identities_only=first("identitiesonly") == "yes",
            agent_socket=_agent_socket(expand_tokens(first("identityagent"), tokens)),
            proxy_command="" if proxy.lower() == "none" else proxy,
            proxy_template=template,
            host_key_alias=alias,
            known_hosts_files=self._known_hosts_files(settings, tokens),
            manual_command=self._manual_command(target, jump),
        )

    def _known_hosts_files(self, settings: Settings, tokens: Mapping[str, str]) -> tuple[str, ...]:
        files = [self._ssh.known_hosts]
        if self._ssh.known_hosts == Ssh().known_hosts:
            own = _split_paths(_first_value(settings, "userknownhostsfile"))
            files = [*(file for file in own if file != os.devnull), *files]
        files += _split_paths(_first_value(settings, "globalknownhostsfile")) or [
            SYSTEM_KNOWN_HOSTS
        ]
        paths = (expand_tokens(path, tokens) for path in files if path.lower() != "none")
        return tuple(dict.fromkeys(paths))

    def _manual_command(self, target: Hop, jump: Sequence[Hop]) -> str:
        argv = ["ssh", "-v", *self._config_option()]
        argv += ["-i", expand_home(self._ssh.key)] if self._ssh.key else []
        if self._ssh.known_hosts != Ssh().known_hosts:
            argv += ["-o", f"UserKnownHostsFile={expand_home(self._ssh.known_hosts)}"]
        argv += ["-J", ",".join(map(str, jump))] if jump else []
        argv += ["-p", str(target.port)] if target.port else []
        return shell.line([*argv, f"{target.user}@{target.host}" if target.user else target.host])


def parse_ssh_output(text: str) -> dict[str, list[str]]:
    """Read what `ssh -G` prints: a keyword and its value per line."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.strip().partition(" ")
        settings.setdefault(keyword.lower(), []).append(value)
    return settings


def expand_tokens(text: str, tokens: Mapping[str, str], *, home: bool = True) -> str:
    """Replace the tokens, variables and `~` that `ssh -G` leaves in its output."""
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    if not home:
        return text
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
    return expand_home(text)


def _tokens(name: str, host: str, port: int, user: str, alias: str) -> dict[str, str]:
    hostname = socket.gethostname()
    return {
        "%": "%",
        "d": expand_home("~"),
        "h": host,
        "i": str(os.getuid()),
        "k": alias or name,
        "L": hostname.partition(".")[0],
        "l": hostname,
        "n": name,
        "p": str(port),
        "r": user,
        "u": _local_user(),
    }


@functools.cache
def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def _run_query(argv: Sequence[str]) -> str:
    """Return a command's output; kill its whole process group at the deadline."""
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    process = subprocess.Popen(argv, stdin=null, stdout=pipe, stderr=pipe, start_new_session=True)
    with process:
        try:
            out, err = process.communicate(timeout=QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            message = f"`{shell.line(argv)}` did not answer within {QUERY_TIMEOUT_S:g} s"
            hint = "is there a slow `Match exec` or CanonicalizeHostname in your ssh config?"
            raise LoginFailure(message, hint) from None
    if process.returncode:
        lines = err.decode(errors="replace").splitlines()
        messages = [line for line in lines if "Pseudo-" not in line]
        cause = messages[0].strip() if messages else f"exit code {process.returncode}"
        raise LoginFailure(f"your ssh config cannot be read: {cause}", "\n".join(messages[1:]))
    return out.decode(errors="replace")


def _first_value(settings: Settings, keyword: str) -> str:
    return next(iter(settings.get(keyword, ())), "")


def _split_paths(text: str) -> list[str]:
    """Split a list of paths, which `ssh -G` prints without quotes: a path may have blanks."""
    paths: list[str] = []
    for word in text.split():
        if paths and not word.startswith(("/", "~")) and word.lower() != "none":
            paths[-1] += f" {word}"
        else:
            paths.append(word)
    return paths


def _existing_files(paths: Iterable[str]) -> tuple[str, ...]:
    existing = []
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).stat()
            existing.append(path)
    return tuple(dict.fromkeys(existing))


def _agent_socket(configured: str) -> str:
    if configured.lower() == "none":
        return ""
    if configured in ("", "SSH_AUTH_SOCK"):
        return os.environ.get("SSH_AUTH_SOCK", "")
    return os.environ.get(configured[1:], "") if configured.startswith("$") else configured
