"""What the user's ssh configuration says about a host, under what the YAML says."""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.core import shell
from runner.core.model.spec import Node, Ssh
from runner.transport.ssh.deadline import Failure

QUERY_TIMEOUT_S = 5.0
MAX_HOPS = 8
SYSTEM_CONFIG = "/etc/ssh/ssh_config"
SYSTEM_KNOWN_HOSTS = "/etc/ssh/ssh_known_hosts"

Settings = Mapping[str, Sequence[str]]
"""ssh options by lower-case name; what they are worth, most have one value."""

_KNOWN_MATCH = {"all", "canonical", "final", "host", "originalhost", "user", "localuser"}
_DEFAULT_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")


@dataclass(frozen=True)
class Endpoint:
    """One machine to log in to, with everything settled.

    Attributes:
        name: As the user wrote it: an alias, a name or an address.
        host: The name or address to connect to.
        port: The port of its sshd.
        user: The login name.
        keys: Private key files to try, in order.
        chosen_key: The one of the YAML, tried first; "" if none.
        only_these_keys: Whether other keys of the agent stay out.
        agent: The socket of the ssh agent; "" for none.
        proxy_command: The command that reaches it; "" for TCP.
        key_alias: The name its host key is filed under; "" for its own.
        known_hosts: The files with keys of hosts, the user's own first.
        by_hand: The ssh command a person would type to try the same.
    """

    name: str
    host: str
    port: int = 22
    user: str = ""
    keys: tuple[str, ...] = ()
    chosen_key: str = ""
    only_these_keys: bool = False
    agent: str = ""
    proxy_command: str = ""
    key_alias: str = ""
    known_hosts: tuple[str, ...] = ()
    by_hand: str = ""


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
        found = _HOP.fullmatch(part.strip())
        if not found:
            raise Failure(
                f"{part.strip()!r} is no jump host; the form is [user@]host[:port]",
                "set cluster.ssh.jump, or ProxyJump in your ssh config",
            )
        host = found["bracketed"] or found["plain"] or found["v6"]
        hops.append(Hop(host, found["user"], int(found["port"]) if found["port"] else None))
    return tuple(hops)


