"""Note record: `note.json`, what the user has to say of a run."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path

from runner.control.record.atomic_file import replace_file
from runner.control.record.file_names import NOTE_FILE

VERSION = 1


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
