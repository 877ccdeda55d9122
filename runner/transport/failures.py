"""Ten kinds of login failure, each with the key to set or the command to type next."""

from __future__ import annotations

import contextlib
import os
import random
import re
import threading
import time
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from runner.core import shell
from runner.core.errors import NotReady, Problem, Shared

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from runner.transport.ssh_config import Endpoint


REVOKED_HINT = "do not log in; give the machine a new host key"
CERTIFICATE_HINT = "its host certificate must be valid, and made for its name"
PAUSE_SHARES = (0.1, 0.5, None)
"""The pauses after a refusal for now, before jitter, as shares of the time for a login."""


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
        "set {port} to the port of its sshd; if it is that, its sshd is too old or allows too few"
        " algorithms: your own ssh client may know more: cluster.transport=openssh"
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
    """A login failed."""

    def __init__(self, kind: Kind, problem: Problem) -> None:
        super().__init__([problem])
        self.kind = kind


class Failures:
    """The failures of logins to one machine, for the sake of one node."""

    def __init__(self, node: str, endpoint: Endpoint) -> None:
        self._node = node
        self._endpoint = endpoint

    def failed(
        self, kind: Kind, what: str, hint: str | None = None, *, detail: str = "", forget: str = ""
    ) -> LoginFailed:
        """Return the failure of this machine, whose address stands before `what`.

        A `hint` takes the place of that of the kind. Where many nodes have it, they are one
        problem, with an address and a `detail` for each.
        """
        endpoint = self._endpoint
        place = f"{endpoint.host} port {endpoint.port}"
        keys = f"cluster.nodes.{self._node}."
        fill = {"host": f"{keys}host", "port": f"{keys}port", "user": endpoint.user}
        shared = f"its port {endpoint.port} {what}"
        if endpoint.is_jump:
            place = f"jump host {endpoint.name} ({place})"
            fill = {"host": "cluster.ssh.jump", "port": "cluster.ssh.jump", "user": endpoint.user}
            shared = f"{place} {what}"
        by_hand = shell.line(["ssh", *endpoint.words])
        text = kind.value.format(**fill, by_hand=by_hand, forget=forget) if hint is None else hint
        example = f"try by hand: {by_hand.replace('ssh', 'ssh -v', 1)}"
        if shell.line(endpoint.words) in text:
            example = ""
        problem = Problem(
            self._node,
            f"{place} {what}{detail and f': {detail}'}",
            f"{text}\n{example}".rstrip(),
            Shared(
                shared.replace(endpoint.host, "HOST"),
                text.replace(by_hand, "ssh HOST"),
                detail=detail and f"{place}: {detail}",
                example=example,
            ),
        )
        return LoginFailed(kind, problem)

    def denied(
        self, methods: Sequence[str], what: str, notes: Sequence[str] = (), *, is_own: bool = False
    ) -> LoginFailed:
        """Return the failure of a machine that wants one of `methods`; `notes` precede the advice.

        `is_own` says that it denied the user's own client.
        """
        endpoint = self._endpoint
        hints = [*notes]
        others = {*methods} - {"publickey", "password", "keyboard-interactive"}
        if not methods or "publickey" in methods:
            hints.append(Kind.DENIED.value.format(user=endpoint.user))
        elif others != {*methods}:
            if not endpoint.first("controlpath"):
                hints.append("write `ControlPath ~/.ssh/%C` for it into your ssh config")
            master = shell.line(["ssh", "-fNM", *endpoint.words])
            hints.append(f"open a connection by hand, through which logins go then: {master}")
            others.add("that connection")
        if others and not is_own:
            hints.append("let your own ssh client log in: cluster.transport=openssh")
        return self.failed(Kind.DENIED, what, "\n".join(hints))

    def unknown_key(self, what: str, detail: str = "") -> LoginFailed:
        """Return the failure of a machine whose host key is not known."""
        settings = self._endpoint.settings
        ignored = []
        if settings.get("stricthostkeychecking") in (["false"], ["no"], ["off"]):
            ignored.append("StrictHostKeyChecking no")
        if os.devnull in self._endpoint.first("userknownhostsfile").split():
            ignored.append(f"UserKnownHostsFile {os.devnull}")
        hint = None
        if ignored:
            hint = f"not followed: `{'` and `'.join(ignored)}` of your ssh config\n"
            hint += Kind.HOST_KEY_UNKNOWN.value.splitlines()[1].removeprefix("or ")
        return self.failed(Kind.HOST_KEY_UNKNOWN, what, hint, detail=detail)

    def changed_key(self, what: str, files: Iterable[str], detail: str = "") -> LoginFailed:
        """Return the failure of a machine that shows another host key than it had."""
        name = self._endpoint.lookup_names[0]
        commands = [shell.line(["ssh-keygen", "-R", name, "-f", file]) for file in files]
        forget = "; ".join(commands)
        return self.failed(Kind.HOST_KEY_CHANGED, what, detail=detail, forget=forget)


