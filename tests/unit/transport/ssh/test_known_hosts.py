"""Known hosts: every form of a line, and the verdict on a shown key."""

from __future__ import annotations

import base64
import hmac
import stat
import struct
from pathlib import Path

import pytest

from runner.transport.ssh.known_hosts import (
    HostKey,
    KeyCheck,
    KeyStatus,
    KnownHosts,
    format_line,
    lookup_names,
)


def make_key(seed: str, kind: str = "ssh-ed25519") -> HostKey:
    return HostKey(kind, struct.pack(">I", len(kind)) + kind.encode() + seed.encode())


OLD, NEW = make_key("old"), make_key("new")
RSA = make_key("rsa", "ssh-rsa")


def hashed(name: str, salt: bytes) -> str:
    digest = hmac.digest(salt, name.encode(), "sha1")
    return "|1|" + "|".join(base64.b64encode(part).decode() for part in (salt, digest))


class Files:
    """A known-hosts file and the notes taken while reading it."""

    def __init__(self, path: Path, *lines: str) -> None:
        self.path = path
        self.notes: list[str] = []
        if lines:
            path.write_text("\n".join(lines) + "\n")
        self.known = KnownHosts(on_note=self.notes.append)

    def judge(self, host: str, key: HostKey, port: int = 22, alias: str = "") -> KeyCheck:
        return self.known.check(lookup_names(host, port, alias), key, [str(self.path)])

    def standing(self, host: str, key: HostKey = OLD, port: int = 22, alias: str = "") -> str:
        return self.judge(host, key, port, alias).status.name


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A known-hosts file that does not exist yet, in a folder that does not either."""
    return tmp_path / "known_hosts"


@pytest.mark.parametrize(
    ("hosts", "host", "port", "standing"),
    [
        ("gpu1", "gpu1", 22, "KNOWN"),
        ("GPU1", "gpu1", 22, "KNOWN"),
        ("*.lab", "gpu1.lab", 22, "KNOWN"),
        ("*.lab,!bad.lab", "bad.lab", 22, "UNKNOWN"),
        ("[gpu1]:2222", "gpu1", 2222, "KNOWN"),
        ("[gpu1]:2222", "gpu1", 22, "UNKNOWN"),
        ("gpu1", "gpu1", 2222, "KNOWN"),
        ("[gp]u1", "gu1", 22, "UNKNOWN"),
        (hashed("gpu1", b"salt"), "GPU1", 22, "KNOWN"),
        (hashed("[gpu1]:2222", b"salt"), "gpu1", 2222, "KNOWN"),
    ],
)
def test_hosts_are_matched_as_openssh_does(
    path: Path, hosts: str, host: str, port: int, standing: str
) -> None:
    """Plain, listed, wildcard, negated, with a port, hashed; case does not matter."""
    assert standing == Files(path, format_line(hosts, OLD)).standing(host, OLD, port)


def test_another_key_of_a_known_host_is_a_change(path: Path) -> None:
    """A key that no line of a known host has is a change, and the lines are named."""
    files = Files(path, "# mine", format_line("other", NEW), format_line("gpu1", OLD))
    judgement = files.judge("gpu1", NEW)
    assert judgement.status is KeyStatus.CHANGED
    assert [entry.location for entry in judgement.entries] == [f"{path}:3"]


def test_another_type_of_a_known_host_is_a_change(path: Path) -> None:
    """Someone in between cannot pass by offering a type of key that was never seen."""
    assert Files(path, format_line("gpu1", RSA)).standing("gpu1", OLD) == "CHANGED"


def test_plain_name_vouches_for_another_port_but_does_not_accuse_it(path: Path) -> None:
    """As in OpenSSH: "gpu1" may say yes to [gpu1]:2222, its silence means unknown."""
    files = Files(path, format_line("gpu1", OLD))
    assert files.standing("gpu1", OLD, 2222) == "KNOWN"
    assert files.standing("gpu1", NEW, 2222) == "UNKNOWN"


def test_alias_replaces_the_name(path: Path) -> None:
    """With a HostKeyAlias neither the host's own name nor its port count."""
    files = Files(path, format_line("cluster", OLD), format_line("gpu1", NEW))
    assert files.standing("gpu1", OLD, 2222, alias="cluster") == "KNOWN"
    assert files.standing("gpu1", NEW, 2222, alias="cluster") == "CHANGED"


def test_revoked_key_is_refused_even_if_also_known(path: Path) -> None:
    """@revoked wins over every other line, and forbids that key only."""
    files = Files(
        path,
        format_line("gpu1", OLD),
        format_line("gpu1", NEW),
        f"@revoked {format_line('*', OLD)}",
    )
    judgement = files.judge("gpu1", OLD)
    assert judgement.status is KeyStatus.REVOKED
    assert judgement.entries[0].location == f"{path}:3"
    assert files.standing("gpu1", NEW) == "KNOWN"


@pytest.mark.parametrize(
    "bad",
    [
        "gpu1",
        "gpu1 ssh-ed25519 ???",
        "gpu1 ssh-ed25519 AAAA",
        "@new " + format_line("gpu1", OLD),
        "gpu1 1024 35 123456789",
    ],
)
def test_unreadable_line_costs_that_line_only(path: Path, bad: str) -> None:
    """The others still count, and one note names the file and the line."""
    files = Files(path, "# first", bad, "", format_line("gpu1", OLD))
    assert files.standing("gpu1") == "KNOWN"
    assert files.standing("gpu1") == "KNOWN"
    assert files.notes == [f"{path}:2: not a line of a known-hosts file; skipped"]


def test_learned_key_is_known_at_once_and_later(tmp_path: Path) -> None:
    """One line is appended, in a private folder and file made for it."""
    path = tmp_path / "new" / "known_hosts"
    files = Files(path)
    assert files.standing("gpu1", OLD, 2222) == "UNKNOWN"
    files.known.add("[gpu1]:2222", OLD, str(path))
    assert files.standing("gpu1", OLD, 2222) == "KNOWN"
    assert files.standing("gpu1", NEW, 2222) == "CHANGED"
    assert path.read_text() == format_line("[gpu1]:2222", OLD) + "\n"
    assert Files(path).standing("gpu1", OLD, 2222) == "KNOWN"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_two_processes_learn_a_key_once(path: Path) -> None:
    """Who comes second finds it in the file."""
    first, second = Files(path), Files(path)
    assert {"UNKNOWN"} == {files.standing("gpu1") for files in (first, second)}
    first.known.add("gpu1", OLD, str(path))
    second.known.add("gpu1", OLD, str(path))
    assert path.read_text() == format_line("gpu1", OLD) + "\n"
