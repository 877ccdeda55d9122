"""Fixtures of the checks, and what pytest prints around them: this machine, and what was measured.

Without a GPU pytest ends with exit code 2.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gpu.launching import LocalLauncher, Progress, progress
from tests.gpu.machine import Machine, NoGpuError, find_machine


def pytest_report_header() -> str:
    try:
        return find_machine().describe()
    except NoGpuError as error:
        pytest.exit(f"make gpu: {error}", returncode=2)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for _, figure in report.user_properties:
            terminalreporter.write_line(f"{report.nodeid.partition('::')[2]}: {figure}")


@pytest.fixture(scope="session")
def machine() -> Machine:
    return find_machine()


@pytest.fixture
def launch(machine: Machine, tmp_path: Path) -> Iterator[LocalLauncher]:
    with contextlib.closing(LocalLauncher(tmp_path, len(machine.names))) as launcher:
        yield launcher


@pytest.fixture(scope="session")
def on_cpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Progress]]:
    """Returns the progress of a launch on one CPU, which is made once."""
    with contextlib.closing(LocalLauncher(tmp_path_factory.mktemp("cpu"), 0)) as launcher:
        yield functools.cache(lambda *words: progress(launcher(*words, gpus=0)))
