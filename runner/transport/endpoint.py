"""One machine to log in to, as `ssh -G` resolves it."""

from __future__ import annotations

import functools
import getpass
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runner.core.shell import expand_home
from runner.core.spec import Ssh

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SSH_PORT = 22


@dataclass(frozen=True)
class Endpoint:
    """One machine to log in to."""

    name: str  # as the user wrote it: an alias, a name or an address
    options: tuple[str, ...] = ()  # for `ssh`, which then does the same
    jump: tuple[str, ...] = ()  # more of them
    settings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """By lower-case keyword, as `ssh -G` prints them."""
    is_jump: bool = False
    host: str = ""
    port: int = SSH_PORT
    user: str = ""

    @property
    def words(self) -> tuple[str, ...]:
        """What `ssh` takes for the same login."""
        return (*self.options, *self.jump, self.name)

    @property
    def hops(self) -> list[str]:
        """The jump hosts before it, as they are written."""
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


@functools.cache
def local_user() -> str:
    """Return the name of the user here."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container whose user has no name
        return str(os.getuid())


def _paths(text: str) -> list[str]:
    """Split a list of paths, which `ssh -G` prints without quotes: a path may have blanks."""
    return [path for path in re.split(r" (?=[/~]|none$)", text) if path not in ("", "none")]
