"""The launches of `make gpu`, on the CPU of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gpu.launching import LocalLauncher
from tests.gpu.test_gpu import BANDWIDTH, SMOKE, program

pytestmark = [pytest.mark.tasks]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[LocalLauncher]:
    with contextlib.closing(LocalLauncher(tmp_path, 0)) as launcher:
        yield launcher


@pytest.mark.parametrize(
    "words",
    [
        SMOKE,
        (*BANDWIDTH, "task.args.min_bytes=1M", "task.args.max_bytes=1M"),
        program("devices"),
    ],
    ids=["nccl", "bandwidth", "devices"],
)
def test_other_programs(launch: LocalLauncher, words: tuple[str, ...]) -> None:
    """They take their arguments, and succeed."""
    assert launch(*words, gpus=0).log("local", 0)
