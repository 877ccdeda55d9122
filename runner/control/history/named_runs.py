"""Named runs: the records on this machine that words of a command line mean."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from runner.control.record import run_index
from runner.control.record.file_names import (
    CONFIG_FILE,
    LATEST,
    SWEEP_FILE,
)
from runner.core.codec import parse_json
from runner.core.errors import ConfigError, Problem
from runner.core.protocol.paths import is_run_id
from runner.core.shell import expand_home, quote, this_program
from runner.core.text import join_some

SUBJECT = "RUN"


def named_records(words: Sequence[str]) -> list[Path]:
    """Return the records that words mean, each once; raise ConfigError for one that means none.

    A word is a run id or its unique beginning, `latest`, the folder of a record, or the id or the
    folder of a sweep, which means all its runs.
    """
    found = [record.absolute() for word in words for record in _records_of(word)]
    return list(dict.fromkeys(found))


def _records_of(word: str) -> list[Path]:
    if "/" in word or word.startswith((".", "~")):
        return _records_in(Path(expand_home(word)))
    if exact := run_index.record_folder(word):
        return [exact]
    if word == LATEST:
        raise _unknown("no run was launched from this folder", "name a run by its id")
    if not is_run_id(word):
        hint = "a run id, its beginning, latest, a folder, or a sweep's id is meant"
        raise _unknown(f"{word!r} is no run id", hint)
    records = run_index.records()
    found = {name: folder for folder, name in records.items() if name.startswith(word)}
    places = {Path(run_index.RUNS_FOLDER).resolve(), *(folder.parent for folder in records)}
    for file in (file for place in places for file in place.glob(f"{word}*/{SWEEP_FILE}")):
        folder = file.parent.resolve()
        if folder not in records:  # a sweep: it is beside the records of its runs
            found[folder.name] = folder
    if word in found or len(found) == 1:
        return _records_in(found.get(word) or next(iter(found.values())))
    if found:
        raise _unknown(f"{word} is no run; so begin {join_some([*found])}", "type more of it")
    hint = f"where hosts have it: {this_program()} pull --cluster NAME --run {word}"
    if "-sweep-" in word:
        hint = "a sweep is known where it was launched: ask there, or name its folder"
    raise _unknown(f"{word} is not on record on this machine", hint)


def _records_in(folder: Path) -> list[Path]:
    """Return the record in a folder, or those of the runs of a sweep there that were launched."""
    if run_index.record_file(folder):
        return [folder.resolve()]
    path = quote(str(folder))
    if not (folder / SWEEP_FILE).is_file():
        why = "has no record of a run" if folder.is_dir() else "is no folder"
        raise _unknown(f"{path} {why}", "such as runs/latest")
    try:
        runs = parse_json((folder / SWEEP_FILE).read_bytes())["runs"]
        ids = [run["run_id"] for run in runs]
    except (OSError, ValueError, LookupError, TypeError):
        ids = []
    named = [folder.parent / run_id for run_id in ids if is_run_id(run_id)]
    found = [record.resolve() for record in named if (record / CONFIG_FILE).is_file()]
    if not found:
        message = f"{folder.name} is a sweep, and none of its runs is on record"
        raise _unknown(message, f"look at {path}")
    return found


def _unknown(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(SUBJECT, message, hint)])
