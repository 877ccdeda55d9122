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
from runner.control.record.run_index import state_folder

OF_PROGRAMS = {"--json", "--shell-completion", "-sc"}
SAID_FILE = "said.json"
MAX_FOLDERS = 100


def unsaid(subject: str, notes: Sequence[str]) -> list[str]:
    """Return those notes that were not among the last ones about this subject, and keep them all.

    They are kept by the working folder. Where that cannot be done, they are said each time, and
    never where a program reads what is printed.
    """
    if not OF_PROGRAMS.isdisjoint(takewhile("--".__ne__, sys.argv)):
        return []
    path = state_folder() / SAID_FILE
    by_folder: dict[str, Any] = {}
    said: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, TypeError, RecursionError):
        by_folder = dict(json.loads(path.read_bytes()))
        said = dict(by_folder.pop(str(Path.cwd()), {}))
    before = said.pop(subject, [])
    if before == [*notes]:
        return []
    if notes:
        said[subject] = [*notes]
    with contextlib.suppress(OSError):
        kept = dict([*by_folder.items(), (str(Path.cwd()), said)][-MAX_FOLDERS:])
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, [json.dumps(kept).encode()])
    return [text for text in notes if not isinstance(before, list) or text not in before]
