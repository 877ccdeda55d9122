"""Note file: `note.json`, what the user has to say of a run."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from runner.control.history.record_files import Problems, read_json
from runner.control.record.files import replace_file

NOTE_FILE = "note.json"
VERSION = 1
MAX_NOTE = 2000  # characters


def read_note(folder: Path, problems: Problems | None = None) -> str:
    """Return the note of a run, "" for none."""
    problems = Problems() if problems is None else problems
    data = read_json(folder / NOTE_FILE, problems, optional=True)
    if data is None:
        return ""
    text = data.get("text") if isinstance(data, dict) else None
    if not isinstance(text, str):
        problems.add(NOTE_FILE, "it has no text")
        return ""
    return text[:MAX_NOTE]


def write_note(folder: Path, text: str) -> None:
    """Replace the note of a run, or remove it for ""; raise OSError.

    Nobody else writes this file, so that it needs no lock: the run may be on.
    """
    path = folder / NOTE_FILE
    if not text:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return
    content = {"v": VERSION, "text": text, "time": round(time.time(), 3)}
    replace_file(path, f"{json.dumps(content)}\n".encode())
