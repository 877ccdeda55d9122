"""Shipped tasks: the programs of `runner/tasks`, as sent to hosts that lack them."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import runner

_PACKAGE = Path(runner.__file__).parent


@dataclass(frozen=True)
class ShippedTasks:
    """The shipped tasks: their content hash, the names and sizes of the files, the bytes."""

    hash: str
    files: tuple[tuple[str, int], ...]
    payload: bytes

    def header(self) -> dict[str, Any]:
        """Return the fields of a `start` request that describe the payload."""
        return {"hash": self.hash, "files": [list(file) for file in self.files]}


@functools.cache
def shipped_tasks() -> ShippedTasks:
    """Return every file of `runner/tasks`; hosts need no other package of ours to run them."""
    paths = [p for p in sorted((_PACKAGE / "tasks").iterdir()) if p.is_file()]
    contents = [path.read_bytes() for path in paths]
    digest = hashlib.sha256()
    for path, content in zip(paths, contents, strict=True):
        digest.update(f"{path.name}\0{len(content)}\0".encode() + content)
    files = tuple((p.name, len(c)) for p, c in zip(paths, contents, strict=True))
    return ShippedTasks(digest.hexdigest()[:16], files, b"".join(contents))
