"""Notes that were said: what holds for every run of a project is said once, until it changes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from runner.control.atomic_file import replace_file
from runner.control.record.file_names import SAID_FILE
from runner.control.record.run_index import RUNS_FOLDER

OF_PROGRAMS = {"--json", "--shell-completion", "-sc"}


def unsaid(subject: str, notes: Sequence[str]) -> list[str]:
    """Return those notes that were not among the last ones about this subject, and keep them all.

    They are kept in this folder's records. Where that cannot be done, they are said each time, and
    never where a program reads what is printed.
    """
    if not OF_PROGRAMS.isdisjoint(takewhile("--".__ne__, sys.argv)):
        return []
    path = Path(RUNS_FOLDER, SAID_FILE)
    said: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        said = dict(json.loads(path.read_bytes()))
    before = said.pop(subject, [])
    if before == [*notes]:
        return []
    if notes:
        said[subject] = [*notes]
    with contextlib.suppress(OSError):
        replace_file(path, [json.dumps(said).encode()])
    return [text for text in notes if not isinstance(before, list) or text not in before]
