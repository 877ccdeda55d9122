"""Errors as a person reads them."""

from __future__ import annotations

import pytest

from runner.core.errors import ConfigError, NotReady, Problem, RunnerError

GPUS = Problem("cluster.nodes.gpu1.gpus", "asked for 8, the host has 4", "legal here: 0 to 4")
KEY = Problem("gpu2", "refused our key", "try by hand:\n  ssh gpu2")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RunnerError([GPUS, KEY]), 1),
        (ConfigError([GPUS, KEY]), 2),
        (NotReady([GPUS, KEY]), 3),
    ],
    ids=lambda value: type(value).__name__,
)
def test_error_prints_all_its_problems(error: RunnerError, code: int) -> None:
    """Every problem is told at once, and the error knows how the process shall end."""
    assert str(error) == f"{GPUS}\n{KEY}"
    assert error.problems == (GPUS, KEY)
    assert error.exit_code == code
