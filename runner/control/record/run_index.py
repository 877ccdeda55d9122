"""Run index: where on this machine the record of each run is, from whatever folder it is asked for.

A record is in `runs/RUN_ID` of the folder it was launched from, or where `run_dir` put it. An index
of links, one per run id, belongs to the user; the link `runs/latest` belongs to the folder.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from runner.control.record.contact_file import CONTACT_FILE

RUNS_FOLDER = "runs"
"""Where the records of a folder are, below it."""

LATEST = "latest"
"""The name of the link to the last run launched from a folder."""


def record_folder(name: str) -> Path | None:
    """Return the record of a run by its id, or of this folder's `latest`; None for none."""
    places = [Path.cwd() / RUNS_FOLDER]
    if name != LATEST:
        places.append(_index())
    for place in places:
        if (place / name / CONTACT_FILE).is_file():
            return (place / name).resolve()
    return None


def unfinished() -> list[Path]:
    """Return the records of this folder's runs whose end is not on record, the newest first."""
    runs = Path.cwd() / RUNS_FOLDER
    files = {path.resolve() for path in runs.glob(f"*/{CONTACT_FILE}")}
    pending = [path for path in files if not path.with_name("result.json").exists()]
    newest_first = sorted(pending, key=lambda path: path.stat().st_mtime, reverse=True)
    return [path.parent for path in newest_first]


def register(run_id: str, folder: Path) -> None:
    """Have the record of a run found by its id, as far as the user's disk allows."""
    with contextlib.suppress(OSError):
        _index().mkdir(mode=0o700, parents=True, exist_ok=True)
        _link(_index() / run_id, folder)


def set_latest(folder: Path) -> None:
    """Point `runs/latest` of the working folder to a record, as far as the folder allows."""
    runs = Path.cwd() / RUNS_FOLDER
    with contextlib.suppress(OSError):
        if not runs.exists():
            runs.mkdir(mode=0o700)
            ignore_folder(runs)
        _link(runs / LATEST, Path(folder.name) if folder.parent == runs else folder)


def ignore_folder(folder: Path) -> Path:
    """Keep a folder out of git and of snapshots: records are not code. Return the file for it."""
    path = folder / ".gitignore"
    path.write_text("*\n", encoding="ascii")
    return path


def _link(path: Path, target: Path) -> None:
    """Make a link, also in place of an old one; never in place of a file or a folder."""
    if path.is_symlink() or not path.exists():
        temp_path = path.with_name(f".{path.name}.{os.getpid()}")
        temp_path.symlink_to(target)
        temp_path.replace(path)


def _index() -> Path:
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = base if base.is_absolute() else Path("~/.local/state").expanduser()
    return state / "runner" / RUNS_FOLDER
