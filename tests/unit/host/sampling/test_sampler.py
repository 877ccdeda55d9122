"""The load of a host, from files of /proc as machines have them."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.host.gpu import query
from runner.host.sampling.sampler import Sampler

GIB = 1 << 30


def test_the_load_is_that_since_the_sample_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiting for a disk is no work; what programs can still get is free."""
    proc = tmp_path / "proc"
    proc.mkdir()
    (proc / "meminfo").write_text(
        f"MemTotal: {64 << 20} kB\nMemFree: 5 kB\nMemAvailable: {16 << 20} kB\n"
    )
    (proc / "stat").write_text("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
    monkeypatch.setattr(query, "has_driver", lambda: False)
    mine = Sampler("n1", root=str(tmp_path))
    (proc / "stat").write_text("cpu  150 0 120 860 70 0 0 0 0 0\ncpu0 1 2 3\n")
    load = mine.poll()

    assert load
    assert load.cpu == 35.0
    assert (load.memory_used, load.memory_total) == (48 * GIB, 64 * GIB)
    again = mine.poll()
    assert again
    assert again.cpu is None, "no tick has passed"
