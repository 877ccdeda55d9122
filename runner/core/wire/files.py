"""Files that go to a host and come from it: a release's manifest, and what a run leaves.

Globs of outputs are a shell's, and `**` is any number of folders; a folder stands for all in it.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import posixpath
import re
import stat
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, Set, Tuple

from runner.core.wire.paths import EVENTS_FILE, SAMPLES_FILE

HASH_LENGTH = 16

DIGEST = re.compile("[0-9a-f]{64}")
"""A sha256 in hex, which names a content in a pool."""


def tasks_digest(files: Iterable[Tuple[str, bytes]]) -> str:
    """Return the hash of the shipped tasks: of their names and contents, in the order of names."""
    digest = hashlib.sha256()
    for name, content in sorted(files):
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()[:HASH_LENGTH]


@dataclass(frozen=True)
class Entry:
    """A file, a folder or a symbolic link of a release."""

    path: str  # with "/"
    mode: int  # its type and permissions, as `os.lstat` returns them
    size: int = 0  # of a file, in bytes
    content: str = ""  # of a file its sha256 in hex, of a link its target

    @property
    def is_file(self) -> bool:
        return stat.S_ISREG(self.mode)

    @property
    def is_folder(self) -> bool:
        return stat.S_ISDIR(self.mode)


@dataclass(frozen=True)
class Manifest:
    """All of a release but the contents of files: its entries, folders before what is in them.

    Names that are not UTF-8 are kept as `os.fsdecode` returns them.
    """

    entries: Tuple[Entry, ...] = ()

    def encode(self) -> bytes:
        """Return the manifest as bytes, the same ones for equal manifests."""
        rows = [[each.path, each.mode, each.size, each.content] for each in self.entries]
        return json.dumps(rows, separators=(",", ":")).encode("ascii")

    @staticmethod
    def decode(data: bytes) -> Manifest:
        """Return what `encode` encoded; raise ValueError also for paths outside its folder."""
        try:
            entries = tuple(Entry(*row) for row in json.loads(data))
            kinds = {"": True}  # whether each path is a folder
            for entry in entries:
                _check_entry(entry, kinds)
                kinds[entry.path] = entry.is_folder
        except (AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"no manifest of a release: {error}") from error
        return Manifest(entries)

    @property
    def files(self) -> Tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.is_file)

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


def _check_entry(entry: Entry, kinds: Dict[str, bool]) -> None:
    """Raise ValueError for what is not to be written below the entries before it."""
    path = entry.path
    if not is_below(path):
        raise ValueError(f"{path!r} is no path within a release")
    if not kinds.get(posixpath.dirname(path)):
        raise ValueError(f"the folder of {path!r} is not in the manifest")
    if path in kinds:
        raise ValueError(f"{path!r} is in the manifest twice")
    if not (entry.is_file or entry.is_folder or stat.S_ISLNK(entry.mode)):
        raise ValueError(f"{path!r} is no file, folder or link")
    if entry.is_file and not DIGEST.fullmatch(entry.content):
        raise ValueError(f"{path!r} has no digest")


def release_hash(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:HASH_LENGTH]


RECORD = "record"
LOG = "log"
SAMPLES = "samples"
OUTPUT = "output"
FILE_KINDS = (RECORD, LOG, SAMPLES, OUTPUT)

RECORD_FILES = (
    "run.json",
    "plan.json",
    "config.yaml",
    "order.json",
    EVENTS_FILE,
    "supervisor.log",
)
"""Files of the run folder on a host that are downloaded."""

APPEND_ONLY = (EVENTS_FILE, "supervisor.log")
"""Those that are only appended to, like the logs; the others are replaced."""

CHUNK = 256 << 10
"""Bytes of a log or a file that a host sends at a time, at most."""

MAX_LIST = 8 << 20
"""Bytes of the list of a run's files on one host, at most: some 80,000 files."""

MAX_INT = 1 << 62
"""Larger than any size in bytes and any time in nanoseconds."""

LOG_PATH = re.compile(
    r"attempt_([0-9]{1,6})/("
    r"(?:rank_[0-9]{1,9}|program|stacks)\.(?:out|err)|rank_[0-9]{1,9}\.metrics"
    r"|flight_[0-9]{1,9})"
)

