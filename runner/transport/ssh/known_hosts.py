"""Known-hosts files: the host keys that a machine is expected to show."""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import hashlib
import hmac
import os
import re
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path

SSH_PORT = 22

_MARKERS = ("", "@revoked", "@cert-authority")
_HOSTS = re.compile(r"[^|].*|\|1\|[A-Za-z0-9+/]+=*\|[A-Za-z0-9+/]+=*")


@dataclass(frozen=True)
class HostKey:
    """A public key as it is transmitted: its type ("ssh-ed25519") and its bytes."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH prints it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest()).decode()
        return "SHA256:" + digest.rstrip("=")

    @property
    def algorithm(self) -> str:
        """The name used by `ssh-keyscan -t` and key files: ed25519, ecdsa, rsa."""
        return next((name for name in ("ed25519", "ecdsa", "rsa") if name in self.type), self.type)


@dataclass(frozen=True)
class Entry:
    """One usable line of a known-hosts file."""

    location: str  # "FILE:LINE"
    marker: str  # "", "@revoked" or "@cert-authority"
    hosts: str  # the first field, as written
    key: HostKey

    @property
    def is_hashed(self) -> bool:
        """Whether the name is written as a salted hash."""
        return self.hosts.startswith("|")

    def matches(self, name: str) -> bool:
        """Return whether this line is about `name` ("host" or "[host]:port")."""
        if self.is_hashed:
            return _hash_matches(_salt_and_digest(self.hosts), name.lower())
        patterns = self.hosts.lower().split(",")
        matching = [p for p in patterns if _matches_pattern(p.removeprefix("!"), name.lower())]
        return bool(matching) and not any(pattern.startswith("!") for pattern in matching)


class KeyStatus(Enum):
    """The status of a key that a machine shows, by the known-hosts files."""

    KNOWN = auto()
    UNKNOWN = auto()  # no line is about the machine
    CHANGED = auto()  # the machine's lines have only other keys
    REVOKED = auto()


@dataclass(frozen=True)
class KeyCheck:
    """A key's status, and the lines that decide it."""

    status: KeyStatus
    entries: tuple[Entry, ...] = ()


class _HostIndex:
    """The entries of one file by name; a hashed one is compared with each name at most once.

    OpenSSH hashes the lines of 1,000 hosts with 3,000 salts: each name costs that many HMACs.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries: list[Entry] = []
        self._literal: dict[str, list[int]] = {}
        self._patterns: list[int] = []
        self._hashed: dict[int, tuple[bytes, bytes]] = {}  # those that no name has matched yet
        self._hashed_by_name: dict[str, list[int]] = {}  # of the names that were looked up
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Add an entry at the end; hashed ones before any name is looked up."""
        index, hosts = len(self._entries), entry.hosts.lower()
        self._entries.append(entry)
        if entry.is_hashed:
            self._hashed[index] = _salt_and_digest(entry.hosts)
        elif any(character in hosts for character in "*?!"):
            self._patterns.append(index)
        else:
            for name in hosts.split(","):
                self._literal.setdefault(name, []).append(index)

    def entries_of(self, names: Iterable[str]) -> list[Entry]:
        """Return the entries about any of the names, in the order of the file."""
        matching: set[int] = set()
        for name in names:
            matching.update(self._literal.get(name.lower(), ()))
            matching.update(i for i in self._patterns if self._entries[i].matches(name))
            matching.update(self._hashed_of(name.lower()))
        return [self._entries[index] for index in sorted(matching)]

    def _hashed_of(self, name: str) -> list[int]:
        if name not in self._hashed_by_name:
            found = [i for i, hashed in self._hashed.items() if _hash_matches(hashed, name)]
            for index in found:  # a hash is of one name only
                del self._hashed[index]
            self._hashed_by_name[name] = found
        return self._hashed_by_name[name]