class Resolver:
    """Turns a node into the machines to log in to, one after the other; thread-safe.

    OpenSSH's own client is asked where there is one: it alone knows every rule of its files.
    """

    def __init__(
        self, ssh: Ssh, *, notes: Callable[[str], None], client: str | None = None
    ) -> None:
        self._ssh = ssh
        self._notes = notes
        self._client = shutil.which("ssh") if client is None else client
        self._lock = threading.Lock()
        self._cache: dict[Hop, Settings] = {}
        self._noted = False

    def route(self, node: Node) -> tuple[Endpoint, ...]:
        """Return the hops to a node in order, the node itself last; raise Failure."""
        user, port = node.user or self._ssh.user, node.port or self._ssh.port
        target = Hop(node.host, user, port)
        jump = tuple(hop for text in self._ssh.jump for hop in parse_jump(text))
        return self._route(target, jump or None, depth=0)

    def _route(self, target: Hop, jump: tuple[Hop, ...] | None, depth: int) -> tuple[Endpoint, ...]:
        if depth > MAX_HOPS:
            raise Failure(
                f"the jump hosts on the way to {target} lead in a circle",
                "see ProxyJump in your ssh config, or set cluster.ssh.jump",
            )
        settings = self._settings(target)
        from_config = jump is None
        if jump is None:
            jump = parse_jump(_one(settings, "proxyjump"))
        endpoint = self._endpoint(target, settings, () if from_config else jump)
        while jump and _same(jump[-1], endpoint):
            jump = jump[:-1]
        if jump:
            # Like `ssh -J a,b`: b is reached through a, and a as its own configuration says.
            before = self._route(jump[-1], jump[:-1] or None, depth + 1)
            return (*before, replace(endpoint, proxy_command=""))
        return (endpoint,)

    def _settings(self, target: Hop) -> Settings:
        with self._lock:
            known = self._cache.get(target)
        if known is None:
            known = self._ask_ssh(target) if self._client else self._parse(target)
            with self._lock:
                self._cache[target] = known
        return known

    def _ask_ssh(self, target: Hop) -> Settings:
        """Ask `ssh -G`. Without -F it reads the user's file and the system's, with -F only that."""
        argv = [self._client or "ssh", "-G", *self._config_option()]
        argv += ["-l", target.user] if target.user else []
        argv += ["-p", str(target.port)] if target.port else []
        return parse_answer(_query([*argv, "--", target.host]))

    def _config_option(self) -> list[str]:
        return [] if self._is_default_config() else ["-F", at_home(self._ssh.config)]

    def _is_default_config(self) -> bool:
        return at_home(self._ssh.config) == at_home(Ssh().config)

    def _parse(self, target: Hop) -> Settings:
        files = [self._ssh.config]
        files += [SYSTEM_CONFIG] if self._is_default_config() else []
        settings, ignored = parse_files(files, target.host)
        with self._lock:
            first, self._noted = not self._noted, True
        if first and ignored:
            self._notes(
                f"no ssh client here, so parts of your ssh config are ignored: {', '.join(ignored)}"
            )
        return settings

    def _endpoint(self, target: Hop, settings: Settings, jump: Sequence[Hop]) -> Endpoint:
        port = target.port or int(_one(settings, "port") or 22)
        user = target.user or _one(settings, "user") or _local_user()
        host = _one(settings, "hostname") or target.host
        alias = _one(settings, "hostkeyalias")
        tokens = _tokens(target.host, host, port, user, alias)
        proxy = _one(settings, "proxycommand")
        keys = settings.get("identityfile", _DEFAULT_KEYS)
        return Endpoint(
            name=target.host,
            host=host,
            port=port,
            user=user,
            keys=_existing(expand(path, tokens) for path in keys),
            chosen_key=at_home(self._ssh.key or ""),
            only_these_keys=_one(settings, "identitiesonly") == "yes",
            agent=_agent(expand(_one(settings, "identityagent"), tokens)),
            proxy_command="" if proxy.lower() == "none" else expand(proxy, tokens, home=False),
            key_alias=alias,
            known_hosts=self._known_hosts(settings, tokens),
            by_hand=self._by_hand(target, jump),
        )

    def _known_hosts(self, settings: Settings, tokens: Mapping[str, str]) -> tuple[str, ...]:
        files = [self._ssh.known_hosts]
        if self._ssh.known_hosts == Ssh().known_hosts:
            files += _words(settings, "userknownhostsfile")
        files += _words(settings, "globalknownhostsfile") or [SYSTEM_KNOWN_HOSTS]
        found = (expand(path, tokens) for path in files if path.lower() != "none")
        return tuple(dict.fromkeys(found))

    def _by_hand(self, target: Hop, jump: Sequence[Hop]) -> str:
        argv = ["ssh", "-v", *self._config_option()]
        argv += ["-i", at_home(self._ssh.key)] if self._ssh.key else []
        if self._ssh.known_hosts != Ssh().known_hosts:
            argv += ["-o", f"UserKnownHostsFile={at_home(self._ssh.known_hosts)}"]
        argv += ["-J", ",".join(map(str, jump))] if jump else []
        argv += ["-p", str(target.port)] if target.port else []
        return shell.line([*argv, f"{target.user}@{target.host}" if target.user else target.host])


def parse_answer(text: str) -> dict[str, list[str]]:
    """Read what `ssh -G` prints: a keyword and its value per line."""
    settings: dict[str, list[str]] = {}
    for each in text.splitlines():
        keyword, _, value = each.strip().partition(" ")
        settings.setdefault(keyword.lower(), []).append(value)
    return settings


