"""Notifier of a supervisor: when a stall is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.core.wire.order import Notify, Order
from runner.core.wire.paths import RunPaths
from runner.host.supervisor.notifier import LAG_S, Notifier

NOTIFY = Notify(("true",), "lab", "t", ("a", "b", "c"))
ORDER = Order("r", "a", 0, "/w", "/", stall_s=10.0, notify=NOTIFY)


@pytest.fixture
def stalls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was told."""
    told: list[Any] = []
    monkeypatch.setattr(Notifier, "tell", lambda _self, *args: told.append(args))
    return told


def test_a_stall_is_told_once_and_of_the_whole_run_only(stalls: list[Any], tmp_path: Path) -> None:
    """Not where a part is unknown, no rank is left, or word of progress may be under way."""
    notifier = Notifier(RunPaths(str(tmp_path), "r", "a"), ORDER, {})
    late = 10.0 + LAG_S
    for stalled_s in (None, float("inf"), 1e9, 1.0, 10.0, late - 0.1):
        notifier.watch(stalled_s, may_tell=True)
    notifier.watch(late, may_tell=False)
    assert stalls == []
    notifier.watch(late, may_tell=True)  # such as when the launch has just gone
    notifier.watch(late + 1, may_tell=True)
    notifier.watch(None, may_tell=True)
    notifier.watch(late + 2, may_tell=True)
    assert len(stalls) == 1
    notifier.watch(0.5, may_tell=True)
    notifier.watch(late, may_tell=True)
    assert len(stalls) == 2
    silent = Notifier(RunPaths(str(tmp_path), "r", "a"), replace(ORDER, stall_s=0.0), {})
    silent.watch(1000.0, may_tell=True)
    assert len(stalls) == 2
