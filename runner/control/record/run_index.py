"""Run index: where on this machine the record of each run is, from whatever folder it is asked for.

A record is in `runs/RUN_ID` of the folder it was launched from, or where `run_dir` put it. An index
of links, one per run id, belongs to the user; the link `runs/latest` belongs to the folder.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from runner.control.record.launch_record import (
    CONFIG_FILE,
    LATEST,
    PLAN_FILE,
    RESULT_FILE,
    SWEEP_FILE,
    read_launch,
)
from runner.core.errors import ConfigError, Problem
from runner.core.launch_request import LaunchRequest
from runner.core.shell import expand_home, quote, this_program
from runner.core.wire.codec import parse_json
from runner.core.wire.paths import is_run_id
from runner.core.wire.run_info import RunInfo

RUNS_FOLDER = "runs"  # where the records of a folder are, below it
IGNORE_FILE = ".gitignore"


def record_folder(name: str) -> Path | None:
    """Return the record of a run by its id, or of this folder's `latest`; None for none."""
    return next(_named(name), None)


def record_file(folder: Path) -> Path | None:
    files = (folder / name for name in (CONFIG_FILE, PLAN_FILE))
    return next((file for file in files if file.is_file()), None)


def launch_of(run: RunInfo) -> LaunchRequest | None:
    """Return what is on record of a run that hosts have; another run with its id is not that."""
    for folder in _named(run.run_id):
        with contextlib.suppress(ConfigError):
            launch = read_launch(folder)
            if launch.launched_at == run.launched_at:
                return launch
    return None


def launched_from(run: RunInfo) -> str:
    """Return the folder that a run was launched from; "" without a launch on record here."""
    launch = launch_of(run)
    return launch.launched_from if launch else ""


def other_folder(run: RunInfo) -> str:
    """Return the folder that a run was launched from if that is another than this, else ""."""
    folder = launched_from(run)
    return "" if Path(folder, RUNS_FOLDER) in _here() else folder


def place_of(run: RunInfo, runs: Path) -> Path:
    """Return where the record of a run is, or would be below `runs`."""
    usual = runs / run.run_id
    if launch := launch_of(run):
        return launch.run_dir
    try:
        is_free = read_launch(usual).launched_at == run.launched_at
    except ConfigError:  # nothing is there, or the rest of a damaged record
        is_free = True
    # Apart from another run with its id.
    return usual if is_free else runs / f"{run.run_id}-{run.launched_at:.0f}"


def records(places: Sequence[Path] | None = None) -> dict[Path, str]:
    """Return the names of the records, the newest first: in the index and here, or in `places`."""
    names: dict[Path, str] = {}
    for place in [_index(), *_here()] if places is None else places:
        for entry in place.glob("[!.]*"):
            folder = entry.resolve()
            names.setdefault(folder, folder.name if entry.name == LATEST else entry.name)
    files = [file for file in map(record_file, names) if file]
    newest_first = sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)
    return {file.parent: names[file.parent] for file in newest_first}


def launched_here() -> list[Path]:
    """Return the records in `runs` of this folder, and those to which links lead, newest first."""
    return [*records(_here())]