class KnownHosts:
    """The known-hosts files, each read once; may be used from many threads.

    Lines are parsed one by one, so that a bad line affects no other. Certificate authorities are
    not supported: a line of one that is about a machine is noted.
    """

    def __init__(self, *, on_note: Callable[[str], None]) -> None:
        self._on_note = on_note
        self._lock = threading.RLock()
        self._files: dict[str, _HostIndex] = {}
        self._sent_notes: set[str] = set()

    def key_types(self, names: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
        """Return the known key types of a machine, which it is asked for first."""
        known_types = (e.key.type for e in self._entries(names, files) if not e.marker)
        return tuple(dict.fromkeys(known_types))

    def check(self, names: Sequence[str], key: HostKey, files: Sequence[str]) -> KeyCheck:
        """Return the status of the key that a machine with these `lookup_names` shows."""
        for entry in self._entries(names, files):
            if entry.marker == "@revoked" and entry.key == key:
                return KeyCheck(KeyStatus.REVOKED, (entry,))
        for name in names:
            entries = [e for e in self._entries([name], files) if not e.marker]
            same_key = tuple(e for e in entries if e.key == key)
            if same_key:
                return KeyCheck(KeyStatus.KNOWN, same_key)
            if entries and name == names[0]:
                return KeyCheck(KeyStatus.CHANGED, tuple(entries))
        return KeyCheck(KeyStatus.UNKNOWN)

    def add(self, name: str, key: HostKey, file: str) -> None:
        """Append the key of a machine to `file`, unless another process just did; raise OSError."""
        with self._lock:
            self._index_of(file).add(Entry(file, "", name, key))
            path = Path(file)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "rb+", buffering=0) as stream:
                with contextlib.suppress(OSError):  # a home on NFS may have no locks
                    fcntl.flock(stream, fcntl.LOCK_EX)
                text = stream.read()
                if any(e.key == key and e.matches(name) for e, _ in _parse(text, file) if e):
                    return
                separator = b"" if text.endswith(b"\n") or not text else b"\n"
                stream.write(separator + format_line(name, key).encode() + b"\n")

    def _entries(self, names: Sequence[str], files: Sequence[str]) -> list[Entry]:
        matching = []
        with self._lock:
            entries = [e for file in files for e in self._index_of(file).entries_of(names)]
        for entry in entries:
            if entry.marker == "@cert-authority":
                self._note_once(f"{entry.location}: @cert-authority is not supported; skipped")
            else:
                matching.append(entry)
        return matching

    def _index_of(self, file: str) -> _HostIndex:
        if file not in self._files:
            self._files[file] = _HostIndex(self._load(file))
        return self._files[file]

    def _load(self, file: str) -> Iterable[Entry]:
        try:
            text = Path(file).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            self._note_once(f"{file}: not readable ({error.strerror}); skipped")
            return
        for entry, problem in _parse(text, file):
            if entry:
                yield entry
            else:
                self._note_once(f"{problem}; skipped")

    def _note_once(self, text: str) -> None:
        with self._lock:
            if text in self._sent_notes:
                return
            self._sent_notes.add(text)
        self._on_note(text)


def lookup_names(host: str, port: int, alias: str = "") -> tuple[str, ...]:
    """Return a machine's names in known-hosts files, as OpenSSH does, the exact one first."""
    if alias:
        return (alias,)
    return (host,) if port == SSH_PORT else (f"[{host}]:{port}", host)


def format_line(name: str, key: HostKey) -> str:
    """Return the line of a known-hosts file for a key."""
    return f"{name} {key.type} {base64.b64encode(key.blob).decode()}"


def _parse(text: bytes, file: str) -> Iterable[tuple[Entry | None, str]]:
    """Yield an entry, or None and the problem, per line that is not blank or a comment."""
    for number, raw_line in enumerate(text.splitlines(), start=1):
        fields = raw_line.decode("utf-8", "replace").split()
        if not fields or fields[0].startswith("#"):
            continue
        marker = fields.pop(0) if fields[0].startswith("@") else ""
        location = f"{file}:{number}"
        key = _parse_key(fields)
        if key is None or marker not in _MARKERS or not _HOSTS.fullmatch(fields[0]):
            yield None, f"{location}: not a line of a known-hosts file"
        else:
            yield Entry(location, marker, fields[0], key), ""


def _parse_key(fields: Sequence[str]) -> HostKey | None:
    if len(fields) < 3:  # noqa: PLR2004 - hosts, type, key
        return None
    try:
        blob = base64.b64decode(fields[2], validate=True)
        (length,) = struct.unpack_from(">I", blob)
    except (binascii.Error, ValueError, struct.error):
        return None
    inner = blob[4 : 4 + length]
    return HostKey(fields[1], blob) if inner == fields[1].encode() else None


def _salt_and_digest(field: str) -> tuple[bytes, bytes]:
    """Return both parts of a hashed name; a digest that is not base64 matches nothing."""
    _, _, salt, digest = field.split("|")
    try:
        return base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except binascii.Error:
        return b"", b""


def _hash_matches(salt_and_digest: tuple[bytes, bytes], name: str) -> bool:
    salt, digest = salt_and_digest
    return hmac.digest(salt, name.encode(), "sha1") == digest


def _matches_pattern(pattern: str, name: str) -> bool:
    if "*" not in pattern and "?" not in pattern:
        return pattern == name
    # Not fnmatch: its brackets are sets, but here they belong to "[host]:port".
    regex = re.escape(pattern).replace(r"\*", ".*").replace(r"\?", ".")
    return re.fullmatch(regex, name) is not None
