"""The chart library: unchanged files of its package."""

from __future__ import annotations

import hashlib
from pathlib import Path

import runner.ui.page

VENDOR = Path(runner.ui.page.__file__).parent / "vendor" / "uplot"
SHA256 = {
    "LICENSE": "8f989229699b4fe2f1a0432d0e9edc338a8a911e250e2d1b01ecd770a5f5b1bd",
    "uPlot.iife.min.js": "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f",
    "uPlot.min.css": "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04",
}


def test_its_files_are_those_of_the_package() -> None:
    """A change of ours would be lost with the next version, and nobody could check it."""
    found = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in VENDOR.iterdir()
        if path.name != "README.md"
    }
    assert found == SHA256


def test_its_readme_names_the_version_and_the_integrity() -> None:
    """By both, anybody can fetch the same files."""
    text, head = (VENDOR / "README.md").read_text(), (VENDOR / "uPlot.iife.min.js").read_text()[:80]
    assert "uPlot 1.6.32" in text
    assert "(v1.6.32)" in head
    assert "`sha512-KIMVnG68zvu5XXUbC4LQEPnhwOxBuLyW1AHtpm6IKTXImkbLgkMy+jabjLgSLMas" in text
