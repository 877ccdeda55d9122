"""Globs of a task's outputs, and the paths they match."""

from __future__ import annotations

import pytest

from runner.core.wire import files


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("a.pt", "a.pt", True),
        ("r*/a?.pt", "results/a1.pt", True),
        ("results/**", "results/.a/b", True),
        ("**/*.pt", "x/y/a.pt", True),
        (".", "anything/at/.all", True),
        (".git*", ".gitignore", True),
        ("a[1].pt", "a[1].pt", True),
        ("*.pt", "caf\udce9.pt", True),
        ("*.pt", "x/a.pt", False),
        ("results/*.pt", "results/a.pth", False),
        ("results", "results2", False),
        ("**/*.pt", ".cache/a.pt", False),
        ("x/**/z", "x/1/2", False),
    ],
)
def test_matches(pattern: str, path: str, *, expected: bool) -> None:
    """As in a shell: a star matches no dot in front, no slash; a folder stands for all in it."""
    matching = files.compile_globs([pattern])
    for name in path.split("/"):
        matching = files.step_globs(matching, name)
    assert (() in matching) is expected


def test_where_nothing_is_asked_for_nobody_looks() -> None:
    """A folder no pattern leads into is not entered."""
    matching = files.compile_globs(["results/*.pt", "x/y"])
    assert files.step_globs(matching, "data") == frozenset()
    assert files.matches_below(files.step_globs(matching, "results"))


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("", "is empty"),
        ("/x", "is absolute"),
        ("a/..", "leads out of the working folder"),
        ("a/..b", ""),
        ("a~", ""),
    ],
)
def test_what_is_wrong_with_a_pattern(pattern: str, problem: str) -> None:
    """It has to stay in the working folder."""
    assert files.glob_problem(pattern) == problem
