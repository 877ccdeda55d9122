"""Settings and fixtures of the fast tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Few examples, no clock, no database: fast, and the same load on every machine.
settings.register_profile(
    "fast",
    max_examples=20,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("fast")


@pytest.fixture
def synced_before_rename(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], bool]:
    """Whether all of a file was on the disk while it still had another name."""
    synced: dict[int, tuple[int, str]] = {}
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        status = os.fstat(descriptor)
        synced[status.st_ino] = (
            status.st_size,
            str(Path(f"/proc/self/fd/{descriptor}").readlink()),
        )

    def is_synced(path: Path) -> bool:
        status = path.stat()
        size, name = synced.get(status.st_ino, (-1, ""))
        return size == status.st_size and name != str(path)

    monkeypatch.setattr(os, "fsync", record)
    return is_synced
