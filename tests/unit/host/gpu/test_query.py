"""The driver, where NVML does not tell it."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.wire.facts import Driver
from runner.host.gpu import query


@pytest.mark.parametrize(
    ("line", "version"),
    [
        (
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC",
            "535.104.05",
        ),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
            "570.158.01",
        ),
        ("", ""),
    ],
)
def test_the_kernel_knows_its_driver(tmp_path: Path, line: str, version: str) -> None:
    """Where the library does not."""
    place = tmp_path / "proc/driver/nvidia"
    place.mkdir(parents=True)
    (place / "version").write_text(f"{line}\nGCC version:  gcc version 12.3.0 (Ubuntu)\n")
    assert query.driver(None, str(tmp_path)) == Driver(version)
