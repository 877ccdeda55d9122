"""Garbage collection of the code that is kept beside the records of runs on this machine."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.control.code.code_store import STORE, CodeStore
from runner.core.codec import decode

UNREFERENCED_AGE_S = 3600.0
"""How long code is kept that no run on record has: one may be about to start."""


@dataclass(frozen=True)
class PrunedCode:
    """What was removed from one store, or would be."""

    releases: tuple[str, ...]
    size: int  # bytes
    runs: tuple[str, ...]  # on record, whose code it was


@dataclass(frozen=True)
class _RecordedRelease:
    run_id: str
    release: str = ""


def prune_code(runs: Path, older_than_s: float | None, *, dry_run: bool) -> PrunedCode:
    """Remove the code that no run in a folder of runs has, or only older ones if an age is given.

    Raises:
        OSError: The store cannot be read or written.
    """
    planned_at = dict(_recorded_releases(runs))
    oldest = 0.0 if older_than_s is None else time.time() - older_than_s
    keep = {planned.release for planned, wall in planned_at.items() if wall > oldest}
    min_age_s = UNREFERENCED_AGE_S if older_than_s is None else older_than_s
    releases, size = CodeStore(runs / STORE).prune(keep, min_age_s, dry_run=dry_run)
    of_runs = sorted(planned.run_id for planned in planned_at if planned.release in releases)
    return PrunedCode(releases, size, tuple(of_runs))


def _recorded_releases(runs: Path) -> Iterator[tuple[_RecordedRelease, float]]:
    """Yield the release of every run on record, and when it was planned (since 1970)."""
    for file in runs.glob("*/plan.json"):
        with contextlib.suppress(OSError, ValueError):
            planned = decode(_RecordedRelease, json.loads(file.read_bytes()))
            yield planned, file.stat().st_mtime
