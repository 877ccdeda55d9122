"""Named runs: the records on this machine that words of a command line mean."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from runner.control.history.files import Problems, read_json
from runner.control.record import run_index
from runner.control.record.file_names import CONFIG_FILE, CONTACT_FILE, PLAN_FILE, SWEEP_FILE
from runner.core.errors import ConfigError, Problem
from runner.core.protocol.paths import is_run_id
from runner.core.shell import expand_home, quote, this_program
from runner.core.text import join_some

SUBJECT = "RUN"

_SWEEP_ID = re.compile(r"^[0-9]{4}-[0-9]{4}-sweep-")


def named_records(words: Sequence[str]) -> list[Path]:
    """Return the records that words mean, each once; raise ConfigError for one that means none.

    A word is a run id or its unique beginning, `latest`, the folder of a record, or the id or the
    folder of a sweep, which means all its runs.
    """
    found = [folder.absolute() for word in words for folder in _records_of(word)]
    return list(dict.fromkeys(found))


def last_records(count: int) -> list[Path]:
    """Return the last runs launched from this folder, the oldest first, or raise ConfigError."""
    folders = list(itertools.islice(run_index.launched_here(), count))
    if not folders:
        message = "no run was launched from this folder"
        raise ConfigError(
            [Problem(SUBJECT, message, "name runs by their ids, or by their folders")]
        )
    return folders[::-1]


def _records_of(word: str) -> list[Path]:
    if "/" in word or word.startswith((".", "~")):
        return _records_in(Path(expand_home(word)), word)
    if word == run_index.LATEST:
        folder = run_index.record_folder(word)
        if folder is None:
            raise _unknown("no run was launched from this folder", "name a run by its id")
        return [folder]
    if not is_run_id(word):
        hint = "a run id, its beginning, latest, a folder, or a sweep's id is meant"
        raise _unknown(f"{word!r} is no run id", hint)
    exact = run_index.record_folder(word)
    if exact:
        return [exact]
    records = run_index.records()
    sweeps = _sweeps(word, records)
    if word in sweeps:
        return _swept(sweeps[word])
    found = _only_beginning(word, records, sweeps)
    return _swept(found) if found in sweeps.values() else [found]


def _only_beginning(word: str, records: dict[Path, str], sweeps: dict[str, Path]) -> Path:
    """Return the folder of the only run or sweep whose id begins so."""
    runs = {name: folder for folder, name in records.items() if name.startswith(word)}
    found = {**sweeps, **runs}
    if not found:
        hint = f"where hosts have it: {this_program()} pull --cluster NAME --run {word}"
        if _SWEEP_ID.search(word):
            hint = "a sweep is known where it was launched: ask there, or name its folder"
        raise _unknown(f"{word} is not on record on this machine", hint)
    if len(found) > 1:
        raise _unknown(f"{word} is no run; so begin {join_some([*found])}", "type more of it")
    return next(iter(found.values()))


def _records_in(folder: Path, word: str) -> list[Path]:
    """Return the record in a folder, or those of the sweep there."""
    if any((folder / name).is_file() for name in (CONTACT_FILE, PLAN_FILE, CONFIG_FILE)):
        return [folder.resolve()]
    if (folder / SWEEP_FILE).is_file():
        return _swept(folder)
    why = "has no record of a run" if folder.is_dir() else "is no folder"
    raise _unknown(f"{quote(word)} {why}", "such as runs/latest")


def _sweeps(word: str, records: dict[Path, str]) -> dict[str, Path]:
    """Return the folders of sweeps whose id begins so: they are beside the records of their runs.

    The records of runs have a file of that name, too.
    """
    places = dict.fromkeys([Path(run_index.RUNS_FOLDER).absolute(), *(f.parent for f in records)])
    files = (file for place in places for file in place.glob(f"{word}*/{SWEEP_FILE}"))
    found = {file.parent.name: file.parent for file in files}
    return {name: folder for name, folder in found.items() if folder.resolve() not in records}


def _swept(folder: Path) -> list[Path]:
    """Return the records of the runs of a sweep that were launched."""
    problems = Problems()
    data = read_json(folder / SWEEP_FILE, problems)
    runs = data.get("runs") if isinstance(data, dict) else None
    listed = runs if isinstance(runs, list) else []
    ids = [str(run.get("run_id")) for run in listed if isinstance(run, dict)]
    named = (folder.parent / run_id for run_id in ids if is_run_id(run_id))
    found = [place.resolve() for place in named if (place / CONFIG_FILE).is_file()]
    if not found:
        why = "; ".join(problems.lines) or "none of its runs is on record"
        raise _unknown(f"{folder.name} is a sweep: {why}", f"look at {quote(str(folder))}")
    return found


def _unknown(message: str, hint: str) -> ConfigError:
    return ConfigError([Problem(SUBJECT, message, hint)])
