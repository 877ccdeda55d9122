"""docs/run-folder.md names what the code writes: files, event kinds and their fields."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path, PurePosixPath

from runner.core.protocol.events import EVENT_TYPES
from runner.core.protocol.paths import FORMAT_VERSION, RunPaths
from runner.core.protocol.remote_files import RECORD_FILES

PAGE = Path(__file__).parents[4] / "docs" / "run-folder.md"


def rows(title: str) -> list[list[str]]:
    """Return the words in backquotes of each cell of a section's table."""
    section = PAGE.read_text(encoding="utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    return [[" ".join(re.findall("`([^`]*)`", cell)) for cell in line] for line in lines]


def test_events_are_described_with_their_fields() -> None:
    """A kind or a field that is added in the code is added on the page."""
    described = {kind: fields.split() for kind, fields, _ in rows("Events")}
    assert described == {
        kind: [field.name for field in dataclasses.fields(body)]
        for kind, body in EVENT_TYPES.items()
    }


def test_every_file_of_a_host_is_described() -> None:
    """Those at fixed places; logs and records of ranks stand below `attempt_N`."""
    described = {name.strip("/") for row in rows("On each host") for name in row[0].split()}
    paths = vars(RunPaths("/w", "r", "n"))
    names = {
        PurePosixPath(path).name for path in paths.values() if str(path).startswith("/w/runs/r/n/")
    }
    assert names <= described
    assert set(RECORD_FILES) <= described


def test_the_version_is_that_of_the_code() -> None:
    """Another version is another promise."""
    assert f"today `{FORMAT_VERSION}`" in PAGE.read_text(encoding="utf-8")
