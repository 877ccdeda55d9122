"""Where values come from, as `explain` prints it, and the configuration as YAML."""

from __future__ import annotations

import pytest

from tests.golden.conftest import Replay
from tests.golden.here import Here


def test_each_value_is_explained(
    here: Here, replay: Replay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all that set it, the winner first; of a node by all entries that name it."""
    monkeypatch.setenv("TOKEN", "hunter2")
    monkeypatch.setenv("COLUMNS", "100")

    def explained(words: list[str]) -> str:
        said = here(*words)
        assert bool(said.err) == bool(said.code), said
        return f"{said.out}{said.err}"

    replay("explain.txt", explained)
