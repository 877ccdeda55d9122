"""Health of a GPU beside what NVML says: its driver, NUMA node and persistence daemon."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.core.model.hardware import Driver
from runner.host.gpu import health


def test_the_daemon_keeps_the_driver_too(tmp_path: Path) -> None:
    """Its own mode is off, but nvidia-persistenced runs."""
    assert health.is_persistent(False, str(tmp_path)) is False
    (tmp_path / "run/nvidia-persistenced").mkdir(parents=True)
    (tmp_path / "run/nvidia-persistenced/socket").touch()
    assert health.is_persistent(False, str(tmp_path)) is True
    assert health.is_persistent(None, str(tmp_path)) is None


@pytest.mark.parametrize(("text", "node"), [("1\n", 1), ("-1\n", None)])
def test_the_numa_node_is_the_kernels(tmp_path: Path, text: str, node: int | None) -> None:
    """A machine that has but one may not say."""
    place = tmp_path / "sys/bus/pci/devices/0000:01:00.0"
    place.mkdir(parents=True)
    (place / "numa_node").write_text(text)
    assert health.numa_node("0000:01:00", str(tmp_path)) == node


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
    assert health.driver(None, str(tmp_path)) == Driver(version)