def has_unproven_end(folder: Path) -> bool:
    """Return whether the result on record names hosts that have not proven that nothing is left."""
    try:
        return bool(json.loads((folder / RESULT_FILE).read_bytes())["unverified"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


def unfinished() -> Iterator[Path]:
    """Yield the records launched here without an end, or with an unproven one; no damaged ones."""
    for folder in launched_here():
        if not (folder / RESULT_FILE).exists() or has_unproven_end(folder):
            with contextlib.suppress(ConfigError):
                read_launch(folder)
                yield folder


def code_places(folder: Path) -> tuple[Path, ...]:
    """Return where the code of a run on record may be: where it was launched, beside it, here."""
    places = [folder.parent, *_here()]
    with contextlib.suppress(ConfigError):
        if launched_from := read_launch(folder).launched_from:
            places.insert(0, Path(launched_from, RUNS_FOLDER))
    return tuple(dict.fromkeys(places))


def named_records(words: Sequence[str]) -> list[Path]:
    """Return the records that words mean, each once; raise ConfigError for one that means none."""
    found: list[Path] = []
    for word in words:
        records = records_of_word(word)
        if not records and word == LATEST:
            raise _unknown("no run was launched from this folder", "name a run by its id")
        if not records:
            hint = f"where hosts have it: {this_program()} pull --cluster NAME --run {word}"
            if "-sweep-" in word:
                hint = "a sweep is known where it was launched: ask there, or name its folder"
            raise _unknown(f"{word} is not on record on this machine", hint)
        found += [record.absolute() for record in records]
    return list(dict.fromkeys(found))


def records_of_word(word: str) -> list[Path]:
    """Return the records that a word means, [] for an id that none here has; or raise ConfigError.

    A word is a run id, `latest`, the folder of a record, or the id or the folder of a sweep, which
    means all its runs.
    """
    if "/" in word or word.startswith((".", "~")):
        return _records_in(Path(expand_home(word)))
    exact = record_folder(word)
    if exact or word == LATEST:
        return [exact] if exact else []
    if not is_run_id(word):
        hint = "a run id, latest, a folder, or a sweep's id is meant"
        raise _unknown(f"{word!r} is no run id", hint)
    # A sweep is beside the records of its runs.
    for place in dict.fromkeys([Path(RUNS_FOLDER), *(folder.parent for folder in records())]):
        if (place / word / SWEEP_FILE).is_file():
            return _records_in(place / word)
    return []


def _records_in(folder: Path) -> list[Path]:
    """Return the record in a folder, or those of the runs of a sweep there that were launched."""
    if record_file(folder):
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
    return ConfigError([Problem("--run", message, hint)])


def register(run_id: str, folder: Path) -> None:
    """Have the record of a run found by its id, as far as the user's disk allows."""
    with contextlib.suppress(OSError):
        _index().mkdir(mode=0o700, parents=True, exist_ok=True)
        _link(_index() / run_id, folder)


def set_latest(folder: Path) -> None:
    """Point `runs/latest` of the working folder to a record, as far as the folder allows.

    A record elsewhere gets a link of its own there, too.
    """
    with contextlib.suppress(OSError, ConfigError):
        runs = Path.cwd() / RUNS_FOLDER
        if not runs.exists():
            runs.mkdir(mode=0o700)
            ignore_folder(runs)
        _link(runs / LATEST, Path(folder.name) if folder.parent == runs else folder)
        if folder.parent != runs:
            _link(runs / read_launch(folder).spec.run_id, folder)


def ignore_folder(folder: Path) -> None:
    """Keep a folder out of git and of snapshots: records are not code."""
    (folder / IGNORE_FILE).write_text("*\n", encoding="ascii")


def _named(name: str) -> Iterator[Path]:
    for place in _here() if name == LATEST else (*_here(), _index()):
        if record_file(place / name):
            yield (place / name).resolve()


def _here() -> list[Path]:
    """Return the folder of records below the working folder; [] if that was removed."""
    with contextlib.suppress(OSError):
        return [Path.cwd() / RUNS_FOLDER]
    return []


def _link(path: Path, target: Path) -> None:
    """Make a link, also in place of an old one; never in place of a file or a folder."""
    if path.is_symlink() or not path.exists():
        temp_path = path.with_name(f".{path.name}.{os.getpid()}")
        temp_path.symlink_to(target)
        temp_path.replace(path)


def _index() -> Path:
    return state_folder() / RUNS_FOLDER


def state_folder() -> Path:
    """Return the folder in which the user's machine remembers runs and notes."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    state = base if base.is_absolute() else Path(expand_home("~/.local/state"))
    return state / "runner"
