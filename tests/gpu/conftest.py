"""Fixtures of the checks."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.launching import LocalLauncher, Progress, progress
from tests.gpu.machine import Machine, NoGpuError, find_machine


@pytest.fixture(scope="session")
def machine() -> Machine:
    """This machine; without a GPU its checks are skipped."""
    try:
        return find_machine()
    except NoGpuError as error:
        pytest.skip(str(error))


@pytest.fixture
def launch(machine: Machine, tmp_path: Path) -> Iterator[LocalLauncher]:
    with contextlib.closing(LocalLauncher(tmp_path, len(machine.names))) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Progress]]:
    """Returns the progress of a launch on one CPU, which is made once."""
    with contextlib.closing(LocalLauncher(tmp_path_factory.mktemp("cpu"), 0)) as launcher:
        yield functools.cache(lambda *words: progress(launcher(*words, gpus=0)))
