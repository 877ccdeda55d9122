"""Report file: the page of runs on disk, written whole or not at all, for its owner alone."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from runner.control.atomic_file import replace_file
from runner.control.record.run_index import RUNS_FOLDER
from runner.core.errors import ConfigError, NotReady, Problem

REPORT_FILE = "report.html"
MAX_NAMED = 3
"""Beyond so many runs, the name of their report has a hash of their ids."""


def report_path(records: Sequence[Path], run_ids: Sequence[str]) -> Path:
    """Return where the report of these runs goes: to the record of one, or beside several."""
    if len(records) == 1:
        return records[0] / REPORT_FILE
    name = "-".join(run_ids)
    if len(run_ids) > MAX_NAMED:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        name = f"{len(run_ids)}-runs-{digest}"
    here = Path.cwd() / RUNS_FOLDER
    return (here if here.is_dir() else records[0].parent) / f"report-{name}.html"


def write_report(path: Path, page: str, *, is_named: bool) -> int:
    """Write a page; return its size in bytes.

    Raises:
        ConfigError: It cannot be written where the user named a file.
        NotReady: It cannot be written in the record.
    """
    data = page.encode()
    try:
        if path.exists() and not path.is_file():
            raise OSError(None, "it is no file")
        replace_file(path, [data])
    except OSError as error:
        message = f"cannot write {path}: {error.strerror}"
        if is_named:
            raise ConfigError([Problem("--out", message)]) from error
        hint = "--out FILE names another place"
        raise NotReady([Problem("report", message, hint)]) from error
    return len(data)
