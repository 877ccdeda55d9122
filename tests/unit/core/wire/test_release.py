"""Releases: their names, and the trees that can be one."""

from __future__ import annotations

import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runner.core.wire.files import Entry, Manifest
from tests.unit.release_builders import release

NOT_UTF_8 = os.fsdecode(b"\xff\xfe")
ODD = (" ", "-rf", "new\nline", "..data", "...", 'quo"te', "größe", NOT_UTF_8, "a\\b")
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
    "path", ["/etc/passwd", "..", "../up", "a/../../up", ".", "./a", "", "a/", "a//b", "//a", "a/."]
)
@pytest.mark.parametrize("kind", [stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK])
def test_path_outside_of_the_release_is_refused(path: str, kind: int) -> None:
    """A release writes nowhere but in its own folder."""
    manifest = Manifest((Entry("a", stat.S_IFDIR | 0o755), Entry(path, kind | 0o644, 0, "0" * 64)))
    with pytest.raises(ValueError, match="no path within a release"):
        Manifest.decode(manifest.encode())


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (Entry("link/passwd", stat.S_IFREG, 0, "0" * 64), "the folder of .* is not in"),
        (Entry("d/a", stat.S_IFDIR), "is in the manifest twice"),
        (Entry("d/b", stat.S_IFREG, 0, "../../id_rsa"), "has no digest"),
        (Entry("d/b", stat.S_IFIFO), "is no file, folder or link"),
    ],
)
def test_nothing_is_written_or_read_elsewhere(entry: Entry, why: str) -> None:
    """A file below a link would be written wherever that leads; a digest is a path in a pool."""
    made = release({"d/a": b""}, links={"link": "/etc"})
    with pytest.raises(ValueError, match=why):
        Manifest.decode(Manifest((*made.manifest.entries, entry)).encode())


@pytest.mark.parametrize("data", [b"", b"{}x", b'{"files": []}', b'[["a"]]', b"[[1, 2, 3, 4]]"])
def test_what_is_no_manifest_is_said_to_be_none(data: bytes) -> None:
    """A damaged one is not taken for an empty release."""
    with pytest.raises(ValueError, match="no manifest of a release"):
        Manifest.decode(data)
