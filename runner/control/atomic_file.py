"""Atomic replacement of a file: it is the old one or the new one at any time."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable
from pathlib import Path

WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def replace_file(path: Path, chunks: Iterable[bytes], mode: int = 0o600) -> None:
    """Write a file whole or not at all, also where a power cut follows; raise OSError."""
    temp_path = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.new")
    try:
        with os.fdopen(os.open(temp_path, WRITE_FLAGS, 0o600), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temp_path.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temp_path.unlink()
        raise
