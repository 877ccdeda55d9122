"""Build contexts: which files are in one, and its name."""

from __future__ import annotations

import contextlib
import os
import tarfile
from pathlib import Path

import pytest

from runner.control.image.build_context import BuildContext
from runner.core.errors import ConfigError


def write(folder: Path, **files: str) -> Path:
    """Write files, "__" for a slash and a Dockerfile among them."""
    for name, text in {"Dockerfile": "FROM scratch\n", **files}.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def name_of(folder: Path) -> str:
    """The name of the image."""
    with contextlib.closing(BuildContext(folder, 10)) as context:
        return context.image


def members(folder: Path) -> dict[str, str]:
    """The files in the context of a folder, and where links point."""
    with contextlib.closing(BuildContext(folder, 10)) as context:
        context.file.seek(0)
        with tarfile.open(fileobj=context.file) as tar:
            return {member.name: member.linkname for member in tar}


def test_equal_files_have_one_name_whenever_and_wherever(tmp_path: Path) -> None:
    """Times and the umask do not count; contents, names and the executable bit do."""
    first, second = write(tmp_path / "a", run="x"), write(tmp_path / "b", run="x")
    os.utime(second / "run", (1, 1))
    (second / "run").chmod(0o600)
    name = name_of(first)
    assert name_of(second / "Dockerfile") == name
    (second / "run").chmod(0o755)
    assert name_of(second) != name
    assert name_of(write(tmp_path / "c", run="y")) != name


def test_dockerignore_leaves_out_as_docker_does(tmp_path: Path) -> None:
    """Patterns begin at the top, the last one wins, and the Dockerfile always comes along."""
    ignore = "# no\n*.txt\ndata\n!data/kept\n**/cache\nDockerfile\n./secret\na/../token\n!\n"
    files = {".dockerignore": ignore, "a.txt": "", "sub__a.txt": "", "data__big": ""}
    folder = write(tmp_path / "it", **files, data__kept="", sub__cache__x="", code="")
    write(folder, secret="", token="")
    expected = [".dockerignore", "Dockerfile", "code", "data/kept", "sub", "sub/a.txt"]
    assert [*members(folder)] == expected


def test_links_stay_links(tmp_path: Path) -> None:
    """Wherever they point; and folders may be empty."""
    folder = write(tmp_path / "it", code="")
    (folder / "empty").mkdir()
    assert "empty" in members(folder)
    (folder / "link").symlink_to("code")
    assert members(folder)["link"] == "code"


@pytest.mark.parametrize("name", ["nothing", "Dockerfile.gpu"])
def test_what_has_no_dockerfile_is_refused(tmp_path: Path, name: str) -> None:
    """The places that were looked at are named."""
    with pytest.raises(ConfigError, match=r"container\.build: there is no .*it"):
        BuildContext(tmp_path / "it" / name, 10)