SAMPLES_PATH = re.compile(rf"attempt_([0-9]{{1,6}})/{re.escape(SAMPLES_FILE)}")

MAX_SAMPLES = 64 << 20
"""Bytes of the samples of an attempt on a host; they grow ever more slowly."""

PATHS = {
    RECORD: re.compile("|".join(map(re.escape, RECORD_FILES))),
    LOG: LOG_PATH,
    SAMPLES: SAMPLES_PATH,
    OUTPUT: re.compile(".*", re.DOTALL),
}

GlobParts = Tuple[str, ...]
"""The parts of a pattern that are left to match; () after a full match."""

GlobState = FrozenSet[GlobParts]

ANY_DEPTH = "**"


@dataclass(frozen=True)
class RemoteFile:
    kind: str  # of `FILE_KINDS`
    path: str  # below the run folder; of an output, below the working folder of the ranks
    size: int  # in bytes
    mtime_ns: int
    mode: int  # its permissions

    def to_row(self) -> List[Any]:
        return [self.kind, self.path, self.size, self.mtime_ns, self.mode]

    @staticmethod
    def from_row(row: Any) -> RemoteFile:
        """Raise ValueError for a row that is none, or leads out of its folder."""
        try:
            kind, path, size, mtime_ns, mode = row
            file = RemoteFile(kind, path, int(size), int(mtime_ns), int(mode) & 0o777)
        except (TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"no file in an inventory: {error}") from error
        validate(kind, path)
        max_size = MAX_SAMPLES if kind == SAMPLES else MAX_INT
        if not 0 <= file.size < max_size or not -MAX_INT < file.mtime_ns < MAX_INT:
            raise ValueError(f"{path!r} has no such size or time")
        file.path.encode("utf-8", "surrogateescape")
        return file


def validate(kind: Any, path: Any) -> None:
    """Raise ValueError for a path that must not be downloaded as that kind."""
    known = isinstance(kind, str) and isinstance(path, str) and kind in PATHS
    if not (known and is_below(path) and PATHS[kind].fullmatch(path)):
        raise ValueError(f"{path!r} is no {kind} of a run")


def is_below(path: str) -> bool:
    return "\0" not in path and not any(part in ("", ".", "..") for part in path.split("/"))


def parse_log_path(path: str) -> Tuple[int, str]:
    """Return the attempt and the file name of a log; raise ValueError for another path."""
    match = LOG_PATH.fullmatch(path)
    if match is None:
        raise ValueError(f"{path!r} is no log of a run")
    return int(match[1]), match[2]


def glob_problem(pattern: str) -> str:
    """Return why a pattern is not legal, "" if it is."""
    if not pattern.strip():
        return "is empty"
    if pattern.startswith(("/", "~")):
        return "is absolute"
    if ".." in pattern.split("/"):
        return "leads out of the working folder"
    return ""


def compile_globs(patterns: Iterable[str]) -> GlobState:
    """Return the state that matches the patterns at the top of the working folder."""
    return frozenset(_parts(pattern) for pattern in patterns)


def step_globs(state: GlobState, name: str) -> GlobState:
    """Return the state below `name`; if () is in it, `name` matches."""
    next_state: Set[GlobParts] = set()
    for parts in state:
        _match_part(parts, name, next_state)
    return frozenset(next_state)


def matches_below(state: GlobState) -> bool:
    """Return whether a pattern may match something further down."""
    return any(parts and parts[0] != ANY_DEPTH for parts in state)


def _parts(pattern: str) -> GlobParts:
    parts: List[str] = []
    for part in pattern.split("/"):
        if part not in ("", ".") and not (part == ANY_DEPTH and parts[-1:] == [ANY_DEPTH]):
            parts.append(part)
    return tuple(parts[:-1] if parts[-1:] == [ANY_DEPTH] else parts)


def _match_part(parts: GlobParts, name: str, next_state: Set[GlobParts]) -> None:
    if not parts:
        next_state.add(parts)
        return
    hidden = name.startswith(".")
    if parts[0] == ANY_DEPTH:
        _match_part(parts[1:], name, next_state)
        if not hidden:
            next_state.add(parts)
    elif name == parts[0] or (
        fnmatch.fnmatchcase(name, parts[0]) and (not hidden or parts[0].startswith("."))
    ):
        next_state.add(parts[1:])
