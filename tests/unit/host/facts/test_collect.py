"""Paths and the reasons why a folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.facts.collect import absolute, unwritable_reason


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("~", "/home/ann"),
        ("~/runs", "/home/ann/runs"),
        ("/data//runs/../x", "/data/x"),
        ("~ann/x", f"{Path.cwd()}/~ann/x"),
    ],
)
def test_only_our_own_home_is_expanded(path: str, expected: str) -> None:
    """`~/` is our home; other people's homes would need a look-up that may hang."""
    assert expected == absolute(path, "/home/ann")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    """A file is no place for a run, nor is anything below it."""
    (tmp_path / "notes").write_text("")

    assert f"{tmp_path}/notes is a file, not a folder" == unwritable_reason(
        f"{tmp_path}/notes/runs"
    )


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    """A link to a disk that is not mounted is told apart from a folder yet to be made."""
    (tmp_path / "scratch").symlink_to(tmp_path / "gone")

    assert f"{tmp_path}/scratch is a link to nothing" == unwritable_reason(f"{tmp_path}/scratch/x")
