"""Atomic replacement of a file: it is the old one or the new one at any time."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(path: Path, data: bytes) -> None:
    """Write a file for its owner alone, whole or not at all; raise OSError."""
    temp_path = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with os.fdopen(os.open(temp_path, WRITE_FLAGS, 0o600), "wb") as file:
            file.write(data)
        temp_path.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        raise