class Gate:
    """Lets one thread log in at a time, and lets it try again where it is refused for now.

    Where it is shared, a failure is also that of those who come soon after.
    """

    def __init__(self, timeout_s: float, *, is_shared: bool) -> None:
        self._timeout_s = timeout_s
        self._is_shared = is_shared
        self._lock = threading.Lock()
        self._failure: LoginFailed | None = None
        self._failed_at = 0.0

    def log_in(self, attempt: Callable[[], None], *, unless: Callable[[], bool]) -> None:
        """Log in, unless that is done; raise LoginFailed."""
        with self._lock:
            if unless():
                return
            if self._failure and time.monotonic() < self._failed_at + self._timeout_s:
                raise self._failure
            for share in PAUSE_SHARES:
                try:
                    attempt()
                except LoginFailed as error:
                    if share and error.kind is Kind.NOT_NOW:
                        time.sleep(self._timeout_s * share * random.uniform(0.5, 1.5))  # noqa: S311
                        continue
                    if self._is_shared:
                        self._failure = error
                        self._failed_at = time.monotonic()
                    raise
                return


@contextlib.contextmanager
def of_node(node: str) -> Iterator[None]:
    """Raise a failure as that of a node: a jump host may have had it for another one."""
    try:
        yield
    except LoginFailed as error:
        raise LoginFailed(error.kind, replace(error.problems[0], subject=node)) from None


_SAID = (
    (Kind.NAME, r"Could not resolve hostname|Name or service not known"),
    (Kind.HOST_KEY_UNKNOWN, r"Certificate invalid"),
    (Kind.HOST_KEY_CHANGED, r"IDENTIFICATION HAS CHANGED|REVOKED HOST KEY"),
    (Kind.HOST_KEY_UNKNOWN, r"No \S+ host key is known|Host key verification failed"),
    (Kind.DENIED, r"Permission denied|Too many authentication failures"),
    (Kind.SILENT, r"[Tt]imed out|did not answer"),
    (Kind.UNREACHED, r"refused|No route|unreachable|open failed|forwarding failed"),
    (Kind.NOT_SSH, r"Unable to negotiate|Bad packet|banner line contains|invalid format"),
    (Kind.CONFIG, r"onfiguration option|jumphost loop|usage: "),
    (Kind.UNREACHED, r"^(?!kex_exchange_identification|.*(closed|reset) by)"),
    (Kind.NOT_NOW, r""),
)
"""What OpenSSH's client says, the most telling first."""


def from_client(failures: Failures, said: Sequence[str], who: str = "ssh") -> LoginFailed:
    """Return the failure by the words of OpenSSH's client, or of a ProxyCommand."""
    text = "\n".join(said)
    kind, line = next(
        (kind, line) for kind, regex in _SAID for line in said if re.search(regex, line)
    )
    what = f"was not logged in to; {who} says: {line.strip('@ ')}"
    hints = {"REVOKED": REVOKED_HINT, "Certificate invalid": CERTIFICATE_HINT}
    hint = next((hint for words, hint in hints.items() if words in line), None)
    if who != "ssh":
        hint = "see ProxyCommand in your ssh config"
    if hint:
        return failures.failed(kind, what, hint)
    if kind is Kind.DENIED:
        found = re.search(r"Permission denied \(([^)]*)\)", text)
        notes = [line for line in said if re.search(r"Load key|no such identity", line)]
        return failures.denied(found[1].split(",") if found else [], what, notes, is_own=True)
    if kind is Kind.HOST_KEY_UNKNOWN:
        return failures.unknown_key(what)
    if kind is Kind.HOST_KEY_CHANGED:
        return failures.changed_key(what, re.findall(r"key in (\S+):\d+", text))
    return failures.failed(kind, what)
