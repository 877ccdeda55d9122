"""One machine to log in to, as `ssh -G` resolves it, and why a login there failed.

Ten kinds of failure, each with the key to set or the command to type next.
"""

from __future__ import annotations

import functools
import getpass
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from runner.core import shell
from runner.core.errors import NotReady, Problem, Shared
from runner.core.shell import expand_home
from runner.core.spec import Ssh

SSH_PORT = 22

BY_OPENSSH = "cluster.transport=openssh"
TRIES_HINT = (
    "it may allow few attempts (MaxAuthTries): set cluster.ssh.key to the right key,"
    " or IdentitiesOnly yes in your ssh config"
)
FORWARDING_HINT = (
    "its jump host does not reach it, or may not:"
    " see AllowTcpForwarding and PermitOpen in the sshd_config there"
)
CERTIFICATE_HINT = "give it a host certificate that is valid for its name"
REVOKED_HINT = "do not log in; give the machine a new host key"


class Kind(Enum):
    """What kept a login from succeeding, with its hint."""

    CONFIG = "see your ssh config, and cluster.ssh"
    NAME = "set {host} to a name or an address that can be looked up"
    UNREACHED = (
        "is it on, and is that the port of its sshd ({port})?"
        " a firewall, a VPN or a route may be in the way"
    )
    SILENT = (
        "it is down or overloaded, the address is wrong ({host}), or a firewall drops packets\n"
        "to allow more time, set cluster.ssh.connect_timeout"
    )
    NOT_NOW = (
        "its sshd has too many logins in progress (MaxStartups), or rejects this address for a"
        " while after failed logins (PerSourcePenalties of OpenSSH 9.8 and later)\n"
        "wait and try again, or raise MaxStartups in its sshd_config"
    )
    NOT_SSH = (
        "set {port} to the port of its sshd; if it is that, it is too old or allows too few"
        " algorithms\nyour own ssh client may know more: cluster.transport=openssh"
    )
    HOST_KEY_UNKNOWN = (
        "log in by hand, and compare the key with what the host itself says"
        " (cat /etc/ssh/ssh_host_*.pub | ssh-keygen -lf -): {by_hand}\n"
        "or trust the first key of every host of this cluster: cluster.ssh.host_keys=accept-new"
    )
    HOST_KEY_CHANGED = (
        "someone may intercept the connection, or the machine was reinstalled: compare the key"
        " with what the host itself says (cat /etc/ssh/ssh_host_*.pub | ssh-keygen -lf -)\n"
        "if they are equal, forget the old one: {forget}\n"
        "and take the new one by hand: {by_hand}"
    )
    DENIED = (
        "put your public key into ~{user}/.ssh/authorized_keys there,"
        " or set cluster.ssh.key or cluster.ssh.user to the right one"
    )
    NO_SESSION = "the shell or the limits of {user} there may forbid it (MaxSessions, ForceCommand)"


class LoginFailed(NotReady):
    def __init__(self, kind: Kind, problem: Problem) -> None:
        super().__init__([problem])
        self.kind = kind


