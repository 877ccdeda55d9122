"""Pool: the code that was pushed, beside the records, for a rerun to push again.

`.objects/pool/DIGEST` is a file by its sha256, `.objects/releases/HASH` the manifest of a release,
which is written last: where it is, every content is. Contents are copies, never links to the work
tree, so that no later edit reaches them.
"""

from __future__ import annotations

import difflib
import hashlib
import io
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from runner.control.atomic_file import replace_file
from runner.core.errors import NotReady, Problem, RunnerError, reason_of
from runner.core.wire.files import Entry, Manifest, release_hash

STORE = ".objects"
RELEASE_NAME = re.compile("[0-9a-f]+")
CONTENT_MODE = 0o400
CHUNK = 256 << 10
FINISH_TIMEOUT_S = 60.0
"""How long the end of a launch waits until the code is kept: a disk may be slow, or be gone."""

FINISH_POLL_S = 0.1
MAX_TEXT = 1 << 20
"""Bytes of a file whose lines are compared."""


class PushSource(Protocol):
    """A release that can be pushed: its manifest, also encoded, and the contents of its files."""

    @property
    def manifest(self) -> Manifest:
        """The folders, files and links."""

    @property
    def encoded(self) -> bytes:
        """The manifest as bytes."""

    def read(self, file: Entry) -> Iterator[bytes]:
        """Yield a file in chunks; raise NotReady if it cannot be read, or is not the same."""


class CodePool:
    """The pool of the runs launched from one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find(self, release: str) -> StoredRelease | None:
        """Return a release, None if it is not kept here."""
        if not RELEASE_NAME.fullmatch(release):  # of a record that perhaps came from a host
            return None
        try:
            encoded = self._release_path(release).read_bytes()
            manifest = Manifest.decode(encoded)
        except (OSError, ValueError):
            return None
        return StoredRelease(self, manifest, encoded) if release_hash(encoded) == release else None

    def add(self, source: PushSource) -> None:
        """Keep a release; raise NotReady if its code has changed, OSError if it cannot be written.

        Contents that are here are not read again.
        """
        release = self._release_path(release_hash(source.encoded))
        for folder in (self.folder, release.parent, self.folder / "pool"):
            folder.mkdir(mode=0o700, exist_ok=True)
        (self.folder / ".gitignore").write_text("*\n", encoding="ascii")
        for file in source.manifest.files:
            path = self.content_path(file)
            if not path.exists() or path.stat().st_size != file.size:
                replace_file(path, source.read(file), CONTENT_MODE)
        if not release.exists():
            replace_file(release, [source.encoded], CONTENT_MODE)

    def content_path(self, file: Entry) -> Path:
        """Return where the content of a file is kept."""
        return self.folder / "pool" / file.content

    def _release_path(self, release: str) -> Path:
        return self.folder / "releases" / release


def read_verified(path: Path, file: Entry) -> Iterator[bytes]:
    """Yield a file in chunks; raise ValueError at its end if that was not the content of `file`."""
    digest = hashlib.sha256()
    remaining = file.size
    with path.open("rb", buffering=0) as stream:
        while remaining and (chunk := stream.read(min(CHUNK, remaining))):
            digest.update(chunk)
            remaining -= len(chunk)
            yield chunk
        remaining = remaining or len(stream.read(1))
    if remaining or digest.hexdigest() != file.content:
        raise ValueError("it is damaged")


@dataclass(frozen=True)
class StoredRelease:
    """A release in a pool."""

    pool: CodePool
    manifest: Manifest
    encoded: bytes

    def read(self, file: Entry) -> Iterator[bytes]:
        """Yield a file in chunks; raise NotReady if it cannot be read, or is damaged."""
        path = self.pool.content_path(file)
        try:
            yield from read_verified(path, file)
        except (OSError, ValueError) as error:
            message = f"the code of that run cannot be read from {path}: {reason_of(error)}"
            hint = f"it was {file.path}; put it back there"
            raise NotReady([Problem("rerun", message, hint)]) from error


def find_release(places: Iterable[Path], release: str) -> StoredRelease | None:
    """Return a release that is kept in one of these folders of records, None if none has it."""
    found = (CodePool(place / STORE).find(release) for place in places)
    return next(filter(None, found), None)


def difference(first: StoredRelease, second: StoredRelease, names: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a unified diff, by which `patch -p1` makes the second of the first."""
    before = {file.path: file for file in first.manifest.files}
    after = {file.path: file for file in second.manifest.files}
    for path in sorted({*before, *after}):
        old = before.get(path)
        new = after.get(path)
        if old and new and old.content == new.content:
            continue
        try:
            old_lines = _lines(first, old)
            new_lines = _lines(second, new)
        except ValueError:
            yield f"{path} differs; it is no text, or too large\n"
            continue
        old_name = f"{names[0]}/{path}\t" if old else "/dev/null"  # the tab: there may be blanks
        new_name = f"{names[1]}/{path}\t" if new else "/dev/null"
        for line in difflib.unified_diff(old_lines, new_lines, old_name, new_name):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(release: StoredRelease, file: Entry | None) -> list[str]:
    """Return the lines of a text, [] for no file; raise ValueError for what is no text."""
    if file is None:
        return []
    if file.size > MAX_TEXT:
        raise ValueError(file.path)
    return list(io.StringIO(b"".join(release.read(file)).decode()))


class CodeKeeper:
    """The background copy of a launch's code into a pool; training does not wait for it."""

    def __init__(self, pool: CodePool, source: PushSource) -> None:
        self._pool = pool
        self._source = source
        self._problem = ""
        self._thread = threading.Thread(target=self._keep, daemon=True, name="keep code")
        self._thread.start()

    def finish(self, is_interrupted: Callable[[], bool] = lambda: False) -> str:
        """Wait for its end; return why the code is not kept, "" if it is."""
        too_late_at = time.monotonic() + FINISH_TIMEOUT_S
        while self._thread.is_alive():
            if is_interrupted():
                return "it was interrupted"
            if time.monotonic() > too_late_at:
                return f"{self._pool.folder} takes longer than {FINISH_TIMEOUT_S:.0f} s"
            self._thread.join(FINISH_POLL_S)
        return self._problem

    def _keep(self) -> None:
        try:
            self._pool.add(self._source)
        except RunnerError as error:
            self._problem = error.problems[0].message
        except OSError as error:
            self._problem = f"{error.filename or self._pool.folder}: {error.strerror}"
