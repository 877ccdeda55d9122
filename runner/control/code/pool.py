"""Pool: the code that was pushed, beside the records, for a rerun to push again.

`pool/DIGEST` is a copy of a file, `releases/HASH` a manifest: where it is, every content is.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.control.atomic_file import replace_file
from runner.control.code.worktree import IGNORE_FILE
from runner.core.errors import NotReady, Problem, reason_of
from runner.core.wire.files import Entry, Manifest, release_hash

STORE = ".objects"
RELEASE_NAME = re.compile("[0-9a-f]+")
CONTENT_MODE = 0o400
CHUNK = 256 << 10


@dataclass
class Release:
    """A project as it is pushed; a content is read from the pool, else from the work tree."""

    manifest: Manifest
    encoded: bytes  # the manifest
    root: Path | None = None  # of the work tree; None for a release that is in the pool
    pool: CodePool | None = None

    @property
    def name(self) -> str:
        return release_hash(self.encoded)

    def read(self, file: Entry) -> Iterator[bytes]:
        """Yield a file in chunks; raise NotReady if it cannot be read, or is not the same."""
        path = Path(self.root or "", file.path)
        if self.pool and (self.root is None or self.pool.has(file)):
            path = self.pool.content_path(file)
        digest = hashlib.sha256()
        remaining = file.size
        reason = ""
        try:
            with path.open("rb", buffering=0) as stream:
                while remaining and (chunk := stream.read(min(CHUNK, remaining))):
                    digest.update(chunk)
                    remaining -= len(chunk)
                    yield chunk
                remaining = remaining or len(stream.read(1))
        except OSError as error:
            reason = reason_of(error)
        if not reason and not remaining and digest.hexdigest() == file.content:
            return
        if path.name != file.content:
            raise file_error(file.path, reason)
        message = f"the code of that run cannot be read from {path}: {reason or 'it is damaged'}"
        hint = f"it was {file.path}; put it back there"
        raise NotReady([Problem("rerun", message, hint)])


def file_error(path: str, reason: str = "") -> NotReady:
    """Return why a file of the work tree is not pushed: it cannot be read, or has changed."""
    message = f"{path} cannot be read: {reason}" if reason else f"{path} changed while it was read"
    remedy = "fix that" if reason else "start again"
    hint = f"{remedy}, or leave it out: add /{path} to {IGNORE_FILE}"
    return NotReady([Problem("deploy", message, hint)])


@dataclass(frozen=True)
class CodePool:
    folder: Path

    def find(self, release: str) -> Release | None:
        """Return a release by its name, None if it is not kept here."""
        if not RELEASE_NAME.fullmatch(release):  # of a record that perhaps came from a host
            return None
        try:
            encoded = (self.folder / "releases" / release).read_bytes()
            found = Release(Manifest.decode(encoded), encoded, pool=self)
        except (OSError, ValueError):
            return None
        return found if found.name == release else None

    def add(self, release: Release) -> None:
        """Keep a release; raise NotReady if its code has changed, or OSError."""
        manifest = self.folder / "releases" / release.name
        for folder in (self.folder, manifest.parent, self.folder / "pool"):
            folder.mkdir(mode=0o700, exist_ok=True)
        (self.folder / ".gitignore").write_text("*\n", encoding="ascii")
        for file in release.manifest.files:
            if not self.has(file):
                replace_file(self.content_path(file), release.read(file), CONTENT_MODE)
        if not manifest.exists():
            replace_file(manifest, [release.encoded], CONTENT_MODE)

    def has(self, file: Entry) -> bool:
        path = self.content_path(file)
        return path.exists() and path.stat().st_size == file.size

    def content_path(self, file: Entry) -> Path:
        return self.folder / "pool" / file.content


def find_release(places: Iterable[Path], release: str) -> Release | None:
    found = (CodePool(place / STORE).find(release) for place in places)
    return next(filter(None, found), None)