@dataclass(frozen=True)
class Endpoint:
    """One machine to log in to, for the sake of a node."""

    node: str
    name: str  # as the user wrote it: an alias, a name or an address
    options: tuple[str, ...] = ()  # for `ssh`, which then does the same
    jump: tuple[str, ...] = ()  # more of them
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By lower-case keyword, as `ssh -G` prints them."""
    is_jump: bool = False
    host: str = ""
    port: int = SSH_PORT
    user: str = ""
    by_openssh: bool = False  # the user's own client logs in: there is no better one

    @property
    def words(self) -> tuple[str, ...]:
        """What `ssh` takes for the same login."""
        return (*self.options, *self.jump, self.name)

    @property
    def hops(self) -> list[str]:
        return [hop.strip() for hop in self.first("proxyjump").split(",") if hop]

    def first(self, keyword: str) -> str:
        """Return the first value of a setting; "" where there is none."""
        value = next(iter(self.settings.get(keyword, ())), "")
        return "" if value.lower() == "none" else value

    def expand(self, text: str) -> str:
        """Replace the tokens, variables and the `~` that `ssh -G` leaves in paths and commands."""
        tokens = {
            "%": "%",
            "d": expand_home("~"),
            "h": self.host,
            "n": self.name,
            "p": str(self.port),
            "r": self.user,
            "u": local_user(),
        }
        text = re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)
        return expand_home(os.path.expandvars(text))

    @property
    def lookup_names(self) -> tuple[str, ...]:
        """Its names in known-hosts files, the exact one first."""
        if alias := self.first("hostkeyalias"):
            return (alias,)
        if self.port == SSH_PORT:
            return (self.host,)
        return (f"[{self.host}]:{self.port}", self.host)

    @property
    def known_hosts_files(self) -> tuple[str, ...]:
        """The user's own first, to which keys are added."""
        own = _paths(self.first("userknownhostsfile"))
        if not any("UserKnownHostsFile" in option for option in self.options):
            own = [path for path in own if path != os.devnull] or [Ssh().known_hosts]
        files = [*own, *_paths(self.first("globalknownhostsfile"))]
        return tuple(self.expand(path) for path in files)

    def failed(
        self, kind: Kind, what: str, hint: str | None = None, *, detail: str = "", forget: str = ""
    ) -> LoginFailed:
        """Return the failure of this machine, whose address stands before `what`.

        A `hint` takes the place of that of the kind. Where many nodes have it, they are one
        problem, with an address and a `detail` for each.
        """
        place = f"{self.host} port {self.port}"
        shared = f"its port {self.port} {what}"
        keys = {
            "host": f"cluster.nodes.{self.node}.host",
            "port": f"cluster.nodes.{self.node}.port",
        }
        if self.is_jump:
            place = f"jump host {self.name} ({place})"
            shared = f"{place} {what}"
            keys = dict.fromkeys(keys, "cluster.ssh.jump")
        by_hand = shell.line(["ssh", *self.words])
        text = hint
        if text is None:
            text = kind.value.format(**keys, user=self.user, by_hand=by_hand, forget=forget)
        if self.by_openssh:
            text = "\n".join(line for line in text.splitlines() if BY_OPENSSH not in line)
        example = f"try by hand: {by_hand.replace('ssh', 'ssh -v', 1)}"
        if shell.line(self.words) in text:
            example = ""
        problem = Problem(
            self.node,
            f"{place} {what}{detail and f': {detail}'}",
            f"{text}\n{example}".strip(),
            Shared(
                re.sub(rf"(?<![\w.-]){re.escape(self.host)}(?![\w.-])", "HOST", shared),
                text.replace(by_hand, "ssh HOST"),
                detail=detail and f"{place}: {detail}",
                example=example,
            ),
        )
        return LoginFailed(kind, problem)

    def denied(self, methods: Sequence[str], what: str, notes: Sequence[str] = ()) -> LoginFailed:
        """Return that of a machine which wants one of `methods`; `notes` precede the advice."""
        hints = [*notes]
        others = {*methods} - {"publickey", "password", "keyboard-interactive"}
        if not methods or "publickey" in methods:
            hints.append(Kind.DENIED.value.format(user=self.user))
        elif others != {*methods}:
            if not self.first("controlpath"):
                hints.append("write `ControlPath ~/.ssh/%C` for it into your ssh config")
            master = shell.line(["ssh", "-fNM", *self.words])
            hints.append(f"open a connection by hand, through which logins go then: {master}")
            others.add("that connection")
        if others:
            hints.append(f"let your own ssh client log in: {BY_OPENSSH}")
        return self.failed(Kind.DENIED, what, "\n".join(hints))

    def unknown_key(self, detail: str, hint: str | None = None) -> LoginFailed:
        ignored = []
        if self.first("stricthostkeychecking") in ("false", "no", "off"):
            ignored.append("StrictHostKeyChecking no")
        if os.devnull in self.first("userknownhostsfile").split():
            ignored.append(f"UserKnownHostsFile {os.devnull}")
        if ignored and hint is None:
            hint = f"not followed: `{'` and `'.join(ignored)}` of your ssh config\n"
            hint += Kind.HOST_KEY_UNKNOWN.value.splitlines()[1].removeprefix("or ")
        what = "shows a host key that is not known"
        return self.failed(Kind.HOST_KEY_UNKNOWN, what, hint, detail=detail)

    def changed_key(self, detail: str, files: Iterable[str]) -> LoginFailed:
        """Return the failure of a machine whose lines in some files have other host keys."""
        name = self.lookup_names[0]
        forget = "; ".join(shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files)
        what = "shows another host key than before"
        return self.failed(Kind.HOST_KEY_CHANGED, what, detail=detail, forget=forget)

    def by_words(self, said: Sequence[str], who: str) -> LoginFailed:
        """Return the failure by what OpenSSH or paramiko said; `who` tells of whom, or of when.

        Of the lines, the most telling one is quoted.
        """
        kind, hint, line = next(
            (kind, hint, line)
            for kind, regex, hint in _SAID
            for line in said
            if re.search(regex, line)
        )
        line = line.strip("@ ")
        what = f"cannot be logged in to, {who}: {line}"
        if hint:
            return self.failed(kind, what, hint)
        if kind is Kind.DENIED:
            found = re.search(r"\(([a-z,-]+)\)", line)
            notes = [note for note in said if "Load key" in note]
            return self.denied(found[1].split(",") if found else [], what, notes)
        if kind is Kind.HOST_KEY_UNKNOWN:
            return self.unknown_key(line)
        if kind is Kind.HOST_KEY_CHANGED:
            return self.changed_key(line, re.findall(r"key in (\S+):\d+", "\n".join(said)))
        return self.failed(kind, what)


_SAID = (
    (Kind.NAME, r"ould not resolve|Name or service not known|for hostname not|name resolution", ""),
    (Kind.HOST_KEY_UNKNOWN, r"Certificate invalid", CERTIFICATE_HINT),
    (Kind.HOST_KEY_CHANGED, r"REVOKED HOST KEY", REVOKED_HINT),
    (Kind.HOST_KEY_CHANGED, r"IDENTIFICATION HAS CHANGED", ""),
    (Kind.HOST_KEY_UNKNOWN, r"No \S+ host key is known|Host key verification failed", ""),
    (Kind.DENIED, r"Too many authentication failures", TRIES_HINT),
    (Kind.DENIED, r"Permission denied", ""),
    (Kind.SILENT, r"[Tt]imed? ?out|did not answer", ""),
    (Kind.UNREACHED, r"dministratively prohibited|forwarding request failed", FORWARDING_HINT),
    (Kind.UNREACHED, r"refused|No route|unreachable|open failed|forwarding failed", ""),
    (Kind.NOT_SSH, r"to negotiate|[Ii]ncompatible|Bad packet|banner line|Invalid SSH|ndeciph", ""),
    (Kind.CONFIG, r"onfiguration option|usage: ", ""),
    (Kind.UNREACHED, r"^(?!kex_exchange_identification|Error reading SSH|.*(closed|reset) by)", ""),
    (Kind.NOT_NOW, r"", ""),
)
"""What OpenSSH and paramiko say, the most telling first, and a hint that tells more."""


@functools.cache
def local_user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def _paths(text: str) -> list[str]:
    """Split a list of paths, which `ssh -G` prints without quotes: a path may have blanks."""
    return [path for path in re.split(r" (?=[/~]|none$)", text) if path not in ("", "none")]
