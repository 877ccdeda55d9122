"""Garbage collection of the code that is kept for the runs launched from a folder."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from runner.control.code.code_store import STORE, CodeStore
from runner.control.record import run_index
from runner.control.record.file_names import PLAN_FILE
from runner.control.record.run_store import RunStore
from runner.core.codec import decode
from runner.core.errors import NotReady, Problem

UNREFERENCED_AGE_S = 3600.0
"""How long code is kept that no run on record has: one may be about to start."""


@dataclass(frozen=True)
class PrunedCode:
    """What was removed from one store, or would be."""

    releases: tuple[str, ...]
    size: int  # bytes
    runs: tuple[str, ...]  # on record, whose code it was


@dataclass(frozen=True)
class RecordedRelease:
    """The part of a recorded plan that matters here."""

    run_id: str
    release: str = ""


def prune_code(runs: Path, older_than_s: float | None, *, dry_run: bool) -> PrunedCode:
    """Remove what no run launched from this folder has, or only older ones if an age is given.

    Runs whose end is not on record keep their code: they may be on.

    Raises:
        NotReady: A plan on record cannot be read.
        OSError: The store cannot be read or written.
    """
    oldest = 0.0 if older_than_s is None else time.time() - older_than_s
    planned_by: list[RecordedRelease] = []
    keep: set[str] = set()
    for file in (folder / PLAN_FILE for folder in run_index.launched_here()):
        with contextlib.suppress(FileNotFoundError):  # its launch has not come so far
            planned, planned_at = _read_release(file), file.stat().st_mtime
            planned_by.append(planned)
            if planned_at > oldest or not RunStore(file.parent).has_result:
                keep.add(planned.release)
    min_age_s = UNREFERENCED_AGE_S if older_than_s is None else older_than_s
    releases, size = CodeStore(runs / STORE).prune(keep, min_age_s, dry_run=dry_run)
    of_runs = sorted(planned.run_id for planned in planned_by if planned.release in releases)
    return PrunedCode(releases, size, tuple(of_runs))


def _read_release(file: Path) -> RecordedRelease:
    try:
        return decode(RecordedRelease, json.loads(file.read_bytes()))
    except ValueError as error:
        message = f"cannot be read, so nobody knows whose code it names: {error}"
        hint = "remove the record of that run, or put its plan.json back; no code was removed"
        raise NotReady([Problem(str(file), message, hint)]) from error
