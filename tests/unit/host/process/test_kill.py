"""Kill loop: what proves that nothing is left."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from runner.host.process import kill, subreaper
from runner.host.process.cgroup import Cgroup


@pytest.fixture
def hidden(monkeypatch: pytest.MonkeyPatch) -> Iterator[subprocess.Popen[bytes]]:
    """A child that no list shows."""
    monkeypatch.setattr(kill, "KILL_TIMEOUT_S", 0.1)
    with subprocess.Popen(["sleep", "60"]) as child:
        yield child
        child.kill()


@pytest.mark.parametrize("listed", [False, True], ids=["no list", "a zombie"])
def test_an_empty_list_proves_nothing(
    monkeypatch: pytest.MonkeyPatch, hidden: subprocess.Popen[bytes], *, listed: bool
) -> None:
    """Not while the kernel says that there is a child; one that a tracer holds is on its list."""
    monkeypatch.setattr(subreaper, "child_pids", lambda: [hidden.pid] * listed)
    monkeypatch.setattr(subreaper, "living_children", list)
    assert kill.kill_until_gone(list, list, all_gone=lambda: False) == (set(), ())
    assert kill.is_proven(Cgroup(), (), lambda: False) == listed
    assert kill.is_proven(Cgroup(), ())
