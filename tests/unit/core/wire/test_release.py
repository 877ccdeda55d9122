"""Releases: their names, and the trees that can be one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.wire.files import File, Folder, Manifest, Symlink, unique_contents
from tests.unit.release_builders import release

ODD = (
    " ",
    "-rf",
    "new\nline",
    "..data",
    "...",
    'quo"te',
    "größe",
    os.fsdecode(b"\xff\xfe"),
    "a\\b",
)
"""Names that are allowed, however odd."""


@given(st.sets(st.sampled_from(ODD)), st.integers(0, 0o777))
def test_manifest_survives_the_wire(names: set[str], mode: int) -> None:
    """Whatever a file is called, it is called the same on the hosts."""
    made = release(
        {f"{name}/{name}": b"x" for name in names},
        modes={f"{name}/{name}": mode for name in names},
        folders={f"{name}/empty": 0o555 for name in names},
        links={f"{name}/link": f"../{name}" for name in names},
    )

    assert Manifest.decode(made.manifest.encode()) == made.manifest


@pytest.mark.parametrize(
    "other",
    [
        release({"a": b"y"}),
        release({"b": b"x"}),
        release({"a": b"x"}, modes={"a": 0o755}),
        release({"a": b"x"}, folders={"empty": 0o755}),
        release({"a": b"x"}, links={"l": "a"}),
    ],
    ids=["content", "name", "mode", "folder", "link"],
)
def test_any_change_makes_another_release(other: Any) -> None:
    """Ranks never run in a release that is only almost the code as it is."""
    assert other.name != release({"a": b"x"}).name


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "..", "../up", "a/../../up", ".", "./a", "", "a/", "a//b", "//a", "a/."]
)
def test_path_outside_of_the_release_is_refused(path: str) -> None:
    """A release writes nowhere but in its own folder."""
    for manifest in (
        Manifest(folders=(Folder("a", 0o755),), links=(Symlink(path, "x"),)),
        Manifest(folders=(Folder("a", 0o755),), files=(File(path, 0o644, 0, "0"),)),
        Manifest(folders=(Folder("a", 0o755), Folder(path, 0o755))),
    ):
        with pytest.raises(ValueError, match="no path within a release"):
            Manifest.decode(manifest.encode())


def test_nothing_is_written_through_a_link() -> None:
    """A file below a symbolic link would be written wherever that leads."""
    through = Manifest(links=(Symlink("a", "/etc"),), files=(File("a/passwd", 0o644, 0, "0"),))

    with pytest.raises(ValueError, match="the folder of 'a/passwd' is not in the manifest"):
        Manifest.decode(through.encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b'{"files": []}',
        json.dumps({"folders": [], "files": [["a"]], "links": []}).encode(),
    ],
)
def test_what_is_no_manifest_is_said_to_be_none(data: bytes) -> None:
    """A damaged one is not taken for an empty release."""
    with pytest.raises(ValueError, match="no manifest of a release"):
        Manifest.decode(data)


def test_each_content_is_sent_once() -> None:
    """Copies of a file cost nothing on the wire, whatever their permissions."""
    made = release({"b": b"same", "a": b"same", "c": b"other"}, modes={"b": 0o755})

    assert [file.path for file in unique_contents(made.manifest)] == ["a", "c"]
    assert made.manifest.size == 13
