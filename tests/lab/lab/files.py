"""The files that make a host this host and no other: its part of /etc, and new homes."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.lab.switch import INTERFACE, Leg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LOGIN_USER = "alice"
"""Whom tests log in as, unless they are about root."""

HOMES = {"root": "/home/root", LOGIN_USER: "/home/alice"}
ALICE = 2001
"""Her user and group id."""

SSHD_CONFIG = """\
HostKey /etc/ssh/ssh_host_ed25519_key
AuthorizedKeysFile /etc/ssh/authorized_keys
PidFile none
UseDNS no
UsePAM no
Subsystem sftp internal-sftp
StrictModes no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
MaxSessions 200
"""

# The last line has no end: what comes next on the connection stands right behind it.
SHELL_OUTPUT = """\
echo '*** {name}: for authorised use only ***'
printf 'your quota: 3 %% used; have a nice day'
"""
START_UP_FILES = (".bashrc", ".config/fish/config.fish")


@dataclass(frozen=True)
class HostPlan:
    """What one host shall be; `make_lab` explains it."""

    name: str
    leg: Leg
    disk: str  # the name of that with its homes
    is_loopback: bool
    login_shell: str
    rc_banner: bool
    sshd_options: tuple[str, ...]

    @property
    def address(self) -> str:
        return self.leg.address


@dataclass(frozen=True)
class HostFiles:
    """The folder a host boots from, on the machine's disk; `inside/boot.sh` says what it holds."""

    folder: Path

    @property
    def host_key(self) -> Path:
        return self.folder / "etc/ssh/ssh_host_ed25519_key"

    @property
    def console(self) -> Path:
        return self.folder / "console.log"

    def write(
        self,
        plan: HostPlan,
        *,
        addresses: Mapping[str, str],
        authorized_key: str,
        keep: Iterable[Path],
    ) -> None:
        """Writes all but the host key; `keep` stays visible where the host covers folders."""
        put(self.folder / "hostname", f"{plan.name}\n")
        put(self.folder / "network", _network(plan))
        put(self.folder / "keep", "".join(f"{path}\n" for path in keep))
        etc = {
            "passwd": _passwd(plan.login_shell),
            "group": _group(),
            "shadow": _shadow(),
            "hosts": _hosts(plan, addresses),
            "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files\n",
            "ssh/sshd_config": _sshd_config(plan),
            "ssh/authorized_keys": f"{authorized_key}\n",
        }
        if plan.rc_banner:
            etc["ssh/banner"] = f"{plan.name} belongs to the lab.\n"
        identity = {"hostname": f"{plan.name}\n", "machine-id": f"{_machine_id(plan)}\n"}
        # A file can only be mounted over one that is there.
        etc |= {name: text for name, text in identity.items() if Path("/etc", name).is_file()}
        for name, text in etc.items():
            put(self.folder / "etc" / name, text)
        (self.folder / "etc/shadow").chmod(0o600)


def make_homes(disk: Path, plan: HostPlan) -> None:
    for user, home in HOMES.items():
        folder = disk / Path(home).name
        put(folder / ".profile", "# Read by login shells.\n")
        if plan.rc_banner:
            for name in START_UP_FILES:
                put(folder / name, SHELL_OUTPUT.format(name=plan.name))
        owner = ALICE if user == LOGIN_USER else 0
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner, owner)
        folder.chmod(0o700)


def put(path: Path, text: str) -> None:
    """Writes a file that all may read, and its folders, whatever our umask."""
    for folder in reversed(path.parents):
        if not folder.exists():
            folder.mkdir()
            folder.chmod(0o755)
    path.write_text(text)
    path.chmod(0o644)


def _sshd_config(plan: HostPlan) -> str:
    # The first value of an option counts, but of this one the last.
    options = "MaxStartups 200\n" + "".join(f"{line}\n" for line in plan.sshd_options)
    banner = "Banner /etc/ssh/banner\n" if plan.rc_banner else ""
    return options + banner + SSHD_CONFIG


def _network(plan: HostPlan) -> str:
    return (
        "link set dev lo up\n"
        f"link set dev {INTERFACE} up\n"
        f"address add {plan.address}/24 broadcast + dev {INTERFACE}\n"
    )


def _hosts(plan: HostPlan, addresses: Mapping[str, str]) -> str:
    names = {**addresses, plan.name: "127.0.1.1" if plan.is_loopback else plan.address}
    entries = "".join(f"{address} {name}\n" for name, address in names.items())
    return f"127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n{entries}"


def _machine_id(plan: HostPlan) -> str:
    return plan.leg.mac.replace(":", "").rjust(32, "0")


def _system_accounts(path: str) -> list[list[str]]:
    rows = [line.split(":") for line in Path(path).read_text().splitlines()]
    return [row for row in rows if row[0] not in HOMES and row[2:3] != [str(ALICE)]]


def _table(rows: Iterable[Iterable[str]]) -> str:
    return "".join(":".join(row) + "\n" for row in rows)


def _passwd(shell: str) -> str:
    root = ["root", "x", "0", "0", "root", HOMES["root"], shell]
    alice = ["alice", "x", str(ALICE), str(ALICE), "alice", HOMES["alice"], shell]
    return _table([root, *_system_accounts("/etc/passwd"), alice])


def _group() -> str:
    return _table(
        [["root", "x", "0", ""], *_system_accounts("/etc/group"), ["alice", "x", str(ALICE), ""]]
    )


def _shadow() -> str:
    # "*" is no password; "!" would be a locked account, which sshd refuses. The machine's own
    # hashes are not copied.
    names = ["root", "alice", *(row[0] for row in _system_accounts("/etc/passwd"))]
    return _table([name, "*", "19000", "0", "99999", "7", "", "", ""] for name in names)
