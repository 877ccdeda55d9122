"""Files that the pages name: each exists, and the walk through a launch names each one once."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.lab.launching import ROOT

PAGES = ("README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md")))
NAMED = re.compile(r"`((?:runner|tests|docs|conf|benchmarks)?[\w./-]*\w\.(?:py|yaml|md))`")


def named_files(page: str) -> list[str]:
    """Return the paths of our own that a page names: from the top, or below `runner/`."""
    rooms = tuple(f"{path.name}/" for path in (ROOT / "runner").iterdir() if path.is_dir())
    names = NAMED.findall((ROOT / page).read_text(encoding="utf-8"))
    paths = (f"runner/{name}" if name.startswith(rooms) else name for name in names)
    return [path for path in paths if path.startswith(("runner/", "tests/", "docs/"))]


@pytest.mark.parametrize("page", PAGES)
def test_a_named_file_exists(page: str) -> None:
    """A page does not send its reader to a file that has moved."""
    placeholder = re.compile("[A-Z]{3,}")
    names = [name for name in named_files(page) if not placeholder.search(name)]
    assert [name for name in names if not (ROOT / name).is_file()] == []


def test_the_walk_names_each_file_once() -> None:
    """A launch is followed from file to file, without going back."""
    walk = Counter(named_files("docs/how-it-works.md"))
    assert [name for name, count in walk.items() if count > 1] == []
    assert len(walk) > 50
