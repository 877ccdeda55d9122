"""Saved images: the layers that a host lacks."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from runner.control.image.saved_image import SavedImage
from runner.core.errors import NotReady

LAYERS = ("sha256:a", "sha256:b", "sha256:c")


@contextlib.contextmanager
def saved(
    folder: Path, files: Sequence[str], links: dict[str, str] | None = None
) -> Iterator[SavedImage]:
    """An image as `docker save` writes one, with these files of layers."""
    path = folder / "image.tar"
    manifest = [{"Config": "config.json", "Layers": [*files]}]
    texts = {name: name * 1000 for name in files if name not in (links or {})}
    texts["config.json"] = json.dumps({"rootfs": {"diff_ids": LAYERS}})
    texts["manifest.json"] = json.dumps(manifest)
    with tarfile.open(path, "w") as tar:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            tar.addfile(entry, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            tar.addfile(entry)
    with contextlib.closing(SavedImage(["cat", str(path)])) as image:
        wait(image)
        yield image


def wait(image: SavedImage) -> None:
    """Return once it is saved."""
    deadline = time.monotonic() + 10
    while not image.is_saved and time.monotonic() < deadline:
        time.sleep(0.01)
    image.check()


def names(data: bytes) -> list[str]:
    """The files in a tar file."""
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getnames()


def test_the_layers_that_a_host_has_are_left_out(tmp_path: Path) -> None:
    """From the lowest on: one that stands on another is another layer."""
    with saved(tmp_path, ["1/layer.tar", "2/layer.tar", "3/layer.tar"]) as image:
        assert image.layers == LAYERS
        assert image.known_layers([["sha256:x"], [*LAYERS[:2], "sha256:y"]]) == 2
        assert image.known_layers([LAYERS[1:]]) == image.known_layers([]) == 0
        stream = image.stream(2)
        data = gzip.decompress(b"".join(stream.gzip()))
        assert names(data) == ["3/layer.tar", "config.json", "manifest.json"]
        assert stream.percent == 100
        assert stream.size < image.size


def test_a_layer_that_a_link_needs_is_sent(tmp_path: Path) -> None:
    """Docker saves equal layers once."""
    files, links = ["1/layer.tar", "2/layer.tar"], {"2/layer.tar": "../1/layer.tar"}
    with saved(tmp_path, files, links) as image:
        assert "1/layer.tar" in names(gzip.decompress(b"".join(image.stream(1).gzip())))


@pytest.mark.skipif(shutil.which("zstd") is None, reason="no zstd here")
def test_zstd_carries_the_same(tmp_path: Path) -> None:
    """Whole."""
    with saved(tmp_path, ["1/layer.tar", "2/layer.tar"]) as image:
        packed = b"".join(image.stream().zstd())
    plain = subprocess.run(["zstd", "-dc"], input=packed, capture_output=True, check=True).stdout
    assert plain == (tmp_path / "image.tar").read_bytes()


@pytest.mark.parametrize("argv", [["false"], ["echo", "not a tar file"]])
def test_what_cannot_be_saved_says_why(argv: list[str]) -> None:
    """With the key."""
    image = SavedImage(argv)
    with contextlib.closing(image), pytest.raises(NotReady, match=r"container\.push_image"):
        wait(image)
