"""Unit tests for the variables that torch reads while it is imported."""

from __future__ import annotations

import os

import pytest

from runner.host.ranks.preload import import_environment

TORCH = {"torch": import_environment.watched("torch")}


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch", "OMP_NUM_THREADS"),
        ("import os\ntry:\n  pass\nexcept OSError:\n  del os.environ['OMP_X']", "OMP_X"),
        ("from os import environ\nenviron.setdefault('TORCH_LOGS', 'all')", "TORCH_LOGS"),
        ("import os\nos.environ.update(settings)", "an environment variable"),
        ("from dotenv import load_dotenv\nload_dotenv()\nimport torch", "an environment variable"),
        ("import os\nwith open('x'):\n  for n in 'ab':\n    os.environ.pop('OMP_A')", "OMP_A"),
    ],
)
def test_a_variable_that_is_set_too_early_is_found(source: str, name: str) -> None:
    """By every way of writing to the environment, in every block."""
    assert import_environment.early_write(source.encode(), TORCH) == name


@pytest.mark.parametrize(
    "source",
    [
        "import os\nimport torch\nos.environ['OMP_NUM_THREADS'] = '1'",
        "import os\nos.environ['TOKENIZERS_PARALLELISM'] = 'false'\nimport torch",
        "import os\nprint(os.environ['OMP_NUM_THREADS'], os.environ.get('MKL_X'))",
        "import os\ndef main():\n  os.environ['OMP_NUM_THREADS'] = '1'\nimport torch",
        "this is no Python",
    ],
)
def test_what_is_no_such_setting(source: str) -> None:
    """Late ones, other names, what is read, what other objects get, and functions."""
    assert not import_environment.early_write(source.encode(), TORCH)


def test_variables_that_are_read_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By every way of asking for one, whether it is set or not; all of them are none."""
    monkeypatch.setenv("IS_SET", "1")
    names: set[str] = set()
    with import_environment.recorded(names):
        assert os.environ["IS_SET"] == "1"
        assert os.environ.get("IS_NOT") is None
        assert os.getenv("NOR_THIS") is None
        assert "IS_NO_MEMBER" not in os.environ
        assert ("IS_SET", "1") in [*os.environ.items()]
    assert os.environ.get("LATER") is None
    assert names == {"IS_SET", "IS_NOT", "NOR_THIS", "IS_NO_MEMBER"}
