"""Reader of the note on a run, which `note_record.py` writes."""

from __future__ import annotations

from pathlib import Path

from runner.control.history.bounded_reader import Problems, read_json
from runner.control.record.file_names import NOTE_FILE

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
