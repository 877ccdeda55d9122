"""Globs of a task's outputs, and the paths they match."""

from __future__ import annotations

import pytest

from runner.core.wire import files


def matches(pattern: str, path: str) -> bool:
    matching = files.compile_globs([pattern])
    for name in path.split("/"):
        matching = files.step_globs(matching, name)
    return () in matching


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("a.pt", "a.pt"),
        ("*.pt", "a.pt"),
        ("r*/a?.pt", "results/a1.pt"),
        ("results/**", "results/.a/b"),
        ("**/*.pt", "x/y/a.pt"),
        (".", "anything/at/.all"),
        (".git*", ".gitignore"),
        ("a[1].pt", "a[1].pt"),
        ("*.pt", "caf\udce9.pt"),
    ],
)
def test_matches(pattern: str, path: str) -> None:
    """A folder that matches stands for all in it."""
    assert matches(pattern, path)


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("*.pt", "x/a.pt"),
        ("results/*.pt", "results/a.pth"),
        ("results", "results2"),
        ("**/*.pt", ".cache/a.pt"),
        ("x/**/z", "x/1/2"),
    ],
)
def test_matches_not(pattern: str, path: str) -> None:
    """As in a shell: no dot in front is matched by a star, and no slash."""
    assert not matches(pattern, path)


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