def parse_files(files: Sequence[str], host: str) -> tuple[dict[str, list[str]], list[str]]:
    """Read ssh configuration with paramiko; return it, and what of it was ignored."""
    import paramiko

    config, ignored = paramiko.SSHConfig(), []
    for file in files:
        try:
            text = Path(file).expanduser().read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        kept = []
        for number, each in enumerate(text.splitlines(), start=1):
            unknown = _unknown_to_paramiko(each)
            if unknown:
                ignored.append(f"{unknown} ({file}:{number})")
            # What follows an unknown Match must apply to nobody.
            kept.append("Host !*" if unknown.startswith("Match") else "" if unknown else each)
        try:
            config.parse(kept)
        except paramiko.ConfigParseError as error:
            raise Failure(f"{file} cannot be read: {error}") from None
    found = config.lookup(host)
    settings = {k: v if isinstance(v, list) else [v] for k, v in found.items() if v is not None}
    return settings, ignored


def expand(text: str, tokens: Mapping[str, str], *, home: bool = True) -> str:
    """Replace `%h` and its like, `${NAME}` and a leading `~`, where ssh has left them."""
    text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
    if not home:
        return text
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
    return at_home(text)


def at_home(path: str) -> str:
    """Replace a leading `~` by the user's home."""
    return str(Path(path).expanduser()) if path else ""


def _tokens(name: str, host: str, port: int, user: str, alias: str) -> dict[str, str]:
    here = socket.gethostname()
    return {
        "%": "%",
        "d": at_home("~"),
        "h": host,
        "i": str(os.getuid()),
        "k": alias or name,
        "L": here.partition(".")[0],
        "l": here,
        "n": name,
        "p": str(port),
        "r": user,
        "u": _local_user(),
    }


def _local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def _query(argv: Sequence[str]) -> str:
    """Run a command that prints; its whole process group ends with the deadline."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    with process:
        try:
            out, err = process.communicate(timeout=QUERY_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise Failure(
                f"`{shell.line(argv)}` did not answer within {QUERY_TIMEOUT_S:g} s",
                "is there a slow `Match exec` or CanonicalizeHostname in your ssh config?",
            ) from None
    if process.returncode:
        said = [each for each in err.decode(errors="replace").splitlines() if "Pseudo-" not in each]
        cause = said[0].strip() if said else f"exit code {process.returncode}"
        raise Failure(f"your ssh config cannot be read: {cause}", "\n".join(said[1:]))
    return out.decode(errors="replace")


def _unknown_to_paramiko(text: str) -> str:
    """Name what paramiko does not know, or what would run a command; "" if there is none."""
    words = text.replace("=", " ", 1).split()
    keyword = words[0].lower() if words else ""
    if keyword == "include":
        return "Include"
    if keyword != "match":
        return ""
    with contextlib.suppress(ValueError):
        words = shlex.split(text)
    position = 1
    while position < len(words):
        criterion = words[position].lower().lstrip("!")
        if criterion not in _KNOWN_MATCH:
            return f"Match {criterion}"
        position += 1 if criterion in ("all", "canonical", "final") else 2
    return ""


def _same(hop: Hop, endpoint: Endpoint) -> bool:
    """Whether a host is its own jump host, as under `Host *` with a ProxyJump."""
    return hop.host in (endpoint.name, endpoint.host) and hop.port in (None, endpoint.port)


def _one(settings: Settings, keyword: str) -> str:
    values = settings.get(keyword, ())
    return values[0] if values else ""


def _words(settings: Settings, keyword: str) -> list[str]:
    return _one(settings, keyword).split()


def _existing(paths: Iterable[str]) -> tuple[str, ...]:
    found = []
    for path in paths:
        with contextlib.suppress(OSError):
            Path(path).stat()
            found.append(path)
    return tuple(dict.fromkeys(found))


def _agent(configured: str) -> str:
    if configured.lower() == "none":
        return ""
    if configured in ("", "SSH_AUTH_SOCK"):
        return os.environ.get("SSH_AUTH_SOCK", "")
    return os.environ.get(configured[1:], "") if configured.startswith("$") else configured
