"""The verb `compare`: what differs between runs, and what came of them."""

from __future__ import annotations

import difflib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from runner.cli.verb import json_option, runs_option, verb
from runner.core.errors import ConfigError, NotReady, Problem
from runner.core.model.release import File
from runner.core.text import join_some
from runner.ui.output import note, note_incomplete, show

LAST = 10
MAX_DAMAGED = 3
MAX_TEXT = 1 << 20
"""Bytes of a file whose lines are compared."""


@verb(
    "compare",
    examples={"compare": "the last 10 runs", "compare --sort -loss": "by a column, reversed"},
)
@runs_option()
@click.option(
    "--sort", default="", metavar="loss", help="any column or key; -COLUMN for the most first"
)
@click.option("--code", is_flag=True, help="print the difference between the code of two runs")
@click.option("--csv", is_flag=True, help="print CSV, with every key that differs")
@json_option
def compare(run: tuple[str, ...], sort: str, code: bool, csv: bool, json_: bool) -> int:
    """Print what differs between runs on record, and what came of them.

    Without a RUN, these are the last 10 runs launched from this folder.
    """
    from runner.control.history.named_runs import last_records, named_records
    from runner.control.history.run_reader import METRICS, read_run
    from runner.ui import comparison
    from runner.ui.layout import terminal_width

    given = [name for name, is_on in (("--code", code), ("--csv", csv), ("--json", json_)) if is_on]
    if len(given) > 1:
        message = f"goes not together with {given[1]}: both say what is printed"
        raise ConfigError([Problem(given[0], message, "leave one of them out")])
    folders = named_records(run) if run else last_records(2 if code else LAST)
    if code:
        if len(folders) != 2:  # noqa: PLR2004 (a difference)
            message = f"compares two runs, and {len(folders)} are named"
            raise ConfigError([Problem("--code", message, "name two, such as compare A B --code")])
        sys.stdout.writelines(_code_difference(*folders))
        return 0
    runs = [read_run(folder, parts=frozenset({METRICS})) for folder in folders]
    columns = comparison.compare_runs(runs)
    columns = comparison.sort_columns(columns, sort) if sort else columns
    if json_:
        show(json.dumps(comparison.as_data(columns)))
    elif csv:
        sys.stdout.write(comparison.as_csv(columns))
    else:
        show(comparison.render_columns(columns, terminal_width()))
    for each in [each for each in runs if each.problems][:MAX_DAMAGED]:
        note(f"the record of {each.run_id} is damaged: {join_some(each.problems, 1)}")
    note_incomplete([each.run_id for each in runs if each.verdict is None], "the table")
    return 0


def _code_difference(first: Path, second: Path) -> Iterator[str]:
    """Yield the lines of a unified diff of what two launches pushed."""
    before = _files(first)
    after = _files(second)
    for path in sorted({*before, *after}):
        old = before.get(path)
        new = after.get(path)
        if old and new and old[1].digest == new[1].digest:
            continue
        old_lines = _lines(*old) if old else []
        new_lines = _lines(*new) if new else []
        if old_lines is None or new_lines is None:
            yield f"{path} differs; it is no text, or too large\n"
            continue
        yield from difflib.unified_diff(
            old_lines,
            new_lines,
            fromfile=f"{first.name}/{path}" if old else "/dev/null",
            tofile=f"{second.name}/{path}" if new else "/dev/null",
        )


def _files(folder: Path) -> dict[str, tuple[Path, File]]:
    """Return where the content of each file is kept that a run's launch pushed.

    Raises:
        NotReady: The code of the run is not kept here.
    """
    from runner.control.code.code_store import STORE, CodeStore
    from runner.control.history.run_reader import read_run
    from runner.control.record.run_index import code_places

    run = read_run(folder, parts=frozenset())
    release = run.plans[-1].release if run.plans else ""
    for place in code_places(folder):
        store = CodeStore(place / STORE)
        if found := store.find(release):
            files = found.manifest.files
            return {file.path: (store.content_path(file.digest), file) for file in files}
    hint = "a launch keeps what it pushes beside its record, in runs/.objects"
    raise NotReady([Problem(run.run_id, "its code is not kept here", hint)])


def _lines(path: Path, file: File) -> list[str] | None:
    """Return the lines of a text, None for what is none, or cannot be read."""
    if file.size > MAX_TEXT:
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    return [f"{line}\n" for line in text.splitlines()]
